"""Reading comprehension beyond spans: answer kind and rationale (CoQA), and answerability."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from ptm_jax.core.towers import Tower
from ptm_jax.core.types import Array, Batch, Encoded, Loss, Ratio, add_losses
from ptm_jax.objectives.base import OnePass, binary_loss, nll_of, real_rows, real_tokens, token_loss
from ptm_jax.objectives.tasks.downstream import scores_of, span_loss


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConversationAnswers(OnePass):
    """Predicts an answer (a span, yes, no or unknown) and the tokens of its rationale (Ju et al.
    2019, section 2):

        L = (CE([start; kinds]) + CE([end; kinds])) / 2 + beta BCE(rationale)

    The softmax is over the row's tokens and the kinds together; the BCE is a mean over tokens.
    Reads `answer_start`, `answer_end`, `answer_kind` [B] int32 (0: a span, k: kind k, -1: a row of
    weight 0) and `rationale` [B, L].
    """

    tower: str = "main"
    head: str = "converse"
    beta: float = 1.0

    def of(self, tower: Tower, encoded: Encoded, batch: Batch) -> Loss:
        scores = scores_of(tower, self.head, encoded, batch)
        kind, real = batch["answer_kind"], real_tokens(batch)
        weights, parts = (kind >= 0).astype(jnp.float32), []
        exact = jnp.ones(len(kind))
        for joined, field in zip(
            self.distributions(scores, batch), ("answer_start", "answer_end"), strict=True
        ):
            length = real.shape[1]
            place = jnp.where(kind > 0, length + kind - 1, jnp.clip(batch[field], 0, length - 1))
            exact = exact * (joined.argmax(-1) == place)
            parts.append(
                (
                    0.5,
                    token_loss(
                        nll_of(joined, place), weights, name=f"{field.removeprefix('answer_')}_nll"
                    ),
                )
            )
        rationale = scores[3]
        logistic = jax.nn.softplus(jnp.where(batch["rationale"] > 0, -rationale, rationale))
        parts.append(
            (self.beta, token_loss(logistic, real * weights[:, None], name="rationale_nll"))
        )
        loss = add_losses(*parts)
        return dataclasses.replace(
            loss, metrics={**loss.metrics, "exact": Ratio((exact * weights).sum(), weights.sum())}
        )

    @staticmethod
    def distributions(scores: Any, batch: Batch) -> list[Array]:
        """Returns the logits of start and end, each [B, L + C]."""
        start, end, kinds, _ = scores
        seen = real_tokens(batch) > 0
        return [jnp.concatenate([jnp.where(seen, part, -1e30), kinds], -1) for part in (start, end)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class VerifiedSpan(OnePass):
    """`alpha1` L_span + `alpha2` L_none (Zhang et al. 2021, arXiv 2001.09694, section 3.3).

    L_span is the loss of `AnswerSpan`. L_none is the logistic loss for `no_answer` [B], 1 if the
    row has no answer."""

    tower: str = "main"
    head: str = "verified"
    alpha1: float = 0.5
    alpha2: float = 0.5

    def of(self, tower: Tower, encoded: Encoded, batch: Batch) -> Loss:
        start, end, none = scores_of(tower, self.head, encoded, batch)
        check = binary_loss(none, batch["no_answer"], real_rows(batch), "none_nll")
        return add_losses((self.alpha1, span_loss(start, end, batch)), (self.alpha2, check))

    @staticmethod
    def distributions(scores: Any, batch: Batch) -> list[Array]:
        """Returns the logits of start and end, and of [0, none]."""
        start, end, none = scores
        return [start, end, jnp.concatenate([jnp.zeros_like(none), none], -1)]
