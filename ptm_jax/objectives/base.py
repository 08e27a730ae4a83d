"""Helpers for objectives: gathering, weighted token losses, one forward pass and its memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from ptm_jax.core import slots
from ptm_jax.core.batch import segments_of
from ptm_jax.core.errors import UserError
from ptm_jax.core.streams import named
from ptm_jax.core.towers import Tower
from ptm_jax.core.types import Array, Batch, Encoded, Loss, Ratio

if TYPE_CHECKING:
    from ptm_jax.core.system import System


def gather(hidden: Array, positions: Array) -> Array:
    """Returns the features [B, P, D] of hidden [B, L, D] at positions [B, P]."""
    return jnp.take_along_axis(hidden, positions[..., None], 1)


def token_loss(nll: Array, weights: Array, right: Array | None = None, name: str = "nll") -> Loss:
    """Returns the sum of weighted token losses in nats.

    Metrics are their mean and, given `right`, the accuracy.
    """
    weight = weights.sum()
    total = (nll * weights).sum()
    metrics = {name: Ratio(total, weight)}
    if right is not None:
        metrics[f"{name.removesuffix('nll')}accuracy"] = Ratio((right * weights).sum(), weight)
    return Loss(total, weight, metrics)


def nll_of(scores: Array, labels: Array) -> Array:
    """Returns -log softmax(scores)[label] [..] for scores [.., C] and labels [..] int32."""
    chosen = jnp.take_along_axis(scores, labels[..., None], -1)[..., 0]
    return jax.nn.logsumexp(scores, -1) - chosen


def binary_loss(scores: Array, right: Array, weights: Array, name: str) -> Loss:
    """Returns the logistic loss of scores [..] or [.., 1] for labels `right` [..] in {0, 1}.

    Metrics also include the accuracy and the share of 1s, which is the accuracy of always
    predicting 1."""
    scores = scores.reshape(right.shape).astype(jnp.float32)
    nll = jax.nn.softplus(jnp.where(right > 0, -scores, scores))
    loss = token_loss(nll, weights, (scores > 0) == (right > 0), name)
    share = {
        f"{name.removesuffix('nll')}share": Ratio(((right > 0) * weights).sum(), weights.sum())
    }
    return dataclasses.replace(loss, metrics={**loss.metrics, **share})


def name_of(objective: Any) -> str:
    """Returns the name of an objective for messages: its class or function name."""
    return (
        objective.__name__
        if callable(objective) and not isinstance(objective, slots.Slot)
        else type(objective).__name__
    )


def view_of(batch: Batch, name: str) -> Batch:
    """Returns the second text of every row as a batch.

    It is in `{name}_input_ids` and `{name}_segment_ids` [B, S].
    """
    fields = {
        field: batch[f"{name}_{field}"]
        for field in ("input_ids", "segment_ids")
        if f"{name}_{field}" in batch
    }
    return fields | {field: batch[field] for field in ("rows", "step") if field in batch}


def encode_view(tower: Tower, batch: Batch, name: str) -> Encoded:
    """Encodes the second text of every row with the same tower, without memory.

    `batch["noise"]` seeds the dropout.
    """
    key = batch.get("noise")
    return tower(view_of(batch, name), None if key is None else named(key, name))


def real_tokens(batch: Batch) -> Array:
    """Returns 1.0 for tokens and 0.0 for padding, [B, L]."""
    return (segments_of(batch) > 0).astype(jnp.float32)


def real_rows(batch: Batch) -> Array:
    """Returns 1.0 for rows with a token and 0.0 for rows of padding, [B]."""
    return (segments_of(batch) > 0).any(1).astype(jnp.float32)


def scores_of(tower: Tower, head: str, encoded: Encoded, batch: Batch) -> Any:
    """Returns what a head reads from an encoded batch.

    It has the dropout of `batch["noise"]` if there is one.
    """
    key = batch.get("noise")
    return tower.read(head, encoded, batch, None if key is None else named(key, head))


def prediction_weights(scores: Array, batch: Batch, labelled: bool = True) -> Array:
    """Returns weights [B] or [B, L] for scores [.., C].

    With `labelled` they are `label_weights` [B] or `token_weights` [B, L], if the batch has them.
    Otherwise the weight is 1 except for padding. A question with C rows [B C, L] has the weight of
    its first row.
    """
    field = "token_weights" if scores.ndim > 2 else "label_weights"
    if labelled and field in batch:
        return batch[field]
    weights = real_tokens(batch) if scores.ndim > 2 else real_rows(batch)
    return weights[:: len(weights) // len(scores)]


class FirstToken(slots.Head):
    """Trait: a head that reads only the first token of a text."""


def reads_first(head: slots.Head | None) -> bool:
    """Returns whether a head reads only the first token of a text."""
    return isinstance(head, FirstToken)


def blind(system: System, tower: str, pool: str) -> str | None:
    """Refuses to pool the first token of a causal encoder: it sees no other token."""
    encoder, head = slots.encoder_of(system, tower), slots.heads_of(system, tower).get(pool)
    if encoder is not None and encoder.direction == "causal" and reads_first(head):
        return (
            "the pooled first token of a causal encoder has seen nothing else; take an encoder "
            "that sees both ways"
        )
    return None


def corruptions_of(system: System) -> tuple[slots.Corruption, ...]:
    """Returns the corruptions of a system, with chains flattened."""
    return () if system.corruption is None else slots.parts_of(system.corruption)


def next_memory(tower: Tower, encoded: Encoded, batch: Batch) -> Any:
    """Returns `batch["carry"]` for the next step: the encoder's memory, or None.

    It is cast to the types of this step's carry, so that the types of the training state do not
    change.
    """
    memory = jax.lax.stop_gradient(encoded.memory)
    if memory is None or batch.get("carry") is None:
        return memory
    return jax.tree.map(lambda new, old: new.astype(old.dtype), memory, batch["carry"])


def first_memory(tower: Tower, batch: Batch) -> Any:
    """Returns the memory before the first batch, leaves [B, ...].

    None if the encoder has none or its length is 0.
    """
    encoder = slots.encoder_in(tower.module)
    return None if encoder is None else encoder.empty_memory(batch["input_ids"].shape[0])


def makes_one_pass(objective: slots.Objective) -> bool:
    """Returns whether an objective makes one forward pass, which others may share."""
    return isinstance(objective, OnePass)


@dataclasses.dataclass(frozen=True, kw_only=True)
class AroundTask(slots.Objective):
    """Base class of objectives that add a term to the loss of `task`, another objective."""

    task: Any

    @property
    def baseline(self) -> str | None:
        return slots.objective(self.task).baseline


class OnePass(slots.Objective):
    """Base class of objectives with one forward pass of `tower`.

    A subclass defines `of(tower, encoded, batch) -> Loss`.

    `of` takes the encoded batch, so several objectives can share a pass (`objectives.joint.Joint`).
    `__call__` returns the encoder's memory, so Transformer-XL trains with every objective. `of`
    reads the step's key from `batch["noise"]` when it encodes a second text.
    """

    def __call__(self, towers: Mapping[str, Tower], batch: Batch, key: Array) -> Loss:
        tower = towers[self.tower]
        encoded = tower(batch, key)
        loss = self.of(tower, encoded, batch if key is None else {**batch, "noise": key})
        return Loss(loss.sum, loss.weight, loss.metrics, next_memory(tower, encoded, batch))

    def of(self, tower: Tower, encoded: Encoded, batch: Batch) -> Loss:
        """Returns the loss of an encoded batch."""
        raise NotImplementedError

    def distributions(self, scores: Any, batch: Batch) -> list[Array]:
        """Returns the predictions to compare in `objectives.regularisation.agreement`: logits [B,
        C] for texts or [B, L, C] for tokens, [.., 1] for regression. Raises UserError if `scores`
        are not arrays."""
        parts = list(scores) if isinstance(scores, tuple | list) else [scores]
        if not all(isinstance(part, jax.Array) for part in parts):
            kind, head = type(self).__name__, type(scores).__name__
            raise UserError(
                f"{kind} scores by {head}, no softmax over classes; leave out what compares it"
            )
        return parts

    def predictions(
        self, tower: Tower, encoded: Encoded, batch: Batch
    ) -> dict[str, tuple[Array, Array]]:
        """Returns {name: (logits [.., C], weights [..])} of what the head predicts, to compare two
        models. Raises UserError if the objective has no head, or one without a softmax over
        classes."""
        if self.head is None:
            raise UserError(
                f"{name_of(self)} has no head whose predictions could be compared; take a "
                "task with one"
            )
        distributions = self.distributions(scores_of(tower, self.head, encoded, batch), batch)
        names = (
            [self.head]
            if len(distributions) == 1
            else [f"{self.head}_{number}" for number in range(len(distributions))]
        )
        return {
            name: (one, prediction_weights(one, batch))
            for name, one in zip(names, distributions, strict=True)
        }

    def initial_carry(self, towers: Mapping[str, Tower], batch: Batch) -> Any:
        """Returns the memory before the first step, or None."""
        return first_memory(towers[self.tower], batch)
