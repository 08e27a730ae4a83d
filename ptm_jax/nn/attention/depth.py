"""Layers that depend on their number: GPT-2's `scale_attn_by_inverse_layer_idx` (Mistral of
stanford-crfm), and a first layer without its norm."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp

from ptm_jax.kernels.scores import Scores
from ptm_jax.nn.blocks import Block, Stack
from ptm_jax.nn.layers import Context, Module


class NumberedStack(Stack):
    """A `Stack` whose blocks know their layer: `context.layer` is its number, from 0."""

    def _layers(self, scanned, layer, x, cache, context):
        def numbered(block, x, numbers_and_cache, context):
            number, cache = numbers_and_cache
            return layer(block, x, cache, dataclasses.replace(context, layer=number))

        numbers_and_cache = jnp.arange(self.layers), cache
        return scanned(numbered, self.layers, self.share)(self.block, x, numbers_and_cache, context)


class FirstUnnormed(Block):
    """A block of norm="pre" that leaves out the norm before the attention of the first layer
    (ModernBERT, whose embeddings have one); its parameters stay.

    The stack is a `NumberedStack`.
    """

    def _normed(self, x, context: Context):
        return jnp.where(context.layer == 0, x, super()._normed(x, context))


class InverseDepth(Module):
    """For `Attention.relative`: divides q k^T by the number of the layer, from 1.

    The stack is a `NumberedStack`.
    """

    def __call__(self, q, k, context: Context):
        return q / (context.layer + 1).astype(q.dtype), Scores()
