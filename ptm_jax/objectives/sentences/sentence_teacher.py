"""A sentence encoder that learns the vectors or the scores of a teacher."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

import jax
import jax.numpy as jnp

from ptm_jax.core.towers import Tower
from ptm_jax.core.types import Array, Batch, Loss
from ptm_jax.objectives.base import real_rows, token_loss
from ptm_jax.objectives.sentences.base import FIELD, AroundTexts, Groups, VectorLoss, Vectors
from ptm_jax.objectives.sentences.similarities import Dot, Similarity

TEACHER_VECTORS = "teacher_vectors"
"""Field [B, D] of a batch: the vectors of a teacher."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class VectorError(VectorLoss):
    """The squared error of each feature of a text's vector against the teacher's (Reimers and
    Gurevych 2020, arXiv 2004.09813, Eq. 1): the mean over features and texts."""

    def judged(self, vectors: Vectors, batch: Batch) -> Loss:
        its = batch[TEACHER_VECTORS]
        if vectors.shape != its.shape:
            raise ValueError(
                f"vectors have {vectors.shape[-1]} features and the teacher's {its.shape[-1]}; "
                "learn its scores (MarginError, SoftRanking), or take a teacher of this width"
            )
        error = jnp.square(vectors - its).mean(-1)
        return token_loss(error, real_rows(batch), name="vector_error")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Taught(AroundTexts):
    """The loss of `task` on a batch with the vectors of a `teacher`, and with its scores in the
    place of the data's.

    A score is the `similarity` of the teacher's vectors of the anchor and of another text. The
    teacher is never trained and has no dropout.
    """

    level: ClassVar[int] = 2

    teacher: str = "teacher"
    similarity: Similarity = Dot()

    @property
    def given(self) -> tuple[str, ...]:
        return (self.teacher,)

    def __call__(self, towers: Mapping[str, Tower], batch: Batch, key: Array) -> Loss:
        teacher = dataclasses.replace(towers[self.teacher], train=False)
        vectors = jax.lax.stop_gradient(teacher.read(self.head, teacher(batch), batch))
        groups = Groups.of(vectors, batch)
        anchor, *others = groups.texts
        scores = jnp.stack([self.similarity.paired(anchor, text) for text in others], 1)
        fields = {
            FIELD: jnp.repeat(scores, len(groups.texts), 0),
            TEACHER_VECTORS: vectors,
        }
        return self.task(towers, {**batch, **fields}, key)
