"""Which implementation of a kernel runs: a value in the config, and a table for "auto".

What "auto" takes for attention (`impl` of `nn.attention.Attention`, and `Experiment.impl` for all of them):

    platform   scores of a row and head     taken       why
    cpu        at most SHORT, 192^2         reference   as fast or faster than a loop over small blocks (measured)
    cpu        more                         xla         blocks stay in the cache, and products have two dimensions (measured)
    tpu, gpu   any                          reference   `KERNELS` has none that was run on hardware; impl='pallas' takes them

    reference   the definition of correct; holds every score, and alone returns probabilities
    xla         by blocks, on every platform        pallas   a kernel for TPU or GPU        cudnn   NVIDIA's, plain attention

No exception is caught: what a named implementation cannot do, its module's `refusal` says, and that is a UserError.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import get_args

from ptm_jax.core.errors import UserError
from ptm_jax.core.precision import Impl

IMPLS: tuple[str, ...] = get_args(Impl)
SHORT = 192 * 192


@dataclasses.dataclass(frozen=True)
class Kernel:
    """What is written for a device, and how far it has been tried without one.

    module    of `ptm_jax.kernels` that launches it
    compiled  for what a compiler takes it, forward and backward
    checked   what its numbers are those of: the definition in a type, or one device; and where
    ran       devices on which it was run; "auto" takes no kernel that has none
    """

    name: str
    module: str
    platform: str
    compiled: str
    checked: str
    ran: tuple[str, ...] = ()

    @property
    def hardware(self) -> str:
        """What its row says."""
        return ", ".join(self.ran) or "not run on hardware"


_TPUS, _CUDA = "v4, v5e, v5p, v6e", "lowered for cuda"
_TPU, _GPU = "float64, in Pallas' interpreter", "float64, in an interpreter of Mosaic GPU"
KERNELS = (
    Kernel("attention, forward", "attention.tpu_block", "tpu", _TPUS, _TPU),
    Kernel("attention, backward", "attention.tpu_block", "tpu", _TPUS, _TPU),
    Kernel("attention, forward", "attention.gpu_tile", "gpu", _CUDA, _GPU),
    Kernel("attention, backward", "attention.gpu_tile", "gpu", _CUDA, _GPU),
    Kernel("cross-entropy, forward", "cross_entropy.tpu", "tpu", _TPUS, _TPU),
    Kernel("cross-entropy, backward", "cross_entropy.tpu", "tpu", _TPUS, _TPU),
    Kernel("scale-mask-softmax, forward and backward", "softmax", "tpu", _TPUS, _TPU),
    Kernel("ring attention (XLA, no Pallas)", "ring", "tpu", _TPUS, "one device, on eight of the CPU"),
)


def choose(impl: str, platform: str, queries: int, keys: int, refusal: Callable[[str], str | None]) -> str:
    """The implementation of attention that `impl` means for rows of these lengths. Raises UserError."""
    if named(impl) == "auto":
        return "xla" if platform == "cpu" and queries * keys > SHORT else "reference"
    if why := refusal(impl):
        raise UserError(f"impl={impl!r} cannot compute this attention: {why}")
    return impl


def named(impl: str) -> str:
    """`impl`, if there is one of that name. Raises UserError."""
    if impl not in IMPLS:
        raise UserError(f"there is no implementation {impl!r} of a kernel; impl is one of {', '.join(IMPLS)}")
    return impl
