"""Attention whose scores depend on the layer: GPT-2's `scale_attn_by_inverse_layer_idx` (Mistral of
stanford-crfm)."""

from __future__ import annotations

import dataclasses

import flax.linen as nn
import jax.numpy as jnp

from ptm_jax.kernels.scores import Scores
from ptm_jax.nn.blocks import Stack
from ptm_jax.nn.layers import Context


class NumberedStack(Stack):
    """A `Stack` whose blocks know their layer: `context.layer` is its number, from 0."""

    def _layers(self, scanned, layer, x, cache, context):
        def numbered(block, x, numbers_and_cache, context):
            number, cache = numbers_and_cache
            return layer(block, x, cache, dataclasses.replace(context, layer=number))

        numbers_and_cache = jnp.arange(self.layers), cache
        return scanned(numbered, self.layers, self.share)(self.block, x, numbers_and_cache, context)


class InverseDepth(nn.Module):
    """For `Attention.relative`: divides q k^T by the number of the layer, from 1.

    The stack is a `NumberedStack`.
    """

    def __call__(self, q, k, context: Context):
        return q / (context.layer + 1).astype(q.dtype), Scores()
