"""The training step of BERT-base: its speed, and what masking and the vocabulary add to it."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ptm_jax.bench import peer, programs, rivals, timing
from ptm_jax.bench.programs import Sizes
from ptm_jax.bench.record import Entry, median, over, settings, spread
from ptm_jax.core.precision import Precision
from ptm_jax.core.recipe import Recipe
from ptm_jax.core.streams import stream
from ptm_jax.corruptions.base import capacity
from ptm_jax.kernels.cross_entropy import linear_cross_entropy
from ptm_jax.train import optimizers

OURS = ("bfloat16", "float32")
BFLOAT16 = "bfloat16 products with float32 accumulation"


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepSizes(Sizes):
    """`screening` steps choose the best of the peer's variants; `compile_limit` is the seconds torch.compile has."""

    screening: int = 4
    compile_limit: int = 600


@dataclasses.dataclass(frozen=True, kw_only=True)
class VocabularySizes(Sizes):
    small: int = 1024


def step(sizes: StepSizes, repeats: int, say: timing.Say) -> list[Entry]:
    """Tokens/s of a masked-LM training step, beside BertForMaskedLM at the best of its settings."""
    say(f"step: compiling {' and '.join(OURS)}")
    batch = programs.rows(sizes)
    works: dict[str, programs.Training] = {}
    for name in OURS:
        state = works[OURS[0]].state if works else None
        works[name] = programs.training(programs.bert(sizes, name), batch, state)
    meters: dict[str, timing.Meter] = {name: timing.Step(w.step, w.state, batch) for name, w in works.items()}
    absent = peer.missing()
    with contextlib.ExitStack() as stack:
        task = {**sizes.shapes(), "predictions": capacity(sizes.length, 0.15)}
        options = (sizes.screening, sizes.compile_limit, stack, say)
        field = rivals.Field() if absent else rivals.steps(task, meters["bfloat16"], *options)
        best = field.best
        if best is not None:
            meters["peer"] = field.meters[best]
        say(f"step: {repeats} rounds of ours and {best or 'no peer'}")
        found = timing.alternate({**meters, "gemm": timing.products(sizes.gemm)}, repeats, warmup=2, say=say)
    rated = lambda seconds: {"tokens_per_second": sizes.batch * sizes.length / seconds, "seconds": seconds}
    ours = {name: rated(median(found[name])) for name in OURS}
    first = min(OURS, key=lambda name: ours[name]["seconds"])
    peers = {name: rated(seconds) for name, seconds in sorted(field.seconds.items(), key=lambda item: item[1])}
    ratios = []
    if best is not None:
        ratios, peers[best] = over(found["peer"], found[first]), rated(median(found["peer"]))
    return [
        Entry(
            name="step",
            ours=ours,
            peers=peers,
            ratio=median(ratios) if ratios else None,
            spread=spread(ratios),
            roofline=products(works[first].flops, found[first], found["gemm"]),
            settings=settings(
                ratio=f"tokens/s of ours in {first} over the peer's best ({best})",
                compares="tokens_per_second",
                reason="; ".join([absent] if absent else field.failures) or None,
                screening=f"the peer's other settings: the fastest of {sizes.screening} steps",
                **_step_settings(sizes),
            ),
        )
    ]


def _step_settings(sizes: StepSizes) -> dict[str, Any]:
    return {
        **sizes.shapes(),
        "predictions_per_row": capacity(sizes.length, 0.15),
        "dropout": 0.1,
        "optimizer": "AdamW, no clipping; torch: fused",
        "ours": f"corruption inside the step, head on the masked positions; bfloat16: {BFLOAT16}; {programs.UNROLLED}",
        "peer": "logits at all positions, as the library has it; inputs are there already; one process of its own",
        "processes": "strictly alternating, in turned order",
    }


def products(operations: float, seconds, rates) -> dict[str, float]:
    """The model's arithmetic against the rate of a matrix product measured in the same round."""
    reached = [operations / took / rate for took, rate in zip(seconds, rates, strict=True)]
    return {
        "gemm_flops_per_second": median(rates),
        "model_flops": operations,
        "share": median(reached),
    }


