"""Strictly alternating timing, and the rates that a machine reaches at that moment: products, copies, the disk."""

from __future__ import annotations

import concurrent.futures
import contextlib
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
"""Does its work once, to the end, and returns what was measured: seconds, or a rate."""

Say = Callable[[str], None]


def clocked(function: Callable[[], Any]) -> Meter:
    """A meter of the seconds that a call takes until its result is there."""

    def meter() -> float:
        start = time.perf_counter()
        jax.block_until_ready(function())
        return time.perf_counter() - start

    return meter


def alternate(
    meters: Mapping[str, Meter], rounds: int, *, warmup: int = 1, say: Say | None = None
) -> dict[str, list[float]]:
    """What every meter says in `rounds` rounds; in each, all take their turn, in the reverse order every other time."""
    found: dict[str, list[float]] = {name: [] for name in meters}
    for number in range(-warmup, rounds):
        order = list(meters) if number % 2 == 0 else list(meters)[::-1]
        values = {name: meters[name]() for name in order}
        if number >= 0:
            for name, value in values.items():
                found[name].append(value)
        if say and number >= 0 and (number + 1 == rounds or (number + 1) % 5 == 0):
            say(f"  {number + 1} of {rounds} rounds")
    return found


class Step:
    """A meter of a step `(state, ...) -> (state, ...)` whose state is donated: it goes on from where it was."""

    def __init__(self, step: Callable[..., Any], state: Any, *args: Any):
        self._step, self.state, self._args = step, state, args

    def __call__(self) -> float:
        start = time.perf_counter()
        self.state, metrics = self._step(self.state, *self._args)
        jax.block_until_ready((self.state, metrics))
        return time.perf_counter() - start


def products(size: int = 2048) -> Meter:
    """A meter of FLOP/s: one product of two bfloat16 matrices [size, size], accumulated in float32."""
    x = jnp.full((size, size), 0.5, jnp.bfloat16)
    multiply = jax.jit(lambda a, b: jnp.matmul(a, b, preferred_element_type=jnp.float32))
    seconds = clocked(lambda: multiply(x, x))
    seconds()
    return lambda: 2.0 * size**3 / min(seconds() for _ in range(3))


def copies(megabytes: int = 256) -> Meter:
    """A meter of bytes/s that all cores together copy, what is read and what is written counted both (STREAM copy)."""
    source = np.ones((threads(), megabytes * 1_000_000 // threads()), np.uint8)
    target = np.zeros_like(source)
    pool = concurrent.futures.ThreadPoolExecutor(len(source))

    def once() -> None:
        list(pool.map(np.copyto, target, source))

    seconds = clocked(once)
    seconds()
    return lambda: 2 * source.nbytes / seconds()


def write_raw(folder: Path, size: int) -> float:
    """Bytes/s at which `size` bytes go to a file in `folder`, until they are on the disk."""
    chunk = np.random.default_rng(0).bytes(1 << 24)
    path = folder / "raw.bin"
    start = time.perf_counter()
    with open(path, "wb", buffering=0) as file:
        for begin in range(0, size, len(chunk)):
            file.write(chunk[: size - begin])
        os.fsync(file.fileno())
    return size / (time.perf_counter() - start)


def read_raw(paths: list[Path]) -> float:
    """Bytes/s at which files are read, from the disk where the system lets us drop them from memory."""
    forget(paths)
    size, start = 0, time.perf_counter()
    buffer = bytearray(1 << 24)
    for path in paths:
        with open(path, "rb", buffering=0) as file:
            while count := file.readinto(buffer):
                size += count
    return size / (time.perf_counter() - start)


def forget(paths: list[Path]) -> None:
    """Drop files from the system's memory, so that the next read comes from the disk."""
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


def files(folder: Path) -> list[Path]:
    """All files under a folder, sorted."""
    return sorted(path for path in folder.rglob("*") if path.is_file())
