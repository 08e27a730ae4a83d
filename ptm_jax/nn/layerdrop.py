"""LayerDrop: skips layers at random in training (Fan et al. 2020, arXiv 1909.11556)."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from ptm_jax.core import spec
from ptm_jax.nn.blocks import Block
from ptm_jax.nn.layers import Context


class DroppedBlock(Block):
    """A `Block` that a training step skips with probability `skip` (FlauBERT).

    It skips it for all rows at once.
    """

    skip: float = 0.0

    def __call__(self, x, context: Context, cache=None, source=None):
        out, probabilities, cache = super().__call__(x, context, cache, source)
        if not context.train or self.skip == 0.0:
            return out, probabilities, cache
        left_out = jax.random.bernoulli(self.make_rng("dropout"), self.skip)
        return jnp.where(left_out, x, out), probabilities, cache


def dropped(block: Block, skip: float) -> Block:
    """Returns a block that is skipped with probability `skip`; the block itself for 0."""
    return DroppedBlock(**spec.values_of(block), skip=skip) if skip else block


def skip_of(block: Block) -> float:
    """Returns the probability with which a block is skipped."""
    return block.skip if isinstance(block, DroppedBlock) else 0.0
