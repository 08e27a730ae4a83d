"""Alternating timing, and the machine's rates for matrix products, copies and disk reads."""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ptm_jax.bench.record import threads

Meter = Callable[[], float]
"""Runs its work once to completion and returns the measurement: seconds or a rate."""

Say = Callable[[str], None]


def clocked(function: Callable[[], Any]) -> Meter:
    """Returns a meter of the seconds from a call until its result is ready."""

    def meter() -> float:
        start = time.perf_counter()
        jax.block_until_ready(function())
        return max(time.perf_counter() - start, 1e-9)

    return meter


def alternate(
    meters: Mapping[str, Meter], rounds: int, *, warmup: int = 1, say: Say | None = None
) -> dict[str, list[float]]:
    """Returns the values of every meter over `rounds` rounds.
    The order of the meters is reversed in every second round."""
    results: dict[str, list[float]] = {name: [] for name in meters}
    for number in range(-warmup, rounds):
        order = list(meters) if number % 2 == 0 else list(meters)[::-1]
        values = {name: meters[name]() for name in order}
        if number >= 0:
            for name, value in values.items():
                results[name].append(value)
        if say and number >= 0 and (number + 1 == rounds or (number + 1) % 5 == 0):
            say(f"  {number + 1} of {rounds} rounds")
    return results


class Step:
    """A meter of a step `(state, ...) -> (state, ...)` with donated state.
    Each call continues from the last state."""

    def __init__(self, step: Callable[..., Any], state: Any, *args: Any):
        self._step, self.state, self._args = step, state, args

    def __call__(self) -> float:
        start = time.perf_counter()
        self.state, metrics = self._step(self.state, *self._args)
        jax.block_until_ready((self.state, metrics))
        return max(time.perf_counter() - start, 1e-9)


def products(size: int = 2048) -> Meter:
    """Returns a meter of the FLOP/s of a product of two matrices [size, size].
    Accumulation is in float32.

    It is the best of bfloat16 and float32: without units for bfloat16 a CPU is slower in it."""
    multiply = jax.jit(lambda x: jnp.matmul(x, x, preferred_element_type=jnp.float32))
    both = [jnp.full((size, size), 0.5, dtype) for dtype in (jnp.bfloat16, jnp.float32)]
    meters = [clocked(functools.partial(multiply, x)) for x in both]
    for seconds in meters:
        seconds()
    return lambda: 2.0 * size**3 / min(seconds() for seconds in meters for _ in range(3))


def copies(megabytes: int = 256) -> Meter:
    """Returns a meter of the bytes/s copied by all cores together.
    Reads and writes both count (STREAM copy)."""
    source = np.ones((threads(), megabytes * 1_000_000 // threads()), np.uint8)
    target = np.zeros_like(source)
    pool = concurrent.futures.ThreadPoolExecutor(len(source))

    def once() -> None:
        list(pool.map(np.copyto, target, source))

    seconds = clocked(once)
    seconds()
    return lambda: 2 * source.nbytes / seconds()


def read_raw(paths: list[Path]) -> float:
    """Returns the bytes/s of reading files.
    They come from the disk if the system allows dropping its page cache."""
    forget(paths)
    size, start = 0, time.perf_counter()
    buffer = bytearray(1 << 24)
    for path in paths:
        with open(path, "rb", buffering=0) as file:
            while count := file.readinto(buffer):
                size += count
    return size / max(time.perf_counter() - start, 1e-9)


def forget(paths: list[Path]) -> None:
    """Drops files from the page cache, so that the next read comes from the disk."""
    if not hasattr(os, "posix_fadvise"):
        return
    for path in paths:
        with open_handle(path) as handle:
            os.fsync(handle)
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)


@contextlib.contextmanager
def open_handle(path: Path) -> Iterator[int]:
    handle = os.open(path, os.O_RDONLY)
    try:
        yield handle
    finally:
        os.close(handle)
