"""Chooses the implementation of a kernel from the config's `impl`.

`impl` is a field of `nn.attention.multihead.Attention`; `Experiment.impl` sets it for all of them:

    reference   the definition of correct results; holds every score; only it returns probabilities
    xla         computes by blocks, on every platform
    native      our kernels in C++ for CPUs, forward and backward
    pallas      our kernel for TPU or GPU
    splash      JAX's kernel for TPU, for rows without order
    cudnn       NVIDIA's kernel, for plain attention
    tokamax     that package's kernels, where it is installed

"auto" selects for attention:

    devices              scores per row and head   selected    reason
    cpu                  any                       native      scores stay in the cache; only if
                                                               the kernels compute this case here
    cpu                  at most SHORT, 192^2      reference   at least as fast as a loop over
                                                               small blocks (measured)
    cpu                  more                      xla         blocks stay in the cache, products
                                                               have two dimensions
    tpu, gpu, attached   any                       measured    the fastest one whose results are
                                                               right there (`kernels.deciding`)
    tpu, a topology      any                       reference   no device can be measured (`ptm
                                                               plan`)

There is no fallback: if the named implementation cannot compute a case, its module's `refusal`
returns the reason, which is raised as a UserError.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import get_args

import jax

from ptm_jax.core.constraint import current
from ptm_jax.core.errors import UserError
from ptm_jax.core.precision import Impl

IMPLS: tuple[str, ...] = get_args(Impl)
SHORT = 192 * 192


@dataclasses.dataclass(frozen=True)
class Kernel:
    """A kernel for a kind of device, and how it was tested.

    module    the module of `ptm_jax.kernels` that launches it
    compiled  targets for which it compiles, forward and backward
    checked   the reference that its results match, and where it ran for this check
    ran       devices on which we ran it; elsewhere "auto" relies on the device's own check
    """

    name: str
    module: str
    platform: str
    compiled: str
    checked: str
    ran: tuple[str, ...] = ()

    @property
    def hardware(self) -> str:
        """The devices on which it ran, as text."""
        return ", ".join(self.ran) or "not run on hardware"


_TPUS, _CUDA = "v4, v5e, v5p, v6e", "sm_90a"
_TPU, _GPU = "float64, in Pallas' interpreter", "float64, in an interpreter of Mosaic GPU"
_H200 = ("NVIDIA H200",)  # 2026-11-26, `python -m benchmarks.device`
KERNELS = (
    Kernel("attention, forward", "attention.tpu_block", "tpu", _TPUS, _TPU),
    Kernel("attention, backward", "attention.tpu_block", "tpu", _TPUS, _TPU),
    Kernel("attention, forward", "attention.gpu_pipeline", "gpu", _CUDA, _GPU, _H200),
    Kernel("attention, backward", "attention.gpu_pipeline", "gpu", _CUDA, _GPU, _H200),
    Kernel("attention with scores by key", "attention.gpu_pipeline", "gpu", _CUDA, _GPU),
    Kernel("cross-entropy, forward", "cross_entropy.tpu", "tpu", _TPUS, _TPU),
    Kernel("cross-entropy, backward", "cross_entropy.tpu", "tpu", _TPUS, _TPU),
    Kernel("scale-mask-softmax, forward and backward", "softmax.tpu", "tpu", _TPUS, _TPU),
    Kernel(
        "ring attention (XLA, no Pallas)", "ring", "tpu", _TPUS, "one device, on eight of the CPU"
    ),
)


def choose(
    impl: str, platform: str, queries: int, keys: int, refusal: Callable[[str], str | None]
) -> str:
    """Returns the implementation of attention for `impl` and these lengths.

    Raises UserError if `refusal` returns a reason against the named implementation."""
    if named(impl) == "auto":
        if platform == "cpu" and refusal("native") is None:
            return "native"
        return "xla" if platform == "cpu" and queries * keys > SHORT else "reference"
    if why := refusal(impl):
        raise UserError(f"impl={impl!r} cannot compute this attention: {why}")
    return impl


def first() -> jax.Device | None:
    """Returns the first device of the layout; None without a layout or with an abstract mesh."""
    layout = current()
    return (
        None
        if layout is None or isinstance(layout.mesh, jax.sharding.AbstractMesh)
        else layout.mesh.devices.flat[0]
    )


def platform() -> str:
    """Returns the platform of the layout's devices, or JAX's default backend.

    The devices may be those of a topology.
    """
    name = first().platform if first() else jax.default_backend()
    return "gpu" if name in ("cuda", "rocm") else name


def named(impl: str) -> str:
    """Returns `impl`. Raises UserError if no implementation has this name."""
    if impl not in IMPLS:
        raise UserError(
            f"there is no implementation {impl!r} of a kernel; impl is one of {', '.join(IMPLS)}"
        )
    return impl
