"""Common parts of encoders: embeddings, and the `Context` that layers get from a batch."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from ptm_jax.core import slots
from ptm_jax.core.batch import rows_of, segments_of
from ptm_jax.core.types import Batch, Visibility
from ptm_jax.nn.adapter_layers import adapted_languages
from ptm_jax.nn.embeddings.summed import languages_of, types_of
from ptm_jax.nn.layers import Context, Module


class Embedded(slots.Encoder, Module):
    """The base class of encoders with a field `embed`, the embeddings."""

    @property
    def embeddings(self) -> Any:
        return self.embed

    @property
    def types(self) -> int:
        return types_of(self.embed)

    def table(self):
        return self.embed.table()


def read_languages(encoder: slots.Encoder) -> int:
    """Returns the number of languages that `language_ids` may name (0: none), which have
    vectors or adapters of their own."""
    return max(
        languages_of(encoder.embeddings), *map(adapted_languages, encoder.stacks.values()), 0
    )


class Stacked(Embedded):
    """The base class of encoders with fields `embed` and `stack`, one stack of layers."""

    obeys_order = True

    @property
    def stacks(self) -> dict[str, slots.Layered]:
        return {"stack": self.stack}


def slots_of(ids):
    """Returns [B, L] int32, the number of each slot of a row, for ids [B, L]."""
    return jnp.broadcast_to(jnp.arange(ids.shape[1], dtype=jnp.int32), ids.shape)


def context_of(batch: Batch, direction: slots.Direction, train: bool) -> Context:
    """Returns visibility, positions and rows of the tokens of a batch.

    `direction` applies if the batch has no `order`.
    """
    segments, places = segments_of(batch), slots_of(batch["input_ids"])
    order, group = batch.get("order"), batch.get("group")
    if order is None and direction != "bidirectional":
        order = places if direction == "causal" else -places
    # A padding query sees the first document: its output is finite and equals the peers'.
    allow = batch["visible"][:, None] if "visible" in batch else None
    visibility = Visibility(
        jnp.maximum(segments, 1),
        segments,
        order,
        batch.get("key_order", order),
        allow,
        q_group=group,
        k_group=group,
    )
    beside = batch.get("beside_states")
    between = None if beside is None else (jnp.maximum(segments, 1), batch["beside_segments"])
    return Context(
        visibility=visibility,
        rows=rows_of(batch),
        positions=batch.get("positions", places),
        places=batch.get("places"),
        k_places=batch.get("places"),
        languages=batch.get("language_ids"),
        beside=beside,
        beside_visibility=between and Visibility(*between),
        step=batch.get("step"),
        train=train,
    )
