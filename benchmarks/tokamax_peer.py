"""tokamax, a library of JAX kernels, as an optional peer. It is measured in our own process."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from ptm_jax.bench.attention import Case
from ptm_jax.bench.peers import Program

SIDE = "tokamax"


def missing() -> str | None:
    """Returns the reason why it is not measured, or None."""
    if importlib.util.find_spec(SIDE) is None:
        return "tokamax not installed"
    try:
        import tokamax  # noqa: F401
        from absl import flags

        if not flags.FLAGS.is_parsed():
            # otherwise it parses our command line and fails on our options
            flags.FLAGS.mark_as_parsed()
    except Exception as error:  # e.g. incompatible versions of its dependencies
        return f"tokamax cannot be imported: {_line(error)}"
    return None


def implementation() -> str | None:
    """Returns the implementation to request: XLA on a CPU, where its kernels do not run, else None
    (its own choice)."""
    return "xla" if jax.default_backend() == "cpu" else None


def programs(make: Callable[[str], Program]) -> tuple[dict[str, Program], list[str]]:
    """Returns ({name: make(precision)} for programs that run, one line for each that fails)."""
    if reason := missing():
        return {}, [reason]
    found, failures = {}, []
    for precision in ("float32", "bfloat16"):
        name = f"{SIDE}, {precision}, {implementation() or 'its choice'}"
        try:
            program = make(precision)
            jax.block_until_ready(program[0]())
        except Exception as error:
            failures.append(f"{name}: {_line(error)}")
        else:
            found[name] = program
    return found, failures


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def attention(case: Case, compute: str) -> Program:
    """Compiles `tokamax.dot_product_attention` with the bias or mask of a case."""
    from tokamax import dot_product_attention

    def attend(q, k, v, table):
        given: dict[str, Any] = {"is_causal": True} if case.name == "causal" else {}
        if case.name == "t5":
            given = {"bias": table[case.buckets].transpose(2, 0, 1)[None]}
        if case.name == "packed":
            given = {
                "mask": jnp.asarray(case.segments[:, :, None] == case.segments[:, None, :])[:, None]
            }
        return dot_product_attention(
            q, k, v, scale=case.scale, implementation=implementation(), **given
        )

    return case.compiled(attend, jnp.dtype(compute))


def cross_entropy(arguments: tuple[jax.Array, ...], compute: str) -> Program:
    """Compiles `tokamax.linear_softmax_cross_entropy_loss` of features and table [D, V]; it has no
    bias."""
    from tokamax import linear_softmax_cross_entropy_loss

    features, table, _, labels = arguments
    given = features, table.T, labels
    dtype, options = jnp.dtype(compute), {"reduction": "mean", "implementation": implementation()}

    def loss(features, table, labels):
        return linear_softmax_cross_entropy_loss(
            features.astype(dtype), labels, table.astype(dtype), **options
        )

    program = jax.jit(jax.value_and_grad(loss, (0, 1))).lower(*given).compile()
    return functools.partial(program, *given), program.memory_analysis().temp_size_in_bytes
