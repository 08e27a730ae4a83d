"""Segment recurrence: Transformer-XL and XLNet."""

from __future__ import annotations

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from ptm_jax.core.types import Batch, Encoded, Window
from ptm_jax.encoders.context import Stacked, context_of
from ptm_jax.encoders.transformer.transformer import Direction
from ptm_jax.nn.blocks import Stack, with_input
from ptm_jax.nn.layers import Context, Dropout
from ptm_jax.objectives.text.text_traits import QueryStream

_BEFORE = -(2**30)  # order of the keys in the memory: before every token of the row


class TransformerXL(Stacked, QueryStream):
    """A stack of `Recurrence` blocks in which every layer also reads its inputs from earlier rows.

    Dai et al. 2019.

    `batch["carry"]` is this memory, a tree with leaves [B, ...] (`empty_memory`). `Encoded.memory`
    is the next one, without gradient. A batch without `carry` has no memory: each row is encoded by
    itself.

    `query` is the initializer of the start vector if the encoder has a second stream (Yang et al.
    2019, section 2.3). A batch with an `order` then returns `extra["query"]` [B, L, D], in which no
    token sees itself.

    `zeros`: a text begins after a memory of zeros that its tokens see, as in the authors'
    TensorFlow program and in Transformers; otherwise they see no memory there. `same_length`: every
    token sees `memory` places, including itself as the last.
    """

    logical_axes = {"query": (None,)}

    embed: nn.Module
    stack: Stack
    memory: int
    direction: Direction = "causal"
    query: Any = None
    dropout: float = 0.0
    zeros: bool = False
    same_length: bool = False

    @property
    def streams(self) -> int:
        """2 with a query stream, else 1."""
        return 1 if self.query is None else 2

    def empty_memory(self, batch: int, dtype=jnp.float32) -> dict[str, jax.Array] | None:
        """Returns the memory of the first row of a text, masked unless `zeros`.

        None if the encoder keeps no memory.
        """
        if not self.memory:
            return None
        width = self.stack.block.block.attention.width
        return {
            "layers": jnp.zeros((batch, self.stack.layers, self.memory, width), dtype),
            "segments": jnp.full((batch, self.memory), int(self.zeros), jnp.int32),
            "types": jnp.zeros((batch, self.memory), jnp.int32),
        }

    def visible_places(self, past: int) -> int:
        """Returns the places that a token sees with `same_length`, where `past` places precede the
        row."""
        return self.memory

    def without_memory(self):
        return dataclasses.replace(self, memory=0)

    @nn.compact
    def __call__(self, batch: Batch, train: bool = False) -> Encoded:
        context, carry, memory = context_of(batch, self.direction, train), batch.get("carry"), None
        segments = context.visibility.k_segments
        types = batch.get("token_type_ids", jnp.zeros_like(segments))
        fields = {"segments": segments, "types": types}
        if carry is None and self.zeros:
            carry = self.empty_memory(len(segments))
        if carry is not None:
            segments = jnp.concatenate([carry["segments"], segments], 1)
            types = jnp.concatenate([carry["types"], types], 1)
            memory = jnp.moveaxis(carry["layers"], 1, 0)
            context = _with_memory(context, segments)
        if self.same_length:
            past = segments.shape[1] - batch["input_ids"].shape[1]
            context = _within(context, self.visible_places(past))
        context = dataclasses.replace(context, types=types)
        drop = Dropout(self.dropout)
        content = x = self.embed(batch, context)
        if self.query is not None:
            start = self.param("query", self.query, (x.shape[-1],)).astype(x.dtype)
            if "order" in batch:
                x = content, drop(jnp.broadcast_to(start, content.shape), context)
        encoded = self.stack(x, context, memory)
        past = (
            self.remembered(jnp.moveaxis(encoded.cache, 0, 1), fields, carry)
            if self.memory
            else None
        )
        hidden, layers, extra = encoded.hidden, encoded.layers, None
        if isinstance(hidden, tuple):
            (hidden, query), (layers, _) = hidden, layers
            extra = {"query": drop(query, context)}
        return Encoded(
            drop(hidden, context), with_input(content, layers), encoded.attention, past, extra=extra
        )

    def remembered(self, layers, fields, carry):
        """Returns the memory after a row: the last M places of `carry`, if any, and of the row with
        the inputs `layers` [B, N, L, D] and `fields` [B, L]. Without gradient."""
        past = {}
        for name, new in {"layers": layers, **fields}.items():
            axis = 2 if name == "layers" else 1
            new = (
                new
                if carry is None
                else jnp.concatenate([carry[name].astype(new.dtype), new], axis)
            )
            past[name] = jax.lax.slice_in_dim(
                new, max(new.shape[axis] - self.memory, 0), None, axis=axis
            )
        return jax.lax.stop_gradient(past)


def _with_memory(context: Context, segments) -> Context:
    """Adds the memory's keys before the row's. Every token of their segment may see them."""
    visibility, places = context.visibility, context.k_places
    past = segments.shape[1] - visibility.k_segments.shape[1]
    order, group = visibility.k_order, visibility.k_group
    if order is not None:
        order = jnp.pad(order, ((0, 0), (past, 0)), constant_values=_BEFORE)
    if group is not None:
        group = jnp.pad(group, ((0, 0), (past, 0)))
    if places is not None:
        before = jnp.broadcast_to(jnp.arange(-past, 0, dtype=places.dtype), (len(places), past))
        places = jnp.concatenate([before, places], 1)
    visibility = dataclasses.replace(visibility, k_segments=segments, k_order=order, k_group=group)
    return dataclasses.replace(context, visibility=visibility, k_places=places)


def _within(context: Context, size: int) -> Context:
    """Limits the keys to those fewer than `size` places from the token."""
    visibility = context.visibility
    queries, keys = visibility.q_segments.shape[1], visibility.k_segments.shape[1]
    places = jnp.arange(keys, dtype=jnp.int32)[None]
    window = Window(places[:, keys - queries :], places, jnp.int32(size - 1))
    return dataclasses.replace(context, visibility=dataclasses.replace(visibility, window=window))