def masking(sizes: Sizes, repeats: int, say: timing.Say) -> list[Entry]:
    """The share of a training step that dynamic masking takes."""
    say("masking: compiling the step with and without")
    batch = programs.rows(sizes)
    system = programs.bert(sizes, "bfloat16")
    work = programs.training(system, batch)
    ready = programs.corrupted(work.program, batch)
    without = programs.training(dataclasses.replace(system, corruption=None), ready, work.state)
    corrupt = jax.jit(lambda number, rows: system.corruption(stream(0, "corruption-train", number), rows))
    alone = timing.clocked(lambda: corrupt(1, batch))
    meters = {
        "step": timing.Step(work.step, work.state, batch),
        "alone": lambda: median([alone() for _ in range(11)]),
        "without": timing.Step(without.step, without.state, ready),
        "gemm": timing.products(sizes.gemm),
    }
    found = timing.alternate(meters, repeats, warmup=2, say=say)
    ratios = over(found["alone"], found["step"])
    difference = [a / b - 1.0 for a, b in zip(found["step"], found["without"], strict=True)]
    return [
        Entry(
            name="masking",
            ours={
                "step": {"seconds": median(found["step"])},
                "step without masking": {"seconds": median(found["without"]), "difference": median(difference)},
                "masking alone": {"seconds": median(found["alone"])},
            },
            peers={},
            ratio=median(ratios),
            spread=spread(ratios),
            roofline=products(work.flops, found["step"], found["gemm"]),
            settings=settings(
                ratio="seconds of the jitted corruption over seconds of the step",
                compares="seconds",
                precision=BFLOAT16,
                layers_are=programs.UNROLLED,
                **sizes.shapes(),
            ),
        )
    ]


def vocabulary(sizes: VocabularySizes, repeats: int, say: timing.Say) -> list[Entry]:
    """What a large vocabulary costs when the head runs on the masked positions only."""
    say(f"vocabulary: compiling {sizes.small} and {sizes.vocab}")
    works, meters = {}, {}
    for vocab in (sizes.small, sizes.vocab):
        here = dataclasses.replace(sizes, vocab=vocab)
        batch = programs.rows(here)
        works[vocab] = programs.training(programs.bert(here, "bfloat16"), batch)
        meters[vocab] = timing.Step(works[vocab].step, works[vocab].state, batch)
    parts = _of_the_table(sizes, works[sizes.vocab].program.system.recipe)
    found = timing.alternate({**meters, **parts, "gemm": timing.products(sizes.gemm)}, repeats, warmup=2, say=say)
    ratios = over(found[sizes.vocab], found[sizes.small])
    seconds = {f"vocabulary {vocab:,}": {"seconds": median(found[vocab]), "fastest": min(found[vocab])} for vocab in works}
    more = [large - small for large, small in zip(found[sizes.vocab], found[sizes.small], strict=True)]
    seconds |= {"what the larger one adds": {"seconds": median(more)}}
    return [
        Entry(
            name="vocabulary",
            ours=seconds | {f"alone, {name}": {"seconds": median(found[name])} for name in parts},
            peers={},
            ratio=median(ratios),
            spread=spread(ratios),
            roofline=products(works[sizes.vocab].flops, found[sizes.vocab], found["gemm"]),
            settings=settings(
                ratio=f"seconds of the step with vocabulary {sizes.vocab:,} over {sizes.small:,}",
                compares="seconds",
                precision=BFLOAT16,
                layers_are=programs.UNROLLED,
                **sizes.shapes(),
            ),
        )
    ]


def _of_the_table(sizes: Sizes, recipe: Recipe) -> dict[str, timing.Meter]:
    """What a step does with a table of words [V, D], each thing alone."""
    draw = np.random.default_rng(0)
    table, bias = jnp.asarray(draw.standard_normal((sizes.vocab, sizes.width), np.float32)) * 0.02, jnp.zeros(sizes.vocab)
    masked = sizes.batch * capacity(sizes.length, 0.15)
    features = jnp.asarray(draw.standard_normal((masked, sizes.width), np.float32))
    labels = jnp.asarray(draw.integers(0, sizes.vocab, masked), jnp.int32)
    looked_up = jnp.asarray(draw.integers(0, sizes.vocab, sizes.batch * sizes.length), jnp.int32)
    rows = jnp.asarray(draw.standard_normal((len(looked_up), sizes.width), np.float32))
    optimizer = optimizers.build(recipe)

    def moved(state, gradient):
        params, moments = state
        updates, moments = optimizer.update({"token": gradient}, moments, params)
        return (optimizers.apply(params, updates), moments), ()

    def loss(features, table, bias):
        return linear_cross_entropy(features, table, bias, labels, precision=Precision("bfloat16")).sum()

    head = jax.jit(jax.value_and_grad(loss, (0, 1, 2)))
    lookup = jax.jit(lambda gradient: jnp.zeros_like(gradient).at[looked_up].add(rows) + gradient)
    state = {"token": jnp.copy(table)}, optimizer.init({"token": table})
    return {
        "AdamW of the table": timing.Step(jax.jit(moved, donate_argnums=0), state, table),
        "the head and its gradients": timing.clocked(lambda: head(features, table, bias)),
        "gradient of the words looked up, added to the head's": timing.clocked(lambda: lookup(table)),
    }
