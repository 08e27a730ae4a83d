"""Part (g): steps of skip-gram, and a layer of ELMo's LSTM with its projection beside torch's."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

_dry = False


def begin(dry: bool) -> None:
    """Sets the sizes of this process."""
    global _dry
    _dry = dry


def items(dry: bool) -> list[dict[str, Any]]:
    """Returns the two kinds."""
    return [{"kind": "skip-gram"}, {"kind": "ELMo cell"}]


def names(item: dict[str, Any]) -> list[str]:
    """Returns ours, and torch's LSTM."""
    return ["ours"] if item["kind"] == "skip-gram" else ["ours, bfloat16", "ours, float32", "torch"]


def prepare(item: dict[str, Any]) -> Any:
    """Returns the sizes of the LSTM: rows, length, units, inputs and projection."""
    from ptm_jax.bench.recurrent import RecurrentSizes

    width, project = (32, 16) if _dry else (4096, 512)
    return RecurrentSizes(width=width, inputs=project, project=project, length=8 if _dry else 128)


def build(item: dict[str, Any], context: Any, name: str) -> Any:
    """Compiles a step or a layer."""
    from ptm_jax.bench import recurrent

    if item["kind"] == "skip-gram":
        return _skipgram()
    rows = 2 if _dry else 64
    if name == "torch":
        return _torch(rows, context)
    return recurrent._compiled(context, rows, context.length, name.partition(", ")[2])[0]


def _skipgram():
    """Returns (program, batch) of 512 rows of 64 centres."""
    from ptm_jax.core import spec
    from ptm_jax.core.types import Vocab
    from ptm_jax.statistics.counts import Counts
    from ptm_jax.systems import get
    from ptm_jax.training.steps.step import program

    system = get("skipgram_mini" if _dry else "skipgram")
    size = 500 if _dry else 200_000
    vocab = dataclasses.replace(system.towers["main"].encoder.vocab, size=size)
    system = spec.respell(system, Vocab, vocab)
    phase = system.recipe.phases[0]
    shape = phase.batch, phase.length
    ids = np.random.default_rng(0).zipf(1.2, shape).clip(1, size - 3).astype(np.int32) + 2
    counts = np.bincount(ids.reshape(-1), minlength=size)
    system = spec.respell(system, Counts, Counts().filled(counts))
    places = np.tile(np.arange(shape[1], dtype=np.int32), (shape[0], 1))
    batch = {"input_ids": ids, "segment_ids": np.ones_like(ids), "positions": places}
    return program(system, 0), batch | {"rows": np.arange(shape[0], dtype=np.int32)}


def _torch(rows: int, sizes) -> Any:
    """Returns a call of torch's LSTM, forward and backward, in bfloat16."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    layer = torch.nn.LSTM(sizes.inputs, sizes.width, proj_size=sizes.project, batch_first=True)
    layer = layer.to(device, torch.bfloat16)
    size = rows, sizes.length, sizes.inputs
    x = torch.randn(size, device=device, dtype=torch.bfloat16, requires_grad=True)

    def call():
        return torch.autograd.grad(layer(x)[0].sum(), [x, *layer.parameters()])

    return call


def measure(item: dict[str, Any], context: Any, name: str, program: Any) -> dict[str, Any]:
    """Times a step or a layer."""
    import jax

    from benchmarks.device import clock

    if item["kind"] == "skip-gram":
        work, batch = program
        batch = jax.device_put(batch)
        step = jax.jit(work.step, donate_argnums=0)
        held = {"state": jax.jit(work.init)(batch)}

        def call():
            held["state"], metrics = step(held["state"], batch)
            return metrics

        seconds = clock.seconds(call, jax.block_until_ready)
        count = batch["input_ids"].shape[0] * 64
        return _row(seconds, count)

    def wait(result):
        if name != "torch":
            jax.block_until_ready(result)
        else:
            import torch

            torch.cuda.is_available() and torch.cuda.synchronize()

    return _row(clock.seconds(program, wait), (2 if _dry else 64) * context.length)


def _row(seconds: float, count: int) -> dict[str, Any]:
    return {"status": "timed", "milliseconds": 1e3 * seconds, "words per second": count / seconds}
