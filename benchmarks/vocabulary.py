"""Benchmark of the cost of a large vocabulary in a BERT-base training step with the head on masked
positions only."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from ptm_jax.bench import programs, timing
from ptm_jax.bench.peers import Peers
from ptm_jax.bench.programs import Sizes
from ptm_jax.bench.record import Entry, median, over, settings, spread
from ptm_jax.bench.steps import BFLOAT16, products
from ptm_jax.core.precision import Precision
from ptm_jax.core.recipe import Recipe
from ptm_jax.corruptions.base import capacity
from ptm_jax.kernels.cross_entropy import linear_cross_entropy
from ptm_jax.training.updates import optimizers


@dataclasses.dataclass(frozen=True, kw_only=True)
class VocabularySizes(Sizes):
    small: int = 1024


def run(
    sizes: VocabularySizes, repeats: int, say: timing.Say, peers: Peers = Peers()
) -> list[Entry]:
    """Measures the step with the large and the small vocabulary, and separately the parts that grow
    with the vocabulary."""
    say(f"vocabulary: compiling {sizes.small} and {sizes.vocab}")
    works, meters = {}, {}
    for vocab in (sizes.small, sizes.vocab):
        here = dataclasses.replace(sizes, vocab=vocab)
        batch = programs.rows(here)
        works[vocab] = programs.training(programs.bert(here, "bfloat16"), batch)
        meters[vocab] = timing.Step(works[vocab].step, works[vocab].state, batch)
    parts = _of_the_table(sizes, works[sizes.vocab].program.system.recipe)
    found = timing.alternate(
        {**meters, **parts, "gemm": timing.products(sizes.gemm)}, repeats, warmup=2, say=say
    )
    ratios = over(found[sizes.vocab], found[sizes.small])
    seconds = {
        f"vocabulary {vocab:,}": {"seconds": median(found[vocab]), "fastest": min(found[vocab])}
        for vocab in works
    }
    more = [
        large - small for large, small in zip(found[sizes.vocab], found[sizes.small], strict=True)
    ]
    seconds |= {"difference": {"seconds": median(more)}}
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
    """Returns a meter for each operation of a step on the token table [V, D]."""
    draw = np.random.default_rng(0)
    table, bias = (
        jnp.asarray(draw.standard_normal((sizes.vocab, sizes.width), np.float32)) * 0.02,
        jnp.zeros(sizes.vocab),
    )
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
        return linear_cross_entropy(
            features, table, bias, labels, precision=Precision("bfloat16")
        ).sum()

    head = jax.jit(jax.value_and_grad(loss, (0, 1, 2)))
    lookup = jax.jit(lambda gradient: jnp.zeros_like(gradient).at[looked_up].add(rows) + gradient)
    state = {"token": jnp.copy(table)}, optimizer.init({"token": table})
    return {
        "AdamW of the table": timing.Step(jax.jit(moved, donate_argnums=0), state, table),
        "the head and its gradients": timing.clocked(lambda: head(features, table, bias)),
        "gradient of the words looked up, added to the head's": timing.clocked(
            lambda: lookup(table)
        ),
    }
