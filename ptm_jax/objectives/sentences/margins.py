"""Losses of an anchor with its own positive and negative texts: triplets, and teachers' scores."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from ptm_jax.core.types import Array, Batch, Loss
from ptm_jax.objectives.base import token_loss
from ptm_jax.objectives.sentences.base import Groups, VectorLoss, Vectors, absent
from ptm_jax.objectives.sentences.similarities import Dot, Euclidean, Similarity


def own_scores(groups: Groups, similarity: Similarity) -> Array:
    """Returns the similarities [K - 1, G] of the anchors with the texts of their own groups.
    Raises ValueError for groups without negatives."""
    if len(groups.texts) < 3:
        raise ValueError("the groups have no negatives, which this loss reads; give triplets")
    scores = [similarity.paired(groups.texts[0], text) for text in groups.texts[1:]]
    return jnp.stack(scores).astype(jnp.float32)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Triplet(VectorLoss):
    """max(0, margin - s(anchor, positive) + s(anchor, negative)), the mean over all negatives
    (Reimers and Gurevych 2019, section 3: the triplet objective). s is a similarity, by default the
    negative distance."""

    margin: float = 5.0
    similarity: Similarity = Euclidean()

    def judged(self, vectors: Vectors, batch: Batch) -> Loss:
        groups = Groups.of(vectors, batch)
        scores = own_scores(groups, self.similarity)
        hinge = jnp.maximum(0.0, self.margin - scores[0] + scores[1:])
        weights = groups.weights * groups.real[2:]
        return token_loss(hinge, weights, scores[0] > scores[1:], "triplet_nll")


@dataclasses.dataclass(frozen=True, kw_only=True)
class MarginError(VectorLoss):
    """The squared error of s(anchor, positive) - s(anchor, negative) against the same difference of
    a teacher, whose scores the data hold (Hofstaetter et al. 2020, arXiv 2010.02666, Eq. 5)."""

    similarity: Similarity = Dot()

    def judged(self, vectors: Vectors, batch: Batch) -> Loss:
        groups = Groups.of(vectors, batch)
        scores = own_scores(groups, self.similarity)
        error = (scores[0] - scores[1:]) - (groups.scores[0] - groups.scores[1:])
        weights = groups.weights * groups.real[2:]
        return token_loss(jnp.square(error), weights, name="margin_error")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SoftRanking(VectorLoss):
    """KL(teacher || model) of the distributions over the texts after the anchor, in nats.

    A distribution is the softmax of the scores divided by a temperature; the loss is multiplied by
    the square of the model's.
    """

    similarity: Similarity = Dot()
    temperature: float = 1.0
    teacher_temperature: float = 1.0

    def __post_init__(self):
        if not min(self.temperature, self.teacher_temperature) > 0:
            raise ValueError(
                f"temperature is {self.temperature} and teacher_temperature "
                f"{self.teacher_temperature}; both must be above 0"
            )

    def judged(self, vectors: Vectors, batch: Batch) -> Loss:
        groups = Groups.of(vectors, batch)
        usable = groups.real[1:] > 0
        scores = own_scores(groups, self.similarity) / self.temperature
        model = jax.nn.log_softmax(absent(scores, usable), 0)
        teacher = absent(groups.scores / self.teacher_temperature, usable)
        teacher = jax.nn.log_softmax(teacher, 0)
        terms = jnp.where(usable, jnp.exp(teacher) * (teacher - model), 0.0)
        return token_loss(terms.sum(0) * self.temperature**2, groups.weights, name="soft_ranking")
