"""The utilisation of a run counts the operations on real tokens, by hand."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.training import loop
from ptm_jax.training.hosts import devices
from ptm_jax.training.logs import console
from ptm_jax.training.start import setup
from ptm_jax.training.steps.flops import places
from ptm_jax.tuning import finetuning
from support import tiny_checkpoint

LENGTH, ROWS, WIDTH, HIDDEN = 32, 8, 16, 16
TOKEN = 2 * (4 * WIDTH**2 + 2 * WIDTH * HIDDEN + 2 * LENGTH * WIDTH)
"""Forward products of the one layer for a place: its weights, and its attention to LENGTH keys."""
ROW = 2 * (WIDTH**2 + 2 * WIDTH)
"""Forward products of the pooler and the two classes for a row."""


def test_the_places_of_a_batch():
    fields = {"segment_ids": np.zeros((3, 5, 7)), "rows": np.arange(3)}
    assert places(fields) == 105 and places({"rows": np.arange(3)}) == 3


@pytest.mark.full
def test_a_run_counts_the_operations_on_its_real_tokens(tmp_path, monkeypatch):
    """Each text has four letters: six real tokens in a row whose places are counted as 32.
    The step only counts its tokens, so that nothing is compiled."""
    model = tiny_checkpoint.write(tmp_path / "model")
    data = tmp_path / "data"
    data.mkdir()
    lines = [f"a a a a\t{number % 2}\n" for number in range(2 * ROWS)]
    for name in ("train", "dev"):
        (data / f"{name}.tsv").write_text("text\tlabel\n" + "".join(lines))
    config = finetuning.experiment(
        "sst2", str(model), [str(data)], epochs=1, batch=ROWS, length=LENGTH
    )
    config = dataclasses.replace(config, log_every=1, eval_every=0, save_every=0)
    calls = []
    monkeypatch.setattr(devices, "utilisation", lambda flops, *_: calls.append(flops))
    run = loop.Training(config, tmp_path / "run")

    def step(state, batch, seed):
        tokens = jnp.sum(batch["segment_ids"] > 0)
        return state, {"loss": jnp.ones(()), "grad_norm": jnp.ones(()), "tokens": tokens}

    monkeypatch.setattr(run, "compiled", lambda *_: step)
    stream = setup.stream(run.config, run.corpus, 0, share=run.share)
    with run.log, console.Progress(2, quiet=True) as bar:
        run.log.resume(0)
        loop._steps(run, None, 0, 2, 0, stream=stream, bar=bar)
    tokens = ROWS * (4 + 2)  # [CLS] and [SEP]
    assert calls == pytest.approx([3 * (TOKEN + ROW / LENGTH) * tokens] * 2)
