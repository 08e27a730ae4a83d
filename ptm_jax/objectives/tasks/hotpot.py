"""Objectives of multi-document question answering (Tu et al. 2020, arXiv 1911.00484)."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp

from ptm_jax.core.towers import Tower
from ptm_jax.core.types import Array, Batch, Encoded, Loss, add_losses
from ptm_jax.objectives.base import OnePass, binary_loss, nll_of, token_loss
from ptm_jax.objectives.tasks.downstream import scores_of, span_loss


@dataclasses.dataclass(frozen=True, kw_only=True)
class DocumentPairs(OnePass):
    """The logistic loss over pairs of documents: 1 if the first has the higher grade (section 3.1).

    Reads `grade` [B C] int32, below 0 for rows without a document."""

    tower: str = "main"
    head: str = "rank"

    def of(self, tower: Tower, encoded: Encoded, batch: Batch) -> Loss:
        scores = scores_of(tower, self.head, encoded, batch)
        grade = batch["grade"].reshape(scores.shape[:2])
        first, second = grade[:, :, None], grade[:, None, :]
        pairs = (first >= 0) & (second >= 0) & ~jnp.eye(scores.shape[1], dtype=bool)
        return binary_loss(
            scores, (first > second).astype(jnp.float32), pairs.astype(jnp.float32), "pair_nll"
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class HopAnswers(OnePass):
    """`gamma` L_span + L_facts + L_kind (section 3.3).

    L_span is the span loss if the answer is a span, L_facts the logistic loss of every sentence,
    and L_kind the cross-entropy of the answer's kind. Reads `answer_start`, `answer_end`,
    `answer_kind` [B] int32 and `facts` [B, S], below 0 where there is no sentence."""

    tower: str = "main"
    head: str = "hop"
    gamma: float = 1.0

    def of(self, tower: Tower, encoded: Encoded, batch: Batch) -> Loss:
        start, end, kinds, sentences = scores_of(tower, self.head, encoded, batch)
        kind, facts = batch["answer_kind"], batch["facts"]
        right = kinds.argmax(-1) == kind
        known = (kind >= 0).astype(jnp.float32)
        which = token_loss(nll_of(kinds, jnp.maximum(kind, 0)), known, right, "kind_nll")
        evidence = binary_loss(
            sentences, (facts > 0).astype(jnp.float32), (facts >= 0).astype(jnp.float32), "fact_nll"
        )
        return add_losses((self.gamma, span_loss(start, end, batch)), (1.0, evidence), (1.0, which))

    @staticmethod
    def distributions(scores: Any, batch: Batch) -> list[Array]:
        """Returns the logits of start, end and kind."""
        return list(scores[:3])
