"""How fast a device can multiply matrices, and which share of that a run reaches.

Peaks are the vendors' dense figures per chip, in FLOP/s:
- TPU: Google Cloud, "TPU v4", "v5e", "v5p", "v6e" system architecture pages (bfloat16). JAX multiplies float32 in
  bfloat16 passes there unless told otherwise, so float32 has the same peak.
- V100 (SXM2), A100, H100 (SXM, PCIe, NVL), H200: NVIDIA's data sheets, without sparsity. float32 is TF32 from A100 on,
  which is what XLA uses; V100 has no bfloat16 units and computes it in float32.
- CPU: no data sheet holds, so the rate of one matrix product is measured, once per process. It is the host's,
  whatever the number of forced devices, and another process that computes at that moment lowers it.
"""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Sequence

import jax
import jax.numpy as jnp

# Pattern of `device.device_kind`, bfloat16 and float32 peak in TFLOP/s; the first match wins.
_PEAKS = (
    (r"TPU v4$", 275.0, 275.0),
    (r"TPU v5 ?(lite|e)", 197.0, 197.0),
    (r"TPU v5p?$", 459.0, 459.0),
    (r"TPU v6 ?(lite|e)", 918.0, 918.0),
    (r"H200", 989.4, 494.7),
    (r"H100.*PCIe", 756.0, 378.0),
    (r"H100.*NVL", 835.0, 417.5),
    (r"H100", 989.4, 494.7),
    (r"A100", 312.0, 156.0),
    (r"V100", 15.7, 15.7),
)


def peak_flops(device: jax.Device, dtype: str = "bfloat16") -> float | None:
    """The dense matrix-product peak of a device in FLOP/s, or None where it is not known."""
    if device.platform == "cpu":
        return _measured(jnp.dtype(dtype).name)
    for pattern, bfloat16, float32 in _PEAKS:
        if re.search(pattern, device.device_kind):
            return 1e12 * (float32 if jnp.dtype(dtype) == jnp.float32 else bfloat16)
    return None


def utilisation(flops: float, seconds: float, devices: Sequence[jax.Device], dtype: str = "bfloat16") -> float | None:
    """The share of the devices' peak that `flops` in `seconds` are, or None where a peak is not known."""
    # The devices of one host's CPU are the same cores.
    distinct = {("cpu", d.process_index) if d.platform == "cpu" else d: d for d in devices}
    peaks = [peak_flops(device, dtype) for device in distinct.values()]
    if seconds <= 0 or not peaks or None in peaks:
        return None
    return flops / seconds / sum(peaks)


@functools.cache
def _measured(dtype: str, size: int = 1024, repeats: int = 6) -> float:
    """FLOP/s of the best of a few products [size, size] x [size, size], accumulated in float32."""
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
