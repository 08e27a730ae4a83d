"""tokamax's attention, if the package is installed; it selects its kernel for a TPU or GPU.

Inputs and refusals are as in `cudnn`, without the limit on the heads.
"""

from __future__ import annotations

from ptm_jax.core.types import Array
from ptm_jax.kernels.attention import cudnn
from ptm_jax.kernels.attention.arguments import Arguments


def refusal(q: Array, k: Array, args: Arguments) -> str | None:
    """Returns why tokamax cannot compute this and what to use instead, or None."""
    del q, k
    return cudnn.lacks(args)


def attention(q: Array, k: Array, v: Array, args: Arguments) -> Array:
    """Returns the result of `reference.attention`, [B, Lq, H, K] in the precision's type."""
    from absl import flags
    from tokamax import dot_product_attention

    if not flags.FLAGS.is_parsed():
        # otherwise it parses our command line and fails on our options
        flags.FLAGS.mark_as_parsed()
    return cudnn.masked(dot_product_attention, q, k, v, args)
