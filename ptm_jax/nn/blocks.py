"""A Transformer block with slots, and the stack that scans it.

A block is a value: wrapping is `dataclasses.replace` of a slot, and an empty slot (`Identity`) keeps the parameter
paths of the checkpoint. The stack scans a function over the block in its slot, so that compile time does not grow
with depth; passing the bound block to `nn.scan(type(block))` would create its parameters outside the scan and share
them silently (a test of shapes guards this).
"""

from __future__ import annotations

from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from ptm_jax.core.precision import Precision
from ptm_jax.core.recipe import Remat
from ptm_jax.nn.initializers import TruncatedNormal
from ptm_jax.nn.layers import Activation, Context, Dense, Dropout, Identity, LayerNorm, activate


class FeedForward(nn.Module):
    """Two dense layers with an activation between: [.., D] -> [.., F] -> [.., D]."""

    hidden: int
    activation: Activation = "gelu"
    initializer: Any = TruncatedNormal()
    out_init: Any = None
    precision: Precision = Precision()

    @nn.compact
    def __call__(self, x, context: Context):
        del context
        width = x.shape[-1]
        h = Dense(self.hidden, initializer=self.initializer, precision=self.precision, name="up")(x)
        h = activate(self.activation, h)
        return Dense(width, initializer=self.out_init or self.initializer, precision=self.precision, name="down")(h)


class Block(nn.Module):
    """Attention and feed-forward, each in a residual branch.

    norm="post": LayerNorm(x + branch(x)), BERT and GPT; norm="pre": x + branch(LayerNorm(x)), GPT-2.
    `after_attention` and `after_ffn` see the branch before it is added: adapters go there. `cross` is a residual layer
    of its own between the two: a decoder's attention over `context.source`. `source` [B, Lk, D] is what keys and values
    are made of in place of x, and is not normalised here (XLNet's memory, ViLBERT's other stream).
    """

    attention: nn.Module
    ffn: nn.Module
    norm: Literal["post", "pre"] = "post"
    dropout: float = 0.0
    attention_norm: nn.Module = LayerNorm()
    ffn_norm: nn.Module = LayerNorm()
    after_attention: nn.Module = Identity()
    cross: nn.Module = Identity()
    after_ffn: nn.Module = Identity()

    @nn.compact
    def __call__(self, x, context: Context, cache=None, source=None):
        pre = self.norm == "pre"
        inputs = self.attention_norm(x) if pre else x
        branch, probabilities, cache = self.attention(inputs, context, source=source, cache=cache)
        branch = self.after_attention(Dropout(self.dropout)(branch, context), context)
        x = x + branch if pre else self.attention_norm(x + branch)
        x = self.cross(x, context)
        branch = self.ffn(self.ffn_norm(x) if pre else x, context)
        branch = self.after_ffn(Dropout(self.dropout)(branch, context), context)
        x = x + branch if pre else self.ffn_norm(x + branch)
        return x, probabilities, cache


_POLICIES = {
    "full": None,
    "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
}


class Stack(nn.Module):
    """N layers of one block, scanned. `share=True` gives all layers one set of parameters (ALBERT).

    remat  "none" keeps every activation for the backward pass, "full" recomputes each layer from its input,
           "dots" keeps the results of products with weights and recomputes the rest.
    Returns (x, layers [N, B, L, D], attention [N, B, H, Lq, Lk], cache).
    """

    block: nn.Module
    layers: int
    share: bool = False
    remat: Remat = "none"
    final_norm: nn.Module = Identity()

    @nn.compact
    def __call__(self, x, context: Context, cache=None):
        def layer(block, x, cache, context):
            x, probabilities, cache = block(x, context, cache)
            return x, (x, probabilities, cache)

        if self.remat != "none":
            layer = nn.remat(layer, policy=_POLICIES[self.remat], prevent_cse=False)
        scanned = nn.scan(
            layer,
            variable_axes={} if self.share else {"params": 0},
            variable_broadcast="params" if self.share else False,
            split_rngs={"params": not self.share, "dropout": True},
            in_axes=(0, nn.broadcast),
            length=self.layers,
        )
        x, (layers, attention, cache) = scanned(self.block, x, cache, context)
        return self.final_norm(x), layers, attention, cache


def with_input(x, layers):
    """[N+1, B, L, D]: the stack's input before the outputs of its layers."""
    return jnp.concatenate([x[None], layers])
