"""Objectives of downstream tasks (survey section 7; Devlin et al. 2019, section 4).

Text classification and regression, tagging, answer spans and multiple choice.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

import jax
import jax.numpy as jnp

from ptm_jax.core import slots
from ptm_jax.core.streams import named
from ptm_jax.core.system import System
from ptm_jax.core.towers import Tower
from ptm_jax.core.types import Array, Batch, Encoded, Loss, Ratio, add_losses
from ptm_jax.kernels.updates import Bags, Native
from ptm_jax.objectives.base import (
    OnePass,
    binary_loss,
    nll_of,
    real_rows,
    real_tokens,
    scores_of,
    token_loss,
)
from ptm_jax.objectives.row_updates import InPlace, with_encoder_rows
from ptm_jax.objectives.vectors.vector_traits import BagOfGrams, LinearClasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class Classification(InPlace, OnePass):
    """Classification or regression of whole texts, from `label` [B] and a head with scores [B, C].

    kind    "classes": cross-entropy, `label` int32; "number": squared error, `label` float32 [B],
            or [B, C] with the mean over C; "labels": logistic loss of each class, `label` [B, C] in
            {0, 1}, with the mean over classes

    The weight of a row is `label_weights` [B] if the batch has them, else 1 if the row has a token.
    `smoothing` is the share of the target that is spread evenly over the classes (Szegedy et al.
    2016; MultiFiT: 0.1); the metric `nll` excludes it. On a CPU a kernel makes the updates of
    supervised fastText (`kernels.words`), which counts no accuracy of a tree.
    """

    tower: str = "main"
    head: str = "classify"
    kind: Literal["classes", "number", "labels"] = "classes"
    smoothing: float = 0.0

    def __post_init__(self):
        if not 0 <= self.smoothing < 1 or (self.smoothing and self.kind != "classes"):
            raise ValueError(
                f"smoothing is {self.smoothing} of {self.kind}; it must be in [0, 1), and is "
                "of classes"
            )

    @property
    def baseline(self) -> str | None:
        return "nll" if self.kind == "classes" else None

    def of(self, tower: Tower, encoded: Encoded, batch: Batch) -> Loss:
        scores, label, weights = (
            scores_of(tower, self.head, encoded, batch),
            batch["label"],
            self.weights(batch),
        )
        if self.kind == "classes":
            loss = token_loss(nll_of(scores, label), weights, scores.argmax(-1) == label, "nll")
            if not self.smoothing:
                return loss
            even = ((jax.nn.logsumexp(scores, -1) - scores.mean(-1)) * weights).sum()
            return dataclasses.replace(
                loss, sum=(1 - self.smoothing) * loss.sum + self.smoothing * even
            )
        if self.kind == "number":
            squared = jnp.square(scores - label.astype(jnp.float32).reshape(scores.shape))
            return token_loss(squared.mean(-1), weights, name="squared_error")
        logistic = jax.nn.softplus(scores) - scores * label
        return token_loss(logistic.mean(-1), weights, ((scores > 0) == (label > 0)).mean(-1), "nll")

    @staticmethod
    def weights(batch: Batch) -> Array:
        """Returns the weights of the rows, [B] float32."""
        return batch["label_weights"] if "label_weights" in batch else real_rows(batch)

    def select(self, system: System, batch: Batch) -> tuple[Batch, Mapping[str, Array]]:
        return with_encoder_rows(system, self.tower, batch, {})

    def native(self, system: System) -> Native | None:
        encoder = slots.encoder_of(system, self.tower)
        head = slots.heads_of(system, self.tower).get(self.head)
        if self.kind != "classes" or self.smoothing or not isinstance(encoder, BagOfGrams):
            return None
        if not (isinstance(head, LinearClasses) and head.linear):
            return None
        tables = "encoder/token", "encoder/ngrams", f"heads_{self.head}/classes/kernel"
        return Native(
            Bags(rows=encoder.rows, weights=self.weights, ways=head.ways),
            tuple(f"{self.tower}/{name}" for name in tables),
        )

    def distributions(self, scores: Array, batch: Batch) -> list[Array]:
        """Returns the logits of the classes, or of [0, score] for each label; for regression, each
        score [B, 1]."""
        if self.kind == "classes":
            return [scores]
        columns = jnp.split(scores, scores.shape[-1], -1)
        return (
            columns
            if self.kind == "number"
            else [jnp.concatenate([jnp.zeros_like(one), one], -1) for one in columns]
        )


def label_kind(objective: slots.Objective | None) -> str | None:
    """Returns the kind of the labels of a text classification; None for another objective."""
    return objective.kind if isinstance(objective, Classification) else None


@dataclasses.dataclass(frozen=True, kw_only=True)
class LabelGain(OnePass):
    """Cross-entropy of a text's class after each of its tokens (linear gain).

    Dai and Le 2015, arXiv 1511.01432, section 3. The weights grow linearly from 0 to 1 in the order
    of reading.

    The head reads each state [D] by itself: its summary is of one token. `nll` and `accuracy` are
    of the last one. Deviation: the loss is the weighted mean over the tokens of a batch.
    """

    baseline = "nll"

    tower: str = "main"
    head: str = "classify"
    leftwards: bool = False

    def of(self, tower: Tower, encoded: Encoded, batch: Batch) -> Loss:
        real, key = real_tokens(batch), batch.get("noise")
        rows, length, width = encoded.hidden.shape
        key = None if key is None else named(key, self.head)
        scores = tower.head(
            self.head, encoded.hidden.reshape(rows * length, 1, width), None, key=key
        )
        scores, label = (
            scores.reshape(rows, length, -1),
            jnp.broadcast_to(batch["label"][:, None], (rows, length)),
        )
        nll, right = nll_of(scores, label), scores.argmax(-1) == label
        read = jnp.cumsum(real[:, ::-1], 1)[:, ::-1] if self.leftwards else jnp.cumsum(real, 1)
        size = jnp.maximum(real.sum(1, keepdims=True), 1.0)
        rows = Classification.weights(batch)[:, None] * real
        loss = token_loss(nll, rows * read / size)
        return dataclasses.replace(
            loss, metrics=token_loss(nll, rows * (read == size), right, "nll").metrics
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tagging(OnePass):
    """Cross-entropy of the class of every token, `token_labels` [B, L] int32.

    `token_weights` [B, L], if present, select the tokens that count (the first piece of a word)."""

    baseline = "nll"

    tower: str = "main"
    head: str = "tag"

    def of(self, tower: Tower, encoded: Encoded, batch: Batch) -> Loss:
        scores, labels = scores_of(tower, self.head, encoded, batch), batch["token_labels"]
        weights = batch["token_weights"] if "token_weights" in batch else real_tokens(batch)
        return token_loss(nll_of(scores, labels), weights, scores.argmax(-1) == labels, "nll")


@dataclasses.dataclass(frozen=True, kw_only=True)
class NodeClasses(Tagging):
    """`Tagging` of the nodes of trees in a run on text (`data.rows.trees`).

    Word frequencies are no baseline of it.
    """

    baseline = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class AnswerSpan(OnePass):
    """The mean of the cross-entropies of an answer's first and last token.

    Devlin et al. 2019, section 4.2.

    Reads `answer_start`, `answer_end` [B] int32; a position outside the row has weight 0. The
    softmax is over all positions of the row, including padding, as in the original.
    """

    tower: str = "main"
    head: str = "span"

    def of(self, tower: Tower, encoded: Encoded, batch: Batch) -> Loss:
        return span_loss(*scores_of(tower, self.head, encoded, batch), batch)


def span_loss(start: Array, end: Array, batch: Batch) -> Loss:
    """Returns the loss of `AnswerSpan` for start and end scores [B, L]."""
    parts, exact, counted = [], jnp.ones(len(start)), jnp.zeros(len(start))
    for scores, field in ((start, "answer_start"), (end, "answer_end")):
        place, length = batch[field], scores.shape[-1]
        inside = ((place >= 0) & (place < length)).astype(jnp.float32)
        nll = nll_of(scores, jnp.clip(place, 0, length - 1))
        parts.append((0.5, token_loss(nll, inside, name=f"{field.removeprefix('answer_')}_nll")))
        exact, counted = exact * (scores.argmax(-1) == place), jnp.maximum(counted, inside)
    loss = add_losses(*parts)
    both = Ratio(exact.sum(), counted.sum())
    return dataclasses.replace(loss, metrics={**loss.metrics, "exact": both})


@dataclasses.dataclass(frozen=True, kw_only=True)
class AnswerBeams(OnePass):
    """`AnswerSpan`'s loss for a head that predicts the end given the start.

    zihangdai/xlnet, run_squad.py.

    If the batch has `no_answer` [B] in {0, 1}, half of its logistic loss is added.
    """

    tower: str = "main"
    head: str = "answer"

    def of(self, tower: Tower, encoded: Encoded, batch: Batch) -> Loss:
        beams = scores_of(tower, self.head, encoded, batch)
        parts = []
        for scores, field in ((beams.start, "start"), (beams.end, "end")):
            nll = nll_of(scores, batch[f"answer_{field}"])
            parts.append((0.5, token_loss(nll, real_rows(batch), name=f"{field}_nll")))
        if "no_answer" in batch:
            parts.append(
                (0.5, binary_loss(beams.none, batch["no_answer"], real_rows(batch), "none_nll"))
            )
        return add_losses(*parts)

    @staticmethod
    def distributions(scores: Any, batch: Batch) -> list[Array]:
        """Returns the logits of start and end."""
        return [scores.start, scores.end]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Choosing(OnePass):
    """Cross-entropy of the correct choice among C (Radford et al. 2018, section 3.3).

    The C rows of a question are adjacent in [B C, L]. `label` [B C] int32 repeats the question's
    answer in each row."""

    baseline = "nll"

    tower: str = "main"
    head: str = "choose"

    def of(self, tower: Tower, encoded: Encoded, batch: Batch) -> Loss:
        scores = scores_of(tower, self.head, encoded, batch)
        choices = scores.shape[-1]
        label, weights = batch["label"][::choices], real_rows(batch)[::choices]
        return token_loss(nll_of(scores, label), weights, scores.argmax(-1) == label, "nll")
