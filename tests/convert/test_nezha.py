"""NEZHA against what transformers 4.57.6 answered (tests/golden/make_nezha.py): every class, and
back, without torch."""

import json
import types

import golden_nezha
import numpy as np
import peers
import pytest

from ptm_jax.convert import checkpoint
from ptm_jax.convert.files import open_tensors
from ptm_jax.convert.saving import write_tensors


@pytest.fixture(scope="module")
def golden():
    with np.load(golden_nezha.FILE) as file:
        return {
            name: under({key: file[key] for key in file.files}, name)
            for name in golden_nezha.CONFIGS
        }


def under(parts, prefix):
    return {
        key.removeprefix(f"{prefix}/"): value
        for key, value in parts.items()
        if key.startswith(f"{prefix}/")
    }


def published(folder, parts, case):
    """The directory that the class was saved to."""
    root = "" if case.tasks else "nezha."
    tensors = {key.removeprefix(root): value for key, value in under(parts, "shared").items()}
    folder.mkdir()
    write_tensors(folder, {**tensors, **under(parts, f"{case.name}/tensor")}.items())
    (folder / "config.json").write_text(str(parts[f"{case.name}/config"]))
    return checkpoint.read(folder)


def answer(parts, case):
    """What torch gave, under the names of its output."""
    known = {
        key: golden_nezha.Answer(value) for key, value in under(parts, f"{case.name}/out").items()
    }
    layers = {
        n: [golden_nezha.Answer(under(parts, n)[str(i)]) for i in range(len(under(parts, n)))]
        for n in ("states", "maps")
    }
    return types.SimpleNamespace(hidden_states=layers["states"], attentions=layers["maps"], **known)


def same_again(folder, read):
    """Exported, the tensors are those of the file; the record alone gives the config."""
    checkpoint.write(folder, read.system, read.params, config=read.config)
    before, after = open_tensors(folder.parent / read.architecture), open_tensors(folder)
    assert set(before.names()) == set(after.names())
    for name in before.names():
        assert np.array_equal(before.read(name), after.read(name)), name
    peers.check_record(read)


LATER = pytest.mark.full


@pytest.mark.full
@pytest.mark.parametrize(
    "name", [n if n == "narrow" else pytest.param(n, marks=LATER) for n in golden_nezha.CONFIGS]
)
def test_every_class_answers_as_the_last_version_that_had_it(name, golden, tmp_path):
    parts, group = golden[name], golden_nezha.group(peers)
    found = [published(tmp_path / case.name, parts, case) for case in group]
    assert all(read.report.extra == () and read.report.missing == () for read in found)
    grads = [under(parts, f"{case.name}/grad") for case in group]
    total, trained = under(parts, "grads"), False
    for case, mine in zip(
        group, grads, strict=True
    ):  # the encoder's, summed, are compared in the first that is trained
        if case.tasks:
            mine |= {
                key: np.zeros_like(value) if trained else value for key, value in total.items()
            }
            trained = True
    outs = [answer(parts, case) for case in group]
    pad = json.loads(str(parts["NezhaModel/config"]))["pad_token_id"]
    peers.agree(
        found, group, outs, grads, under(parts, "given"), atol=golden_nezha.atol(name), pad=pad
    )
    for case, read in zip(group, found, strict=True):
        same_again(tmp_path / f"{case.name}-out", read)
