"""Prediction of lexical features of hidden words, and of a text's rating.

The features are part of speech, polarity and supersenses.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

from ptm_jax.core import slots
from ptm_jax.core.towers import Tower
from ptm_jax.core.types import Batch, Encoded, Loss, Ratio, add_losses
from ptm_jax.knowledge.word_classes import allowed
from ptm_jax.objectives.base import OnePass, corruptions_of, gather, nll_of, token_loss

if TYPE_CHECKING:
    from ptm_jax.core.system import System


@dataclasses.dataclass(frozen=True, kw_only=True)
class WordClassLoss(OnePass):
    """The cross-entropy of the class of every predicted word.

    Ke et al. 2020, arXiv 1911.02493, Eq. 5 and 6.

    Reads `mlm_positions`, `{name}_labels` [B, P] int32 and `classes_weights` [B, P]. The head
    `{name}` returns [B, P, C].
    """

    tower: str = "main"
    name: str = "parts"

    def of(self, tower: Tower, encoded: Encoded, batch: Batch) -> Loss:
        scores = tower.head(self.name, gather(encoded.hidden, batch["mlm_positions"]))
        labels = batch[f"{self.name}_labels"]
        right = scores.argmax(-1) == labels
        return token_loss(
            nll_of(scores, labels), batch["classes_weights"], right, f"{self.name}_nll"
        )

    def refusal(self, system: System) -> str | None:
        if any("LabelAwareMasking" == type(part).__name__ for part in corruptions_of(system)):
            return None
        return (
            "WordClassLoss needs the classes of hidden words; set corruption to LabelAwareMasking"
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rating(OnePass):
    """The cross-entropy of a text's class from its first token.

    Late supervision: Ke et al. 2020, Eq. 7. Rows without a label weigh 0. Reads `rating_label` and
    `rating_weights` [B].
    """

    tower: str = "main"
    head: str = "ratings"

    def of(self, tower: Tower, encoded: Encoded, batch: Batch) -> Loss:
        scores = tower.head(self.head, encoded.hidden[:, 0])
        none = jnp.zeros(len(scores), jnp.int32)
        labels, weights = (
            batch.get("rating_label", none),
            batch.get("rating_weights", none.astype(jnp.float32)),
        )
        return token_loss(
            nll_of(scores, labels), weights, scores.argmax(-1) == labels, "rating_nll"
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Supersenses(OnePass):
    """Predicts the supersenses of hidden words.

    -log sum_{s in A(w)} p(s) - 1 / |A(w)| sum_{s in A(w)} log p(s) for every hidden word w with
    supersenses A(w) (Levine et al. 2020, arXiv 1908.05646, Eq. 3 and 4).

    Reads `{prefix}_positions`, `{prefix}_weights` [B, P] and `allowed_senses` [B, L, 2]. The head
    `senses` returns [B, P, 45]. `senses_accuracy` is the share of words whose likeliest supersense
    is allowed.
    """

    tower: str = "main"
    head: str = "senses"
    prefix: str = "mlm"

    def of(self, tower: Tower, encoded: Encoded, batch: Batch) -> Loss:
        positions = batch[f"{self.prefix}_positions"]
        hidden = (
            encoded.hidden
            if self.prefix == "mlm"
            else (encoded.extra or {}).get("query", encoded.hidden)
        )
        scores = jax.nn.log_softmax(tower.head(self.head, gather(hidden, positions)))
        some = allowed(jnp.take_along_axis(batch["allowed_senses"], positions[..., None], 1))
        count = some.sum(-1)
        weights = batch[f"{self.prefix}_weights"] * (count > 0)
        within = jax.nn.logsumexp(jnp.where(some, scores, -1e9), -1)
        each = jnp.where(some, scores, 0.0).sum(-1) / jnp.maximum(count, 1)
        right = jnp.take_along_axis(some, scores.argmax(-1)[..., None], -1)[..., 0]
        first = token_loss(-within, weights, right, "senses_nll")
        second = token_loss(-each, weights, name="regulariser_nll")
        joint = add_losses((1.0, first), (1.0, second))
        share = Ratio(weights.sum(), batch[f"{self.prefix}_weights"].sum())
        return dataclasses.replace(joint, metrics={**joint.metrics, "senses_share": share})

    def refusal(self, system: System) -> str | None:
        if not any("AllowedSenses" == type(part).__name__ for part in corruptions_of(system)):
            return (
                "Supersenses needs the allowed senses of hidden words; put AllowedSenses before "
                "the masking"
            )
        encoder = slots.encoder_of(system, self.tower)
        if (
            encoder is not None
            and encoder.direction not in ("bidirectional", "both")
            and not encoder.obeys_order
        ):
            return (
                "supersenses of hidden words need both sides, and this encoder is "
                f"{encoder.direction}; take BERT's"
            )
        return None
