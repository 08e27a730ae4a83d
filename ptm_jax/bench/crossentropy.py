"""Benchmark of a linear layer's cross-entropy over a vocabulary, forward and backward.
The peer is optax."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ptm_jax.bench import timing
from ptm_jax.bench.peers import Peers
from ptm_jax.bench.record import Entry, median, over, settings, spread
from ptm_jax.bench.steps import products
from ptm_jax.core.precision import Impl, Precision
from ptm_jax.kernels.cross_entropy import linear_cross_entropy


@dataclasses.dataclass(frozen=True, kw_only=True)
class CrossEntropySizes:
    """Each size in `vocabularies` is measured.
    `screening` is the number of rounds for choosing the best peer setting."""

    tokens: int = 1024
    width: int = 768
    vocabularies: tuple[int, ...] = (30522, 250002)
    screening: int = 2
    gemm: int = 2048


BLOCKS = ", in blocks"
"""Ours without an array of scores (impl="xla"); else what a model takes on this device."""

# Variants of the projection, which optax leaves to the caller.
OTHERS: Mapping[str, tuple[Any, Any]] = {
    "optax, float32": (jnp.float32, jnp.float32),
    "optax, bfloat16": (jnp.bfloat16, jnp.bfloat16),
    "optax, bfloat16, accumulated in float32": (jnp.bfloat16, jnp.float32),
}


def run(
    sizes: CrossEntropySizes, repeats: int, say: timing.Say, peers: Peers = Peers()
) -> list[Entry]:
    """Measures the seconds of the loss and its gradients for features, table and bias.
    One row per vocabulary."""
    return [_entry(sizes, vocab, repeats, say, peers) for vocab in sizes.vocabularies]


def _compiled(ours, arguments):
    """Returns the compiled programs of loss and gradients by name: `ours` and optax's."""
    optax = {name: functools.partial(_optax, types=types) for name, types in OTHERS.items()}
    return {
        name: jax.jit(jax.value_and_grad(f, (0, 1, 2))).lower(*arguments).compile()
        for name, f in {**ours, **optax}.items()
    }


def _entry(
    sizes: CrossEntropySizes, vocab: int, repeats: int, say: timing.Say, others: Peers
) -> Entry:
    say(f"cross_entropy: compiling for {vocab:,} words")
    arguments = _arguments(sizes, vocab)
    ours = {
        name + way: _ours(Precision(name), impl)
        for name in ("bfloat16", "float32")
        for way, impl in (("", "auto"), (BLOCKS, "xla"))
    }
    steps = _compiled(ours, arguments)
    meters = {
        name: timing.clocked(functools.partial(step, *arguments)) for name, step in steps.items()
    }
    with contextlib.ExitStack() as stack:
        field = others.cross_entropy(arguments, meters["bfloat16"], sizes.screening, stack, say)
        meters |= field.meters
        say(f"cross_entropy: {len(meters)} settings")
        tried = timing.alternate(meters, sizes.screening, warmup=1)
        seconds = {name: {"seconds": median(times)} for name, times in tried.items()}
        ranked = sorted(
            (name for name in meters if name not in ours), key=lambda name: seconds[name]["seconds"]
        )
        best = {name.partition(",")[0]: name for name in reversed(ranked)}
        first = min(ours, key=lambda name: seconds[name]["seconds"])
        chosen = {name: meters[name] for name in (first, *best.values())}
        values = timing.alternate(
            {**chosen, "gemm": timing.products(sizes.gemm)}, repeats, warmup=1, say=say
        )
    for name in chosen:
        seconds[name] = {"seconds": median(values[name])}
    held = {name: step.memory_analysis().temp_size_in_bytes for name, step in steps.items()}
    for name, count in (held | field.held).items():
        seconds[name]["temporary_bytes"] = count
    ratios = over(values[best["optax"]], values[first])
    peers = {name: figures for name, figures in seconds.items() if name not in ours}
    for name in (name for side, name in best.items() if side != "optax"):
        peers[name]["over ours"] = median(over(values[name], values[first]))
    least = first.removesuffix(BLOCKS) + BLOCKS
    memory = [seconds[name]["temporary_bytes"] for name in (least, best["optax"])]
    return Entry(
        name=f"cross_entropy/{vocab}",
        ours={name: seconds[name] for name in sorted(ours, key=lambda name: name != first)},
        peers=peers,
        ratio=median(ratios),
        spread=spread(ratios),
        roofline=products(6.0 * sizes.tokens * sizes.width * vocab, values[first], values["gemm"]),
        settings=settings(
            ratio=f"seconds of {best['optax']} over ours in {first}",
            compares="seconds",
            reason="; ".join(filter(None, [others.missing(), *field.failures])) or None,
            memory=f"temporaries of ours{BLOCKS} are 1/{memory[1] / max(memory[0], 1):.3g} of "
            "theirs; gradients are results",
            screening=f"settings that are not the best of their side: {sizes.screening} rounds",
            roofline=f"the three products that autodiff makes; ours{BLOCKS} makes a fourth",
            tokens=sizes.tokens,
            width=sizes.width,
            vocab=vocab,
        ),
    )


def _arguments(sizes: CrossEntropySizes, vocab: int) -> tuple[jax.Array, ...]:
    draw = np.random.default_rng(0)

    def make(*shape):
        return jnp.asarray(draw.standard_normal(shape, np.float32))

    labels = jnp.asarray(draw.integers(0, vocab, sizes.tokens), jnp.int32)
    return (
        make(sizes.tokens, sizes.width),
        make(vocab, sizes.width) * 0.02,
        jnp.zeros((vocab,)),
        labels,
    )


def _ours(precision: Precision, impl: Impl) -> Callable[..., jax.Array]:
    return lambda *arguments: linear_cross_entropy(
        *arguments, precision=precision, impl=impl
    ).mean()


def _optax(features, table, bias, labels, *, types) -> jax.Array:
    dtype, accumulated = types
    scores = jnp.einsum(
        "td,vd->tv", features.astype(dtype), table.astype(dtype), preferred_element_type=accumulated
    )
    scores = scores.astype(jnp.float32) + bias
    return optax.softmax_cross_entropy_with_integer_labels(scores, labels).mean()
