"""Benchmark of every corruption of the catalogue, relative to a BERT-base training step."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from ptm_jax.bench import programs, timing
from ptm_jax.bench.peers import Peers
from ptm_jax.bench.programs import Sizes
from ptm_jax.bench.record import Entry, median, over, settings, spread
from ptm_jax.bench.steps import products
from ptm_jax.core import facts, spec
from ptm_jax.core.types import Vocab


def run(sizes: Sizes, repeats: int, say: timing.Say, peers: Peers = Peers()) -> list[Entry]:
    """Measures each jitted corruption relative to the step, one entry per task of `ptm list
    --matrix`."""
    from ptm_jax import systems
    from ptm_jax.systems.survey.matrix import TASKS

    say("corruptions: compiling the step")
    batch = programs.rows(sizes)
    work = programs.training(programs.bert(sizes, "bfloat16"), batch)
    vocab = Vocab(
        size=sizes.vocab, pad=0, unk=1, cls=2, sep=3, mask=4, bos=5, eos=6,
        extra=tuple(range(sizes.vocab - 100, sizes.vocab)),
    )  # fmt: skip
    meters: dict[str, Any] = {
        "step": timing.Step(work.step, work.state, batch),
        "gemm": timing.products(sizes.gemm),
    }
    for task, name in TASKS.items():
        corruption = facts.stand_ins(
            spec.respell(systems.get(name).corruption, Vocab, vocab), vocab
        )
        if corruption is not None:
            say(f"corruptions: compiling {task}")
            meters[task] = _alone(jax.jit(corruption), _given(corruption, sizes))
    found = timing.alternate(meters, repeats, warmup=2, say=say)
    share = products(work.flops, found["step"], found["gemm"])
    return [_entry(task, found, sizes, share) for task in meters if task not in ("step", "gemm")]


def _given(corruption: Any, sizes: Sizes) -> dict[str, jax.Array]:
    """Returns marked rows; for a corruption of sentences in slots (HIBERT), full slots of its
    number and width."""
    slots = getattr(corruption, "sentences", None), getattr(corruption, "width", None)
    if None in slots:
        return marked(programs.rows(sizes))
    batch = marked(programs.rows(dataclasses.replace(sizes, length=slots[0] * slots[1])))
    place = jnp.broadcast_to(
        jnp.arange(slots[0] * slots[1], dtype=jnp.int32), batch["input_ids"].shape
    )
    return {**batch, "segment_ids": place // slots[1] + 1, "positions": place % slots[1]}


def marked(batch: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """Returns the rows with the fields of an annotated stream: words of two tokens and sentences of
    sixteen."""
    slots = jnp.broadcast_to(
        jnp.arange(batch["input_ids"].shape[1], dtype=jnp.int32), batch["input_ids"].shape
    )
    return {**batch, "word_starts": 1 - slots % 2, "sentences": 1 + slots // 16}


def _alone(corrupt, batch):
    clock = timing.clocked(lambda: corrupt(jax.random.key(1), batch))
    return lambda: median([clock() for _ in range(11)])


def _entry(task: str, found, sizes: Sizes, share: dict[str, float]) -> Entry:
    ratios = over(found[task], found["step"])
    return Entry(
        name=f"corruption/{task}",
        ours={
            "corruption alone": {"seconds": median(found[task])},
            "step": {"seconds": median(found["step"])},
        },
        peers={},
        ratio=median(ratios),
        spread=spread(ratios),
        roofline=share,
        settings=settings(
            ratio="seconds of the jitted corruption over seconds of a BERT-base step",
            compares="seconds",
            **sizes.shapes(),
        ),
    )
