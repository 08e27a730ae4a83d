"""Utilisation: the share of the devices' peak FLOP/s that a run reaches. Peaks of chips are in `mesh.chips`.

For a CPU the rate of a matrix product is measured, once per process. The rate is that of the whole host, independent of the
number of forced devices. Other processes that compute at the same time lower it.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from ptm_jax.mesh.chips import chip_of


def peak_flops(device: jax.Device, dtype: str = "bfloat16") -> float | None:
    """Returns the peak of dense matrix products of a device in FLOP/s, or None if unknown."""
    if device.platform == "cpu":
        return _measured(jnp.dtype(dtype).name)
    if (chip := chip_of(device.device_kind)) is None:
        return None
    return chip.float32 if jnp.dtype(dtype) == jnp.float32 else chip.bfloat16


def utilisation(flops: float, seconds: float, devices: Sequence[jax.Device], dtype: str = "bfloat16") -> float | None:
    """Returns the share of the devices' peak for `flops` in `seconds`, or None if a peak is unknown."""
    # All CPU devices of a host share its cores.
    distinct = {("cpu", d.process_index) if d.platform == "cpu" else d: d for d in devices}
    peaks = [peak_flops(device, dtype) for device in distinct.values()]
    if seconds <= 0 or not peaks or None in peaks:
        return None
    return flops / seconds / sum(peaks)


@functools.cache
def _measured(dtype: str, size: int = 1024, repeats: int = 6) -> float:
    """Measures products [size, size] x [size, size], accumulated in float32. Returns the best FLOP/s."""
    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        x = jnp.full((size, size), 0.5, dtype)
        product = jax.jit(lambda a, b: jnp.matmul(a, b, preferred_element_type=jnp.float32))
        product(x, x).block_until_ready()
        best = float("inf")
        for _ in range(repeats):
            start = time.perf_counter()
            product(x, x).block_until_ready()
            best = min(best, time.perf_counter() - start)
    return 2.0 * size**3 / best
