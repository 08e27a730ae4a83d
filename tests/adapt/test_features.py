"""Features of a frozen encoder: computed once, kept on disk, the same training as without."""

import jax
import numpy as np
import pytest

from ptm_jax.mesh import rules
from ptm_jax.training.start import features
from ptm_jax.training.steps import step
from support.classifier import WIDTH, batch, classifier


class Rows:
    """A stream of one batch, over and over; it counts how often."""

    def __init__(self):
        self.done = 0

    def __iter__(self):
        return self

    def __next__(self):
        self.done += 1
        return {name: np.asarray(value) for name, value in batch().items()}

    def state(self):
        return {"done": self.done}

    def restore(self, state):
        self.done = state["done"]


@pytest.mark.full
def test_features_are_computed_once_and_train_the_same(tmp_path, monkeypatch):
    program = step.program(classifier("feature(cache=true)", "mix", dropout=0.5), seed=0)
    state = jax.jit(program.init)(batch())
    mesh = rules.make_mesh(devices=jax.devices()[:1])
    stream = features.kept(program, state.params, Rows(), tmp_path, mesh)
    assert stream.state() == {"done": 0}
    update, calls = jax.jit(program.step), []
    encode = stream._encode
    monkeypatch.setattr(stream, "_encode", lambda rows: calls.append(1) or encode(rows))
    ours = theirs = state
    for _ in range(2):
        rows = next(stream)
        assert rows["features"].shape == (4, 4, 6, WIDTH) and not rows["features"][1, :, 4:].any()
        ours, metrics = update(ours, rows)
        theirs, expected = update(theirs, batch())
        np.testing.assert_allclose(metrics["loss"].value(), expected["loss"].value(), rtol=1e-5)
    assert len(calls) == 1 and stream.state() == {"done": 2}
    # Another run finds them; a line without its bytes, after a kill, is as if it were not there.
    (folder,) = (tmp_path / "features").iterdir()
    again = features.FeatureStore(folder, 4, WIDTH)
    assert len(again) == 4 and all(name in again for name in features.keys(next(Rows())))
    stream._store.close()
    again.close()
    data = (folder / "rows.bin").read_bytes()
    (folder / "rows.bin").write_bytes(data[:-4])
    with (folder / "index.jsonl").open("a") as file:
        file.write('["cut')
    torn = features.FeatureStore(folder, 4, WIDTH)
    assert len(torn) == 3
    torn.close()


def test_a_run_without_a_cache_keeps_its_stream(tmp_path):
    program = step.program(classifier("feature"), seed=0)
    rows = Rows()
    assert features.kept(program, None, rows, tmp_path, None) is rows
