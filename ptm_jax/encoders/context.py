"""Builds the `Context` of an encoder's layers from the fields of a batch."""

from __future__ import annotations

import jax.numpy as jnp

from ptm_jax.core.batch import rows_of, segments_of
from ptm_jax.core.slots import Direction
from ptm_jax.core.types import Batch, Visibility
from ptm_jax.nn.layers import Context


def context_of(batch: Batch, direction: Direction, train: bool) -> Context:
    """Returns visibility, positions and rows of the tokens of a batch. `direction` applies if the batch has no `order`."""
    ids = batch["input_ids"]
    slots = jnp.broadcast_to(jnp.arange(ids.shape[1], dtype=jnp.int32), ids.shape)
    segments = segments_of(batch)
    order, places, group = batch.get("order"), batch.get("places"), batch.get("group")
    if order is None and direction != "bidirectional":
        order = slots if direction == "causal" else -slots
    # A padding query sees the first document: its output is finite and equals the peers'.
    visibility = Visibility(
        jnp.maximum(segments, 1), segments, order, batch.get("key_order", order), q_group=group, k_group=group
    )
    return Context(
        visibility=visibility,
        rows=rows_of(batch),
        positions=batch.get("positions", slots),
        places=places,
        k_places=places,
        step=batch.get("step"),
        train=train,
    )
