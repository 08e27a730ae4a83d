"""Memory of devices, and utilisation: the share of the peak FLOP/s that a run reaches.
Peaks of chips are in `mesh.chips`.

For a CPU the rate of a matrix product is measured in the process. The rate is for the whole host,
independent of the number of forced devices. It is the best of the compute type and float32, to
which XLA may convert bfloat16 where that is faster. Other processes that compute at the same time
lower it: a run that is faster measures it once more, and has no utilisation if it is still faster.
"""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp

from ptm_jax.core.errors import UserError
from ptm_jax.mesh.chips import chip_of

PLATFORMS = ("JAX_PLATFORMS", "JAX_PLATFORM_NAME")
"""Variables of the environment that choose the platform of JAX."""


def absent_platform(error: BaseException | None = None) -> UserError | None:
    """Returns the error for a platform that the environment names and this machine lacks, or None.

    `error` is the exception that JAX raised; an AssertionError without text is one of them."""
    variable = next((name for name in PLATFORMS if os.environ.get(name)), None)
    if variable is None or not isinstance(error, AssertionError | RuntimeError | None):
        return None
    try:
        jax.devices()
    except (AssertionError, RuntimeError):
        value = os.environ[variable]
        return UserError(
            f"{variable} is {value!r}, and JAX finds no such device here: unset {variable} to take "
            'the devices that there are, or install the packages of this one (pip install "'
            'ptm_jax[gpu]" for cuda, "ptm_jax[tpu]" for tpu) on a machine that has it'
        )
    return None


@contextlib.contextmanager
def checking_platform() -> Iterator[None]:
    """Raises `absent_platform` in the place of JAX's own exception for it."""
    try:
        yield
    except (AssertionError, RuntimeError) as error:
        if (reason := absent_platform(error)) is None:
            raise
        raise reason from None


def peak_flops(device: jax.Device, dtype: str = "bfloat16", rounds: int = 1) -> float | None:
    """Returns the peak of dense matrix products of a device in FLOP/s, or None if unknown.

    rounds    measurements of a CPU, whose best counts"""
    if device.platform == "cpu":
        return max(
            _measured(name, number)
            for name in {jnp.dtype(dtype).name, "float32"}
            for number in range(rounds)
        )
    if (chip := chip_of(device.device_kind)) is None:
        return None
    return chip.float32 if jnp.dtype(dtype) == jnp.float32 else chip.bfloat16


def utilisation(
    flops: float, seconds: float, devices: Sequence[jax.Device], dtype: str = "bfloat16"
) -> float | None:
    """Returns the share of the devices' peak for `flops` in `seconds`, at most 1.
    None if a peak is unknown."""
    # All CPU devices of a host share its cores.
    distinct = {("cpu", d.process_index) if d.platform == "cpu" else d: d for d in devices}
    for rounds in (1, 2):
        peaks = [peak_flops(device, dtype, rounds) for device in distinct.values()]
        if seconds <= 0 or not peaks or None in peaks:
            return None
        if (share := flops / seconds / sum(peaks)) <= 1:
            return share
    return None


def free_memory(device: jax.Device) -> int | None:
    """Returns the free memory of a device in bytes (for a CPU, of its host or container).
    None if unknown."""
    if device.platform != "cpu":
        stats = device.memory_stats() or {}
        return stats["bytes_limit"] - stats["bytes_in_use"] if "bytes_limit" in stats else None
    limits = []
    with contextlib.suppress(OSError, ValueError, IndexError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        limits += [
            1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")
        ]
    with contextlib.suppress(OSError, ValueError):  # "max": no limit
        limit, used = (
            int(Path("/sys/fs/cgroup", name).read_text())
            for name in ("memory.max", "memory.current")
        )
        limits.append(limit - used)
    return min(limits, default=None)


@functools.cache
def _measured(
    dtype: str, number: int = 0, sizes: Sequence[int] = (512, 1024), repeats: int = 6
) -> float:
    """Measures products [size, size] x [size, size], accumulated in float32.
    Returns the best FLOP/s.

    `number` counts the measurements."""
    product, best = jax.jit(lambda a, b: jnp.matmul(a, b, preferred_element_type=jnp.float32)), 0.0
    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        for size in sizes:
            x = jnp.full((size, size), 0.5, dtype)
            product(x, x).block_until_ready()
            for _ in range(repeats):
                start = time.perf_counter()
                product(x, x).block_until_ready()
                best = max(best, 2.0 * size**3 / max(time.perf_counter() - start, 1e-9))
    return best
