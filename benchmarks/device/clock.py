"""Seconds of a call on a device, and the two rates that bound every kernel."""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable
from typing import Any

ROUNDS, ROUND = 5, 0.03
"""Rounds of a measurement, and the least seconds of one."""


def seconds(call: Callable[[], Any], wait: Callable[[Any], Any]) -> float:
    """Returns the median seconds of a call. Calls of a round are queued; `wait` ends a round."""
    wait(call())
    start = time.perf_counter()
    wait(call())
    count = max(1, min(200, int(ROUND / max(time.perf_counter() - start, 1e-6))))
    rounds = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        for _ in range(count):
            result = call()
        wait(result)
        rounds.append((time.perf_counter() - start) / count)
    return statistics.median(rounds)


def of_jax(program: Callable[..., Any], *given: Any) -> float:
    """Returns the median seconds of a call of a compiled program."""
    import jax

    return seconds(functools.partial(program, *given), jax.block_until_ready)


def rates(dry: bool) -> dict[str, float]:
    """Returns FLOP/s of a bfloat16 product of two matrices and bytes/s of a copy."""
    import jax
    import jax.numpy as jnp

    size = 256 if dry else 8192
    x = jax.random.normal(jax.random.key(0), (size, size), jnp.bfloat16)
    long = jnp.ones((1 << (20 if dry else 30),), jnp.bfloat16)
    product = of_jax(jax.jit(lambda x: x @ x), x)
    copy = of_jax(jax.jit(lambda x: -x), long)
    return {"gemm": 2 * size**3 / product, "copy": 2 * long.nbytes / copy}
