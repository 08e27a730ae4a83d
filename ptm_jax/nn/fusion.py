"""A layer of tokens and entities: both attend to their own kind, and a shared hidden layer joins
them (ERNIE of THU)."""

from __future__ import annotations

import dataclasses
from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from ptm_jax.core.precision import Precision
from ptm_jax.nn.attention.multihead import Attention
from ptm_jax.nn.initializers import TruncatedNormal
from ptm_jax.nn.layers import Activation, Context, Dense, Dropout, LayerNorm, Module, activate


class FusionBlock(Module):
    """The aggregator of ERNIE (Zhang et al. 2019, arXiv 1905.07129, Eq. 3 to 5).

    x is a pair of tokens [B, L, D] and of entities [B, L, W], each at the first token of its
    mention.

        h = gelu(W_t w + W_e e + b),  w' = norm(w + U_t h),  e' = norm(e + U_e h)

    after attention and norm of each kind; without an entity e is 0. `context.source_visibility`
    holds the places of entities.
    """

    logical_axes = {
        "up/kernel": ("width", "hidden"),
        "up/bias": ("hidden",),
        "down/kernel": ("hidden", "width"),
        "down/bias": ("width",),
    }

    attention: Attention
    entity_attention: Attention
    hidden: int
    activation: Activation = "gelu"
    dropout: float = 0.0
    eps: float = 1e-12
    initializer: Any = TruncatedNormal()
    precision: Precision = Precision()

    @nn.compact
    def __call__(self, x, context: Context, cache=None):
        tokens, entities = x
        entity_context = dataclasses.replace(context, visibility=context.source_visibility)
        present = (entity_context.visibility.k_segments > 0)[..., None]

        def dense(size, name):
            return Dense(size, initializer=self.initializer, precision=self.precision, name=name)

        norm, drop = lambda name: LayerNorm(self.eps, name=name), Dropout(self.dropout)
        branch, probabilities, _ = self.attention(tokens, context)
        tokens = norm("attention_norm")(tokens + drop(branch, context))
        branch, _, _ = self.entity_attention(entities, entity_context)
        entities = jnp.where(present, norm("entity_norm")(entities + drop(branch, context)), 0)
        both = dense(self.hidden, "up")(tokens) + dense(self.hidden, "entity_up")(entities)
        both = activate(self.activation, both)
        tokens = norm("ffn_norm")(tokens + drop(dense(tokens.shape[-1], "down")(both), context))
        down = dense(entities.shape[-1], "entity_down")(both)
        entities = norm("entity_ffn_norm")(entities + drop(down, context))
        return (tokens, entities), probabilities, None
