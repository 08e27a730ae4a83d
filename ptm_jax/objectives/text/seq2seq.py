"""Predicts a target from left to right (survey Table 1, rows Seq2Seq MLM and DAE)."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Literal

from ptm_jax.core import slots
from ptm_jax.core.towers import Tower
from ptm_jax.core.types import Batch, Encoded, Loss, Ratio
from ptm_jax.objectives.base import OnePass, corruptions_of, token_loss
from ptm_jax.objectives.text.language import followers
from ptm_jax.objectives.text.text_traits import SideModels

if TYPE_CHECKING:
    from ptm_jax.core.system import System


@dataclasses.dataclass(frozen=True, kw_only=True)
class Seq2Seq(OnePass):
    """Predicts a target from a source: -sum_t log p(y_t | x, y_<t).

    The corruption defines x and y: MASS, BART, T5, PEGASUS, translation.

    The indices of Seq2Seq MLM in survey Table 1 are wrong; it is -sum_{t=i..j} log p(x_t | x
    without i:j, x_i:t-1).

    Reads `decoder_labels` [B, T] int32 and `decoder_weights` [B, T]. The last T hidden states
    predict the labels, so it works with a decoder and with a single network that has the target at
    the end of the row (UniLM). `label_smoothing` spreads that share of the target distribution
    uniformly over V (Vaswani et al. 2017, section 5.4); the metric `nll` excludes it.

    Refuses a single network unless the corruption writes source and target into one row
    (`core.slots.OneRow`).
    """

    baseline = "nll"

    tower: str = "main"
    head: str = "lm"
    label_smoothing: float = 0.0

    def __post_init__(self):
        if not 0 <= self.label_smoothing < 1:
            raise ValueError(f"label_smoothing is {self.label_smoothing}; it must be in [0, 1)")

    def of(self, tower: Tower, encoded: Encoded, batch: Batch) -> Loss:
        labels, weights = batch["decoder_labels"], batch["decoder_weights"]
        readout = tower.head(
            self.head, encoded.hidden[:, encoded.hidden.shape[1] - labels.shape[1] :]
        )
        if not self.label_smoothing:
            return token_loss(readout.nll(labels), weights)
        judged = readout.judge(labels, smoothing=self.label_smoothing)
        loss, smooth = token_loss(judged.nll, weights), (judged.loss * weights).sum()
        return Loss(smooth, loss.weight, {**loss.metrics, "smooth_nll": Ratio(smooth, loss.weight)})

    def refusal(self, system: System) -> str | None:
        encoder = slots.encoder_of(system, self.tower)
        if (
            encoder is None
            or encoder.direction == "decoder"
            or any(isinstance(one, slots.OneRow) for one in corruptions_of(system))
        ):
            return None
        return (
            f"Seq2Seq needs a decoder, and this encoder is {encoder.direction}; take an "
            "EncoderDecoder, or a corruption "
            "that lays source and target into one row"
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class SideLM(OnePass):
    """The loss of one of the two language models inside an encoder-decoder, on its side of a pair.

    -sum_t log p(x_t | x_<t) or -sum_t log p(y_t | y_<t) (Ramachandran et al. 2017, arXiv
    1611.02683, section 2.2).

    side    "source" reads the states of the encoder's first layer, `extra["first"]` [B, L, P], and
            predicts each next token of `input_ids`; "target" reads `extra["below"]` [B, T, P] and
            predicts `decoder_labels`
    head    the softmax of that language model

    Deviation: the paper trains the language models on monolingual texts, not on the pairs.
    """

    side: Literal["source", "target"] = "target"
    head: str = "lm"
    tower: str = "main"

    @property
    def baseline(self) -> str:
        return f"{self.side}_nll"

    def of(self, tower: Tower, encoded: Encoded, batch: Batch) -> Loss:
        if self.side == "source":
            states, labels, weights = (
                encoded.extra["first"][:, :-1],
                batch["input_ids"][:, 1:],
                followers(batch),
            )
        else:
            states, labels, weights = (
                encoded.extra["below"],
                batch["decoder_labels"],
                batch["decoder_weights"],
            )
        return token_loss(tower.head(self.head, states).nll(labels), weights, name=self.baseline)

    def refusal(self, system: System) -> str | None:
        encoder = slots.encoder_of(system, self.tower)
        if encoder is None or isinstance(encoder, SideModels):
            return None
        return (
            "SideLM reads the language models of an encoder-decoder, which this encoder has "
            "not; take a LanguagePair"
        )
