"""What objectives share: gathering, weighted token losses, one forward pass, and the memory that it hands on."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from ptm_jax.core.streams import named
from ptm_jax.core.towers import Tower
from ptm_jax.core.types import Array, Batch, Encoded, Loss, Ratio


def gather(hidden: Array, positions: Array) -> Array:
    """Features [B, P, D] at positions [B, P] of hidden [B, L, D]."""
    return jnp.take_along_axis(hidden, positions[..., None], 1)


def token_loss(nll: Array, weights: Array, right: Array | None = None, name: str = "nll") -> Loss:
    """The sum of weighted token losses in nats, with their mean as a metric, and the share of hits `right`."""
    weight = weights.sum()
    total = (nll * weights).sum()
    metrics = {name: Ratio(total, weight)}
    if right is not None:
        metrics[f"{name.removesuffix('nll')}accuracy"] = Ratio((right * weights).sum(), weight)
    return Loss(total, weight, metrics)


def binary_loss(scores: Array, right: Array, weights: Array, name: str) -> Loss:
    """Logistic loss of scores [..] or [.., 1] for the truth `right` [..] of 0 and 1, with its accuracy and the share of
    1s, which is what a guess without the scores goes by."""
    scores = scores.reshape(right.shape).astype(jnp.float32)
    nll = jax.nn.softplus(jnp.where(right > 0, -scores, scores))
    loss = token_loss(nll, weights, (scores > 0) == (right > 0), name)
    share = {f"{name.removesuffix('nll')}share": Ratio(((right > 0) * weights).sum(), weights.sum())}
    return dataclasses.replace(loss, metrics={**loss.metrics, **share})


def segments_of(batch: Batch) -> Array:
    """Segments [B, L]; one document without padding where the batch says nothing."""
    return batch["segment_ids"] if "segment_ids" in batch else jnp.ones_like(batch["input_ids"])


def view_of(batch: Batch, name: str) -> Batch:
    """A second text of every row as a batch of its own: `{name}_input_ids`, `{name}_segment_ids` [B, S]."""
    fields = {field: batch[f"{name}_{field}"] for field in ("input_ids", "segment_ids") if f"{name}_{field}" in batch}
    return fields | {field: batch[field] for field in ("rows", "step") if field in batch}


def encode_view(tower: Tower, batch: Batch, name: str) -> Encoded:
    """The second text of every row, encoded by the same tower, without memory; dropout is by `batch["noise"]`."""
    key = batch.get("noise")
    return tower(view_of(batch, name), None if key is None else named(key, name))


def real_tokens(batch: Batch) -> Array:
    """1.0 for tokens, 0.0 for padding [B, L]."""
    return (segments_of(batch) > 0).astype(jnp.float32)


def real_rows(batch: Batch) -> Array:
    """1.0 for rows that hold a token, 0.0 for rows of padding [B]."""
    return (segments_of(batch) > 0).any(1).astype(jnp.float32)


def encoder_of(system: Any, tower: str = "main") -> Any:
    """The encoder of a system's tower, for what a `refusal` asks of it; None where there is no such tower."""
    return getattr(system.towers.get(tower), "encoder", None)


def blind(system: Any, tower: str, pool: str) -> str | None:
    """Why a pooled row would say nothing of it: the first token of a causal encoder has seen itself alone."""
    heads = getattr(system.towers.get(tower), "heads", {})
    if getattr(encoder_of(system, tower), "sees", "") == "causal" and getattr(heads.get(pool), "reads_first", False):
        return "the pooled first token of a causal encoder has seen nothing else; take an encoder that sees both ways"
    return None


def corruption_says(system: Any, fact: str) -> bool:
    """Whether the system's corruption, or a part of its chain, has the attribute `fact` set."""
    parts = getattr(system.corruption, "parts", (system.corruption,))
    return any(getattr(part, fact, False) for part in parts)


def next_memory(tower: Tower, encoded: Encoded, batch: Batch) -> Any:
    """What the next step is given as `batch["carry"]`: the memory of an encoder that has one, else None.

    It keeps the types of the carry that this step was given, so that the state of training keeps its own.
    """
    if not hasattr(_encoder(tower), "empty_memory"):
        return None
    memory = jax.lax.stop_gradient(encoded.memory)
    if batch.get("carry") is None:
        return memory
    return jax.tree.map(lambda new, old: new.astype(old.dtype), memory, batch["carry"])


def first_memory(tower: Tower, batch: Batch) -> Any:
    """The memory before the first batch, leaves [B, ...]; None where the encoder has none, or one of no length."""
    encoder = _encoder(tower)
    if not hasattr(encoder, "empty_memory") or not encoder.memory:
        return None
    return encoder.empty_memory(batch["input_ids"].shape[0])


def _encoder(tower: Tower) -> Any:
    return getattr(getattr(tower, "module", None), "encoder", None)


class OnePass:
    """An objective of one forward pass of `tower`: it defines `of(tower, encoded, batch) -> Loss` and inherits the rest.

    `of` is the loss of what is encoded already, so that several objectives share a pass (`objectives.joint.Joint`).
    Whoever makes the pass hands the encoder's memory on: Transformer-XL runs under every objective. `of` finds the
    step's key as `batch["noise"]`, for objectives that encode more than the row.
    """

    tower: str

    def __call__(self, towers: Mapping[str, Tower], batch: Batch, key: Array) -> Loss:
        tower = towers[self.tower]
        encoded = tower(batch, key)
        loss = self.of(tower, encoded, batch if key is None else {**batch, "noise": key})
        return Loss(loss.sum, loss.weight, loss.metrics, next_memory(tower, encoded, batch))

    def of(self, tower: Tower, encoded: Encoded, batch: Batch) -> Loss:
        """The loss of a batch that is encoded already."""
        raise NotImplementedError

    def initial_carry(self, towers: Mapping[str, Tower], batch: Batch) -> Any:
        """The memory before the first step, or None."""
        return first_memory(towers[self.tower], batch)
