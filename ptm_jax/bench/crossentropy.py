"""Cross-entropy of a linear layer over a vocabulary, forward and backward, beside optax with the projection, torch and
tokamax."""

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

from ptm_jax.bench import peer, timing, tokamax_peer
from ptm_jax.bench.record import Entry, median, over, settings, spread, threads
from ptm_jax.core.precision import Precision
from ptm_jax.kernels.cross_entropy import linear_cross_entropy


@dataclasses.dataclass(frozen=True, kw_only=True)
class CrossEntropySizes:
    """`vocabularies` are measured one after the other; `screening` rounds choose the best of the others' settings."""

    tokens: int = 1024
    width: int = 768
    vocabularies: tuple[int, ...] = (30522, 250002)
    screening: int = 2
    gemm: int = 2048


# optax says nothing of the projection: the ways in which one writes it.
OTHERS: Mapping[str, tuple[Any, Any]] = {
    "optax, float32": (jnp.float32, jnp.float32),
    "optax, bfloat16": (jnp.bfloat16, jnp.bfloat16),
    "optax, bfloat16, accumulated in float32": (jnp.bfloat16, jnp.float32),
}
TORCH = ("float32", "bfloat16 autocast")
SIDES = ("optax", "torch", tokamax_peer.SIDE)


def run(sizes: CrossEntropySizes, repeats: int, say: timing.Say) -> list[Entry]:
    """One row for each vocabulary: seconds of the loss and its gradients to features, table and bias."""
    return [_entry(sizes, vocab, repeats, say) for vocab in sizes.vocabularies]


def _entry(sizes: CrossEntropySizes, vocab: int, repeats: int, say: timing.Say) -> Entry:
    say(f"cross_entropy: compiling for {vocab:,} words")
    arguments = _arguments(sizes, vocab)
    ours = {name: _ours(Precision(name)) for name in ("bfloat16", "float32")}
    programs = {**ours, **{name: functools.partial(_optax, *types) for name, types in OTHERS.items()}}
    steps = {name: jax.jit(jax.value_and_grad(f, (0, 1, 2))).lower(*arguments).compile() for name, f in programs.items()}
    meters = {name: timing.clocked(functools.partial(step, *arguments)) for name, step in steps.items()}
    tokamax, failures = tokamax_peer.programs(functools.partial(_tokamax, arguments))
    meters |= {name: timing.clocked(call) for name, (call, _) in tokamax.items()}
    with contextlib.ExitStack() as stack:
        absent = peer.missing()
        if not absent:
            task = {"tokens": sizes.tokens, "width": sizes.width, "vocab": vocab}
            child = stack.enter_context(peer.Peer("cross_entropy", task, threads()))
            meters |= {f"torch, {name}": functools.partial(child, {"precision": name}) for name in TORCH}
        say(f"cross_entropy: {len(meters)} settings")
        tried = timing.alternate(meters, sizes.screening, warmup=1)
        seconds = {name: {"seconds": median(times)} for name, times in tried.items()}
        ranked = sorted(meters, key=lambda name: seconds[name]["seconds"])
        best = {side: next((name for name in ranked if name.startswith(side)), None) for side in SIDES}
        chosen = {name: meters[name] for name in ("bfloat16", *best.values()) if name}
        found = timing.alternate({**chosen, "gemm": timing.products(sizes.gemm)}, repeats, warmup=1, say=say)
    for name in chosen:
        seconds[name] = {"seconds": median(found[name])}
    held = {name: step.memory_analysis().temp_size_in_bytes for name, step in steps.items()}
    for name, count in (held | {name: count for name, (_, count) in tokamax.items()}).items():
        seconds[name]["temporary_bytes"] = count
    ratios = over(found[best["optax"]], found["bfloat16"])
    peers = {name: figures for name, figures in seconds.items() if name not in ours}
    for name in filter(None, (best[side] for side in SIDES[1:])):
        peers[name]["over ours"] = median(over(found[name], found["bfloat16"]))
    memory = [seconds[name]["temporary_bytes"] for name in ("bfloat16", best["optax"])]
    operations = 6.0 * sizes.tokens * sizes.width * vocab
    return Entry(
        name=f"cross_entropy/{vocab}",
        ours={name: seconds[name] for name in ours},
        peers=peers,
        ratio=median(ratios),
        spread=spread(ratios),
        roofline=_roofline(operations, found),
        settings=settings(
            ratio=f"seconds of {best['optax']} over ours in bfloat16",
            compares="seconds",
            reason="; ".join([*([absent] if absent else []), *failures]) or None,
            tokamax="linear_softmax_cross_entropy_loss, which has no bias" if tokamax else None,
            memory=f"temporaries of ours are 1/{memory[1] / max(memory[0], 1):.3g} of theirs; gradients are results",
            screening=f"settings that are not the best of their side: {sizes.screening} rounds",
            roofline="the three products that autodiff makes; ours makes a fourth",
            tokens=sizes.tokens,
            width=sizes.width,
            vocab=vocab,
        ),
    )


def _roofline(operations: float, found: Mapping[str, list[float]]) -> dict[str, float]:
    shares = [operations / took / rate for took, rate in zip(found["bfloat16"], found["gemm"], strict=True)]
    return {"gemm_flops_per_second": median(found["gemm"]), "model_flops": operations, "share": median(shares)}


def _arguments(sizes: CrossEntropySizes, vocab: int) -> tuple[jax.Array, ...]:
    draw = np.random.default_rng(0)
    make = lambda *shape: jnp.asarray(draw.standard_normal(shape, np.float32))
    labels = jnp.asarray(draw.integers(0, vocab, sizes.tokens), jnp.int32)
    return make(sizes.tokens, sizes.width), make(vocab, sizes.width) * 0.02, jnp.zeros((vocab,)), labels


def _ours(precision: Precision) -> Callable[..., jax.Array]:
    return lambda *given: linear_cross_entropy(*given, precision=precision, impl="xla").mean()


def _optax(dtype, accumulated, features, table, bias, labels) -> jax.Array:
    scores = jnp.einsum("td,vd->tv", features.astype(dtype), table.astype(dtype), preferred_element_type=accumulated)
    scores = scores.astype(jnp.float32) + bias
    return optax.softmax_cross_entropy_with_integer_labels(scores, labels).mean()


def _tokamax(arguments: tuple[jax.Array, ...], compute: str) -> tokamax_peer.Program:
    """tokamax's own, of features and table; the table lies as it wants it, [D, V]."""
    from tokamax import linear_softmax_cross_entropy_loss

    features, table, _, labels = arguments
    given = features, table.T, labels
    dtype, options = jnp.dtype(compute), {"reduction": "mean", "implementation": tokamax_peer.implementation()}

    def loss(features, table, labels):
        return linear_softmax_cross_entropy_loss(features.astype(dtype), labels, table.astype(dtype), **options)

    program = jax.jit(jax.value_and_grad(loss, (0, 1))).lower(*given).compile()
    return functools.partial(program, *given), program.memory_analysis().temp_size_in_bytes
