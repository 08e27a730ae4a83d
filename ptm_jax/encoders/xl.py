"""Segment recurrence: Transformer-XL and XLNet are values of it."""

from __future__ import annotations

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from ptm_jax.core.types import Batch, Encoded
from ptm_jax.encoders.transformer import Direction, context_of
from ptm_jax.nn.blocks import Stack, with_input
from ptm_jax.nn.layers import Context, Dropout

_BEFORE = -(2**30)  # the order of what is in the memory: before every token of the row


class TransformerXL(nn.Module):
    """A stack of `Recurrence` blocks that reads what the row before it held in every layer (Dai et al. 2019).

    `batch["carry"]` is that memory, a tree with leaves [B, ...] (`empty_memory`); the next one comes back as
    `Encoded.memory`, without gradient. A batch without one has none: a single row is encoded alone.

    `query` is the start vector's initializer where the encoder has a second stream (Yang et al. 2019, section 2.3); then
    a batch with an `order` comes back with `extra["query"]` [B, L, D], in which no token sees itself.

    `zeros`: a text begins behind a memory of zeros, which its tokens see, as in the authors' TensorFlow program and in
    Transformers; otherwise they see nothing there. `same_length`: every token sees `memory` places, itself the last.
    """

    embed: nn.Module
    stack: Stack
    memory: int
    direction: Direction = "causal"
    query: Any = None
    dropout: float = 0.0
    zeros: bool = False
    same_length: bool = False

    @property
    def sees(self) -> Direction:
        """Who sees whom when a batch says nothing: objectives ask before they are compiled."""
        return self.direction

    @property
    def obeys_order(self) -> bool:
        """Whether a batch's `order` has an effect."""
        return True

    @property
    def streams(self) -> int:
        """2 with a query stream, else 1."""
        return 1 if self.query is None else 2

    def table(self):
        return self.embed.table()

    def empty_memory(self, batch: int, dtype=jnp.float32) -> dict[str, jax.Array] | None:
        """What the first row of a text reads: nothing, or `zeros`. None where the encoder keeps no memory."""
        if not self.memory:
            return None
        width = self.stack.block.block.attention.width
        return {
            "layers": jnp.zeros((batch, self.stack.layers, self.memory, width), dtype),
            "segments": jnp.full((batch, self.memory), int(self.zeros), jnp.int32),
            "types": jnp.zeros((batch, self.memory), jnp.int32),
        }

    @nn.compact
    def __call__(self, batch: Batch, train: bool = False) -> Encoded:
        context, carry, memory = context_of(batch, self.direction, train), batch.get("carry"), None
        segments = context.visibility.k_segments
        types = batch.get("token_type_ids", jnp.zeros_like(segments))
        if carry is None and self.zeros:
            carry = self.empty_memory(len(segments))
        if carry is not None:
            segments = jnp.concatenate([carry["segments"], segments], 1)
            types = jnp.concatenate([carry["types"], types], 1)
            memory = jnp.moveaxis(carry["layers"], 1, 0)
            context = _with_memory(context, segments)
        if self.same_length:
            context = _within(context, self.memory)
        context = dataclasses.replace(context, types=types)
        drop = Dropout(self.dropout)
        content = x = self.embed(batch, context)
        if self.query is not None:
            start = self.param("query", self.query, (x.shape[-1],)).astype(x.dtype)
            if "order" in batch:
                x = content, drop(jnp.broadcast_to(start, content.shape), context)
        encoded = self.stack(x, context, memory)
        kept = _last(encoded.memory, memory, self.memory)
        segments, types = (field[:, max(field.shape[1] - self.memory, 0) :] for field in (segments, types))
        past = {"layers": kept, "segments": segments, "types": types}
        hidden, layers, extra = encoded.hidden, encoded.layers, None
        if isinstance(hidden, tuple):
            (hidden, query), (layers, _) = hidden, layers
            extra = {"query": drop(query, context)}
        past = jax.lax.stop_gradient(past) if self.memory else None
        return Encoded(drop(hidden, context), with_input(content, layers), encoded.attention, past, extra)


def _with_memory(context: Context, segments) -> Context:
    """The rule with the memory's keys before the row's; every token of their segment may see them."""
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
    """The rule, and that a key lies fewer than `size` places before the token."""
    visibility = context.visibility
    queries, keys = visibility.q_segments.shape[1], visibility.k_segments.shape[1]
    before = jnp.arange(keys - queries, keys)[:, None] - jnp.arange(keys)
    return dataclasses.replace(context, visibility=dataclasses.replace(visibility, allow=(before < size)[None, None]))


def _last(inputs, memory, size: int):
    """[B, N, M, D]: the last M inputs [N, B, L, D] of every layer, after the memory [N, B, M, D] where there is one."""
    inputs = inputs if memory is None else jnp.concatenate([memory.astype(inputs.dtype), inputs], 2)
    return jnp.moveaxis(inputs[:, :, max(inputs.shape[2] - size, 0) :], 0, 1)
