"""Part (d): training steps of BERT-base and BERT-large, with full rows and packed ones.

Masked language modelling with AdamW, dropout 0.1, bfloat16 products, 32,768 tokens (base) or 16,384
(large). The share is the model's FLOP/s over the rate
of a matrix product measured in this run.
"""

from __future__ import annotations

import contextlib
import dataclasses
import types
from typing import Any
from unittest import mock

import numpy as np

SIZES = {"base": (12, 768, 12, 32768), "large": (24, 1024, 16, 16384)}
DOCUMENT = 96  # mean length of a document in packed rows
VOCAB = 30522
LOOP = ", layers in a loop"
LOWERED = ", program for a GPU"
_dry = False


def begin(dry: bool) -> None:
    """Sets the sizes of this process."""
    global _dry
    _dry = dry


def items(dry: bool) -> list[dict[str, Any]]:
    """Returns model, length and layout of every item."""
    shapes = [("base", 32, "packed"), ("large", 32, "full"), ("large", 512, "packed")]
    if dry:
        return [dict(zip(("model", "length", "layout"), shape, strict=True)) for shape in shapes]
    shapes = [("base", 128, "full"), ("base", 512, "full"), ("base", 512, "packed")]
    shapes += [("large", 128, "full"), ("large", 512, "full"), ("large", 512, "packed")]
    return [dict(zip(("model", "length", "layout"), shape, strict=True)) for shape in shapes]


def names(item: dict[str, Any]) -> list[str]:
    """Returns the implementations of attention.

    LOOP: the layers are one loop instead of one after the other. LOWERED (dry): the step of the
    real size is lowered for CUDA, which a CPU can do and cannot run.
    """
    if _dry:
        return [f"pallas{LOWERED}"] if item["length"] == 512 else ["xla", "reference"]
    several = ["pallas", "reference"] if item["layout"] == "full" else ["pallas"]
    return [*several, f"pallas{LOOP}"] if item["length"] == 512 else several


def sizes_of(item: dict[str, Any]) -> dict[str, int]:
    """Returns the sizes of the network and of its batch."""
    tiny = _dry and item["length"] < 512
    layers, width, heads, tokens = (1, 32, 2, 128) if tiny else SIZES[item["model"]]
    shape = {"layers": layers, "width": width, "heads": heads, "vocab": 400 if tiny else VOCAB}
    return shape | {"length": item["length"], "batch": tokens // item["length"]}


def documents(item: dict[str, Any], rows: int) -> np.ndarray:
    """Returns the document of every position, [rows, length]."""
    size = rows, item["length"]
    if item["layout"] == "full":
        return np.ones(size, np.int32)
    ends = np.random.default_rng(0).random(size) < 1 / DOCUMENT
    return 1 + np.cumsum(ends, 1, dtype=np.int32)


def prepare(item: dict[str, Any]) -> dict[str, Any]:
    """Returns the batch of an item."""
    from ptm_jax.bench import programs

    sizes = programs.Sizes(**sizes_of(item))
    segments = documents(item, sizes.batch)
    batch = {name: np.asarray(x) for name, x in programs.rows(sizes).items()}
    starts = np.diff(segments, axis=1, prepend=0) > 0
    places = np.arange(sizes.length)
    begins = np.maximum.accumulate(np.where(starts, places, 0), axis=1)
    batch |= {"segment_ids": segments, "positions": (places - begins).astype(np.int32)}
    return {"sizes": sizes, "batch": batch}


def build(item: dict[str, Any], context: dict[str, Any], name: str) -> Any:
    """Compiles a step."""
    import jax

    from benchmarks.device import kernels
    from ptm_jax.training.steps.flops import flops

    if name.endswith(LOWERED):
        return None  # `measure` lowers it, while no other thread makes a program for the CPU
    work, batch = work_of(context, name), context["batch"]
    state = jax.eval_shape(work.init, batch)
    options = kernels.CUBLAS if jax.default_backend() == "gpu" else None
    step = jax.jit(work.step, donate_argnums=0).lower(state, batch)
    step = step.compile(compiler_options=options)
    init = jax.jit(work.init).lower(batch).compile()
    return init, step, flops(work.defined().step, state, batch)


def work_of(context: dict[str, Any], name: str) -> Any:
    """Returns the program of a step with the implementation of a name."""
    from ptm_jax.bench import programs
    from ptm_jax.core import spec
    from ptm_jax.nn.attention.multihead import Attention
    from ptm_jax.nn.blocks import Stack
    from ptm_jax.training.steps.step import program

    impl = name.partition(",")[0]
    system = programs.bert(context["sizes"], "bfloat16")
    system = spec.respell(system, Attention, lambda one: dataclasses.replace(one, impl=impl))
    if name.endswith(LOOP):
        system = spec.respell(system, Stack, lambda one: dataclasses.replace(one, unroll=1))
    return program(system, 0)


def lowered(work: Any, batch: dict[str, np.ndarray]) -> str:
    """Returns the text of a step for a GPU."""
    import jax

    with on_gpu():
        state = jax.eval_shape(work.init, batch)
        traced = jax.jit(work.step, donate_argnums=0).trace(state, batch)
        return traced.lower(lowering_platforms=("cuda",)).as_text()


def on_gpu() -> contextlib.AbstractContextManager:
    """Programs that are traced inside are those of a GPU, on any machine. No device is asked."""
    from ptm_jax.kernels import choice, deciding

    device, stack = types.SimpleNamespace(platform="cuda"), contextlib.ExitStack()
    stack.enter_context(mock.patch.object(choice, "first", lambda: device))
    stack.enter_context(mock.patch.object(deciding, "asks", lambda platform: False))
    return stack


def measure(item: dict[str, Any], context: dict[str, Any], name: str, programs: Any) -> dict:
    """Times steps that go on from one another."""
    import jax

    from benchmarks.device import clock

    if name.endswith(LOWERED):
        text = lowered(work_of(context, name), context["batch"])
        return {"status": "lowered", "calls of our kernels": text.count("mosaic_gpu")}
    init, step, operations = programs
    batch = jax.device_put(context["batch"])
    held = {"state": init(batch)}

    def call():
        held["state"], metrics = step(held["state"], batch)
        return metrics

    seconds = clock.seconds(call, jax.block_until_ready)
    memory = step.memory_analysis()
    bytes_of = memory.temp_size_in_bytes + memory.argument_size_in_bytes
    return {
        "status": "timed",
        "milliseconds": 1e3 * seconds,
        "tokens per second": batch["input_ids"].size / seconds,
        "TFLOP/s": operations / seconds / 1e12,
        "GiB": (bytes_of + memory.output_size_in_bytes - memory.alias_size_in_bytes) / 2**30,
    }
