"""The Transformer encoder or decoder-only stack: BERT, RoBERTa, GPT and GPT-2 are values of it."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from ptm_jax.core.types import Batch, Encoded, Visibility, Vocab, record
from ptm_jax.nn.attention import Attention, KeyValues, empty_cache
from ptm_jax.nn.blocks import Block, FeedForward, Stack, with_input
from ptm_jax.nn.embeddings import Embeddings
from ptm_jax.nn.initializers import TruncatedNormal
from ptm_jax.nn.layers import Activation, Context, Identity, LayerNorm


@record
class Cache:
    """Decoding state: keys and values [N, B, M, H, K], segments [B, M] (0: not written, or padding), next slot."""

    layers: KeyValues
    segments: Any
    start: Any

    def take(self, rows) -> Cache:
        """The cache of the given rows [R] of its batch: beams are reordered and prompts repeated so."""
        layers = dataclasses.replace(self.layers, key=self.layers.key[:, rows], value=self.layers.value[:, rows])
        return Cache(layers, self.segments[rows], self.start)


class Transformer(nn.Module):
    """Embeddings and a stack. `direction` is who may see whom where the batch has no `order` of its own."""

    embed: Embeddings
    stack: Stack
    direction: Literal["bidirectional", "causal"] = "bidirectional"

    def table(self):
        return self.embed.table()

    @nn.compact
    def __call__(self, batch: Batch, train: bool = False, cache: Cache | None = None) -> Encoded:
        ids = batch["input_ids"]
        rows, length = ids.shape
        slots = jnp.broadcast_to(jnp.arange(length, dtype=jnp.int32), ids.shape)
        segments = batch.get("segment_ids")
        segments = jnp.ones_like(ids) if segments is None else segments
        order = batch.get("order")
        if order is None and self.direction == "causal":
            order = slots
        # A padding query sees what the first document sees: its output is finite and equals the peers'.
        queries = jnp.maximum(segments, 1)
        visibility = Visibility(queries, segments, order, order)
        positions = batch.get("positions", slots if cache is None else cache.start + slots)
        if cache is not None:
            visibility, cache = _extend(cache, queries, segments, slots)
        context = Context(
            visibility=visibility,
            rows=batch["rows"] if "rows" in batch else jnp.arange(rows, dtype=jnp.int32),
            positions=positions,
            step=batch.get("step"),
            train=train,
        )
        x = self.embed(batch, context)
        hidden, layers, attention, keys = self.stack(x, context, None if cache is None else cache.layers)
        memory = None if cache is None else Cache(keys, cache.segments, cache.start + length)
        return Encoded(hidden, with_input(x, layers), attention, memory)

    def empty_cache(self, batch: int, length: int) -> Cache:
        """A decoding cache for `length` tokens of `batch` sequences."""
        attention = self.stack.block.attention
        head_width = attention.head_width or attention.width // attention.heads
        layers = empty_cache(
            self.stack.layers, batch, length, attention.heads, head_width, attention.precision.dtype
        )
        return Cache(layers, jnp.zeros((batch, length), jnp.int32), jnp.zeros((), jnp.int32))


def _extend(cache, queries, segments, slots):
    seen = jax.lax.dynamic_update_slice_in_dim(cache.segments, segments, cache.start, 1)
    keys = jnp.broadcast_to(jnp.arange(seen.shape[1], dtype=jnp.int32), seen.shape)
    visibility = Visibility(queries, seen, cache.start + slots, keys)
    return visibility, Cache(cache.layers, seen, cache.start)


def transformer(
    *,
    vocab: Vocab,
    layers: int,
    width: int,
    heads: int,
    hidden: int | None = None,
    positions: Any = None,
    types: int = 0,
    norm: Literal["post", "pre"] = "post",
    eps: float = 1e-12,
    activation: Activation = "gelu",
    dropout: float = 0.1,
    embed_norm: bool = True,
    final_norm: bool = False,
    direction: Literal["bidirectional", "causal"] = "bidirectional",
    initializer: Any = TruncatedNormal(),
    out_init: Any = None,
) -> Transformer:
    """A Transformer from its sizes; `hidden` (F) defaults to 4 D. Anything finer is a `replace` of a slot.

    `out_init` initialises the two layers that write into the residual stream (GPT-2 scales them by depth).
    """
    attention = Attention(heads=heads, width=width, dropout=dropout, initializer=initializer, out_init=out_init)
    ffn = FeedForward(hidden=hidden or 4 * width, activation=activation, initializer=initializer, out_init=out_init)
    return Transformer(
        embed=Embeddings(
            vocab=vocab,
            width=width,
            position=positions,
            types=types,
            norm=LayerNorm(eps) if embed_norm else Identity(),
            dropout=dropout,
            initializer=initializer,
        ),
        stack=Stack(
            block=Block(
                attention=attention,
                ffn=ffn,
                norm=norm,
                dropout=dropout,
                attention_norm=LayerNorm(eps),
                ffn_norm=LayerNorm(eps),
            ),
            layers=layers,
            final_norm=LayerNorm(eps) if final_norm else Identity(),
        ),
        direction=direction,
    )
