"""The Transformer encoder or decoder-only stack: BERT, RoBERTa, GPT and GPT-2."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from ptm_jax.core import slots
from ptm_jax.core.types import Batch, Encoded, Visibility, Vocab, record
from ptm_jax.encoders.context import Stacked, context_of
from ptm_jax.nn.attention.caches import KeyValues
from ptm_jax.nn.attention.multihead import Attention
from ptm_jax.nn.blocks import Block, FeedForward, Stack, with_input
from ptm_jax.nn.embeddings.parts import Types
from ptm_jax.nn.embeddings.summed import Embeddings, Positions
from ptm_jax.nn.halting import halts
from ptm_jax.nn.initializers import Initializer, TruncatedNormal
from ptm_jax.nn.layers import Activation, Identity, LayerNorm
from ptm_jax.objectives.text.text_traits import AdaptiveDepth

Direction = Literal["bidirectional", "causal", "backward"]


@record
class Cache:
    """The decoding state of a Transformer.

    It has keys and values [N, B, M, H, K], segments [B, M] (0: not written, or padding), and the
    next slot.
    """

    layers: KeyValues
    segments: Any
    start: Any

    def take(self, rows) -> Cache:
        """Returns the cache of the given rows [R] of the batch, to reorder beams or repeat
        prompts."""
        return Cache(self.layers.take(rows), self.segments[rows], self.start)


class Transformer(Stacked, AdaptiveDepth):
    """Embeddings and a stack of blocks.

    `direction` sets which tokens see each other if the batch has no `order`.

    `relative` adds scores that all layers share (`nn.attention.relative`: `Buckets`, `Alibi`). A
    decoder takes `source` [B, Ls, D] for the blocks' `cross` slots (default: the batch's
    `source_states`), `source_segments` [B, Ls] (0 at padding), and the token `table` if it has
    none. It returns their attention as `extra["cross_attention"]` [N, B, H, L, Ls]. With a `cache`
    it may also take `across`, the cache of the source [N, B, Ls, H, K] (see `Attention`);
    `Encoded.cache` is then a pair. `blank` sets the states of padding to zero.
    """

    embed: Embeddings
    stack: nn.Module
    direction: Direction = "bidirectional"
    relative: nn.Module | None = None
    blank: bool = False

    @property
    def ponders(self) -> bool:
        return halts(self.stack)

    @property
    def writes(self) -> bool:
        return self.direction == "causal"

    @nn.compact
    def __call__(
        self,
        batch: Batch,
        train: bool = False,
        cache: Cache | None = None,
        source=None,
        source_segments=None,
        *,
        table=None,
        across: KeyValues | None = None,
    ) -> Encoded:
        length = batch["input_ids"].shape[1]
        context = context_of(batch, self.direction, train)
        if cache is not None:
            context, cache = _extend(cache, context)
            if "positions" not in batch:
                context = dataclasses.replace(context, positions=context.visibility.q_order)
        if self.relative is not None:
            keys = context.visibility.k_segments.shape[1]
            context = dataclasses.replace(context, scores=self.relative(context, length, keys))
        if source is None and "source_states" in batch:
            source = batch["source_states"]
            source_segments = batch.get("source_segments", jnp.ones(source.shape[:2], jnp.int32))
        if source_segments is not None:
            outside = Visibility(context.visibility.q_segments, source_segments)
            context = dataclasses.replace(context, source=source, source_visibility=outside)
        x = self.embed(batch, context, table)
        layer_cache = None if cache is None else cache.layers
        encoded = self.stack(x, context, layer_cache if across is None else (layer_cache, across))
        if cache is not None:
            layers, *others = (encoded.cache,) if across is None else encoded.cache
            cache = Cache(layers, cache.segments, cache.start + length)
            cache = (cache, *others) if others else cache
        layers, hidden = (
            None if encoded.layers is None else with_input(x, encoded.layers),
            encoded.hidden,
        )
        if self.blank and "segment_ids" in batch:
            hidden = jnp.where(batch["segment_ids"][..., None] > 0, hidden, 0)
        encoded = dataclasses.replace(encoded, hidden=hidden, layers=layers, cache=cache)
        if isinstance(encoded.attention, tuple):
            self_attention, across = encoded.attention
            return dataclasses.replace(
                encoded, attention=self_attention, extra={"cross_attention": across}
            )
        return encoded

    def empty_cache(self, batch: int, length: int) -> Cache:
        """Returns a decoding cache for `length` tokens of `batch` sequences."""
        layers = self.stack.block.attention.empty_cache(self.stack.layers, batch, length)
        return Cache(layers, jnp.zeros((batch, length), jnp.int32), jnp.zeros((), jnp.int32))


def stack_of(encoder: slots.Encoder | None) -> slots.Layered | None:
    """Returns the stack of a Transformer; None for another encoder."""
    return encoder.stack if isinstance(encoder, Transformer) else None


def _extend(cache, context):
    """Returns the context of tokens that follow those in a cache, with all its slots as keys, and
    the cache with their segments."""
    new = context.visibility
    slots = jnp.arange(new.q_segments.shape[1], dtype=jnp.int32) + cache.start
    seen = jax.lax.dynamic_update_slice_in_dim(cache.segments, new.k_segments, cache.start, 1)
    keys = jnp.arange(seen.shape[1], dtype=jnp.int32)
    order = jnp.broadcast_to(slots, new.q_segments.shape)
    visibility = Visibility(new.q_segments, seen, order, jnp.broadcast_to(keys, seen.shape))
    context = dataclasses.replace(
        context, visibility=visibility, places=slots[None], k_places=keys[None]
    )
    return context, Cache(cache.layers, seen, cache.start)


def transformer(
    *,
    vocab: Vocab,
    layers: int,
    width: int,
    heads: int,
    hidden: int | None = None,
    positions: Positions | None = None,
    types: int = 0,
    norm: Literal["post", "pre", "none"] = "post",
    eps: float = 1e-12,
    activation: Activation = "gelu",
    dropout: float = 0.1,
    attention_dropout: float | None = None,
    embed_norm: bool = True,
    final_norm: bool = False,
    direction: Direction = "bidirectional",
    initializer: Initializer = TruncatedNormal(),
    out_init: Initializer | None = None,
) -> Transformer:
    """Returns a Transformer of the given sizes.

    `hidden` (F) defaults to 4 D, `attention_dropout` to `dropout`. Use `replace` on a slot for
    other settings.

    `out_init` initialises the two layers that write into the residual stream (GPT-2 scales them by
    depth).
    """
    init = {"initializer": initializer, "out_init": out_init}
    attention = Attention(
        heads=heads,
        width=width,
        dropout=dropout if attention_dropout is None else attention_dropout,
        **init,
    )
    ffn = FeedForward(hidden=hidden or 4 * width, activation=activation, **init)
    return Transformer(
        embed=Embeddings(
            vocab=vocab,
            width=width,
            position=positions,
            parts=(Types(types),) if types else (),
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
