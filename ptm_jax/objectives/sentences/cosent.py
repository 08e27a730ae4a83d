"""Losses of pairs of texts with a number: CoSENT, AnglE, the squared error of the similarity."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from ptm_jax.core.types import Batch, Loss, Ratio
from ptm_jax.objectives.base import token_loss
from ptm_jax.objectives.sentences.base import Groups, VectorLoss, Vectors, absent
from ptm_jax.objectives.sentences.similarities import Angle, CosineScore, Similarity


@dataclasses.dataclass(frozen=True, kw_only=True)
class CoSENT(VectorLoss):
    """log(1 + sum of exp(scale (s_i - s_j))) over the pairs i, j of a batch with label i < label j.

    Huang et al. 2024 (CoSENT), doi 10.1109/TASLP.2024.3402087. s is the similarity of a pair. Only
    the order of the numbers counts. The loss is one number of a batch, with the number of its pairs
    as weight.
    """

    scale: float = 20.0
    similarity: Similarity = CosineScore()

    def __post_init__(self):
        if not self.scale > 0:
            raise ValueError(f"scale is {self.scale}; it must be above 0")

    def judged(self, vectors: Vectors, batch: Batch) -> Loss:
        groups = Groups.of(vectors, batch)
        scores = self.scale * self.similarity.paired(*groups.texts[:2]).astype(jnp.float32)
        labels, real = groups.scores[0], groups.weights > 0
        lower = (labels[:, None] < labels[None, :]) & real[:, None] & real[None, :]
        apart = absent(scores[:, None] - scores[None, :], lower).reshape(-1)
        value = jax.nn.logsumexp(jnp.concatenate([jnp.zeros(1), apart]))
        weight = groups.weights.sum()
        total = value * weight
        ordered = Ratio(((apart < 0) & lower.reshape(-1)).sum(), lower.sum())
        return Loss(total, weight, {"cosent": Ratio(total, weight), "ordered": ordered})


@dataclasses.dataclass(frozen=True, kw_only=True)
class AnglE(CoSENT):
    """CoSENT with the angle of complex vectors as the similarity (Li and Li 2024, arXiv 2309.12871,
    Eq. 9)."""

    similarity: Similarity = Angle()


@dataclasses.dataclass(frozen=True, kw_only=True)
class SimilarityError(VectorLoss):
    """The squared difference between the similarity of two texts and their number (Reimers and
    Gurevych 2019, section 3: the regression objective)."""

    similarity: Similarity = CosineScore()

    def judged(self, vectors: Vectors, batch: Batch) -> Loss:
        groups = Groups.of(vectors, batch)
        error = self.similarity.paired(*groups.texts[:2]) - groups.scores[0]
        return token_loss(jnp.square(error), groups.weights, name="similarity_error")
