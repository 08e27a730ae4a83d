"""Language modelling: left to right, both directions, masked, cloze, permuted (survey Table 1)."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np

from ptm_jax.core import slots
from ptm_jax.core.batch import segments_of
from ptm_jax.core.towers import Tower
from ptm_jax.core.types import Array, Batch, Encoded, Loss, Ratio, add_losses
from ptm_jax.objectives.base import OnePass, corruptions_of, gather, real_tokens, token_loss
from ptm_jax.objectives.text.text_traits import LastStates, QueryStream, TwoDirections
from ptm_jax.objectives.vectors.noise_words import word_nll

if TYPE_CHECKING:
    from ptm_jax.core.system import System


@dataclasses.dataclass(frozen=True, kw_only=True)
class MLM(OnePass):
    """Masked language modelling (survey Table 1, row MLM).

    -log p(x_i | corrupted x) at the chosen positions only.

    Reads `mlm_positions`, `mlm_labels`, `mlm_weights` [B, P] from a corruption. `prefix` replaces
    "mlm" in these fields and in the metrics. The vocabulary head runs only on the gathered
    positions. UniLMv2's pseudo-masked language model combines the prefixes "mlm" and "plm" in one
    pass (Bao et al. 2020, arXiv 2002.12804).
    """

    tower: str = "main"
    head: str = "mlm"
    prefix: str = "mlm"

    @property
    def baseline(self) -> str:
        return f"{self.prefix}_nll"

    def of(self, tower: Tower, encoded: Encoded, batch: Batch) -> Loss:
        return predicted(tower, self.head, encoded.hidden, batch, self.prefix)

    def predictions(
        self, tower: Tower, encoded: Encoded, batch: Batch
    ) -> dict[str, tuple[Array, Array]]:
        states = gather(encoded.hidden, batch[f"{self.prefix}_positions"])
        return {
            self.prefix: (tower.head(self.head, states).logits(), batch[f"{self.prefix}_weights"])
        }


def predicted(
    tower: Tower, head: str, states: Array, batch: Batch, prefix: str, **options: float
) -> Loss:
    """Returns the loss for predicting the labels of `prefix` from `states` [B, L, D].

    `options` are those of `judge`. The metric is the log-likelihood without them."""
    positions, labels, weights = (
        batch[f"{prefix}_{field}"] for field in ("positions", "labels", "weights")
    )
    judged = tower.head(head, gather(states, positions)).judge(labels, **options)
    loss = token_loss(judged.nll, weights, judged.right, f"{prefix}_nll")
    return dataclasses.replace(loss, sum=(judged.loss * weights).sum()) if options else loss


def followers(batch: Batch) -> Array:
    """Returns 1.0 where a token and its predecessor lie in the same segment, [B, L-1]."""
    segments = segments_of(batch)
    return ((segments[:, 1:] == segments[:, :-1]) & (segments[:, 1:] > 0)).astype(jnp.float32)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LM(OnePass):
    """Left-to-right language modelling: -log p(x_t | x_<t), shifted here (survey Table 1, row LM).

    A token is a target if its predecessor lies in the same segment; padding never is. The first
    token of a row is not a target, even if the encoder remembers the previous row.

    Refuses an encoder that is not causal, unless the corruption writes a left-to-right `order` for
    every row (`Corruption.left_to_right`).
    """

    baseline = "nll"

    tower: str = "main"
    head: str = "lm"

    def of(self, tower: Tower, encoded: Encoded, batch: Batch) -> Loss:
        readout = tower.head(self.head, encoded.hidden[:, :-1])
        return token_loss(readout.nll(batch["input_ids"][:, 1:]), followers(batch), name="nll")

    def predictions(
        self, tower: Tower, encoded: Encoded, batch: Batch
    ) -> dict[str, tuple[Array, Array]]:
        return {
            self.head: (tower.head(self.head, encoded.hidden[:, :-1]).logits(), followers(batch))
        }

    def refusal(self, system: System) -> str | None:
        encoder = slots.encoder_of(system, self.tower)
        if encoder is None or encoder.direction == "causal":
            return None
        if encoder.obeys_order and any(c.left_to_right for c in corruptions_of(system)):
            return None
        other = {"both": "BiLM", "decoder": "Seq2Seq"}.get(encoder.direction, "MLM")
        return (
            f"LM predicts the next token, which {_KINDS[encoder.direction]} sees; take a causal "
            f"encoder, or {other}"
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class RegularisedLM(LM):
    """`LM` with two penalties of the last layer's states.

    Merity et al. 2018, arXiv 1708.02182, section 4.5.

    activation   times the mean of h^2 over the features and tokens, after dropout (AR)
    change       times the mean of (h_t - h_{t+1})^2 before dropout (TAR); both tokens lie in one
                 segment
    """

    activation: float = 2.0
    change: float = 1.0

    def of(self, tower: Tower, encoded: Encoded, batch: Batch) -> Loss:
        return self.penalised(super().of(tower, encoded, batch), encoded, batch)

    def penalised(self, loss: Loss, encoded: Encoded, batch: Batch) -> Loss:
        """Returns the loss plus the penalties; the loss alone where both weights are 0."""
        if not self.activation and not self.change:
            return loss
        h, raw = encoded.hidden, encoded.extra["last"].astype(jnp.float32)
        size = jnp.square(h.astype(jnp.float32)).mean(-1)
        step = jnp.square(raw[:, 1:] - raw[:, :-1]).mean(-1)
        penalties = (
            token_loss(size, real_tokens(batch), name="activation"),
            token_loss(step, followers(batch), name="change"),
        )
        return add_losses((1.0, loss), (self.activation, penalties[0]), (self.change, penalties[1]))

    def refusal(self, system: System) -> str | None:
        encoder = slots.encoder_of(system, self.tower)
        last = encoder is None or isinstance(encoder, LastStates)
        if (self.activation or self.change) and not last:
            reads = (
                f"{type(self).__name__} reads the last states before dropout, which this "
                "encoder does not return"
            )
            return f"{reads}; set activation and change to 0"
        return super().refusal(system)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reconstruction(LM):
    """`LM` of the tokens with 1 in the field `again`: a sequence autoencoder.

    Encoder and decoder have the same parameters (Dai and Le 2015, arXiv 1511.01432, section 2).
    """

    def of(self, tower: Tower, encoded: Encoded, batch: Batch) -> Loss:
        readout = tower.head(self.head, encoded.hidden[:, :-1])
        weights = followers(batch) * batch["again"][:, 1:]
        return token_loss(readout.nll(batch["input_ids"][:, 1:]), weights, name="nll")


@dataclasses.dataclass(frozen=True, kw_only=True)
class BiLM(OnePass):
    """The mean forward loss plus the mean backward loss, with a shared head.

    -log p(x_t | x_<t) and -log p(x_t | x_>t) (survey Table 1, row BiLM; Peters et al. 2018, section
    3.1).

    Reads `forward` and `backward` [B, L, D] from the encoder's `extra`: forward[t] predicts
    x_{t+1}, backward[t] predicts x_{t-1}. The metric `nll` is the mean of both directions.
    Deviation: allenai/bilm-tf halves the sum. `sampled`: noise words of the training loss
    (`objectives.vectors.noise_words`; 0: the whole vocabulary); evaluation reads the whole
    vocabulary.
    """

    baseline = "nll"

    tower: str = "main"
    head: str = "lm"
    sampled: int = 0

    def of(self, tower: Tower, encoded: Encoded, batch: Batch) -> Loss:
        ids, weights = batch["input_ids"], followers(batch)
        keys = (
            jax.random.split(batch["noise"])
            if self.sampled and tower.train and "noise" in batch
            else (None, None)
        )

        def readout(way, part):
            return tower.head(self.head, encoded.extra[way][:, part])

        forward = word_nll(readout("forward", np.s_[:-1]), ids[:, 1:], self.sampled, keys[0])
        backward = word_nll(readout("backward", np.s_[1:]), ids[:, :-1], self.sampled, keys[1])
        ways = (
            token_loss(forward, weights, name="forward_nll"),
            token_loss(backward, weights, name="backward_nll"),
        )
        loss = add_losses(*((1.0, way) for way in ways))
        both = Ratio(loss.sum.sum(), loss.weight.sum())
        return dataclasses.replace(loss, metrics={**loss.metrics, "nll": both})

    def refusal(self, system: System) -> str | None:
        encoder = slots.encoder_of(system, self.tower)
        if encoder is None or isinstance(encoder, TwoDirections):
            return None
        return (
            "BiLM needs two directions in which no token sees itself; this is "
            f"{_KINDS[encoder.direction]}"
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cloze(OnePass):
    """Predicts every token from all others: -log p(x_t | x_<t, x_>t).

    Baevski et al. 2019, arXiv 1903.07785, section 3.

    `hidden[t]` combines the states of both directions and does not see x_t. Every token except
    padding counts.
    """

    baseline = "cloze_nll"

    tower: str = "main"
    head: str = "lm"

    def of(self, tower: Tower, encoded: Encoded, batch: Batch) -> Loss:
        nll = tower.head(self.head, encoded.hidden).nll(batch["input_ids"])
        return token_loss(nll, real_tokens(batch), name="cloze_nll")

    def refusal(self, system: System) -> str | None:
        encoder = slots.encoder_of(system, self.tower)
        if encoder is None or encoder.direction == "both":
            return None
        return (
            "Cloze needs two directions in which no token sees itself; this is "
            f"{_KINDS[encoder.direction]}"
        )


_KINDS = {
    "bidirectional": "a bidirectional encoder",
    "causal": "a causal encoder",
    "backward": "a right-to-left encoder",
    "decoder": "an encoder with a decoder",
    "both": "an encoder of two directions",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class PLM(OnePass):
    """Permutation language modelling (survey Table 1, row PLM; Yang et al. 2019, Eq. 5).

    -log p(x_{z_t} | x_{z_<t}) for the last tokens of an order z.

    Predicts from the query stream, which sees the position of the target but not the target. Reads
    `plm_positions`, `plm_labels`, `plm_weights` [B, P]; the encoder reads `order`. The labels are
    the tokens of the row, which is not masked.
    """

    baseline = "plm_nll"

    tower: str = "main"
    head: str = "lm"

    def of(self, tower: Tower, encoded: Encoded, batch: Batch) -> Loss:
        return predicted(tower, self.head, encoded.extra["query"], batch, "plm")

    def refusal(self, system: System) -> str | None:
        encoder = slots.encoder_of(system, self.tower)
        if isinstance(encoder, QueryStream) and encoder.streams == 2:
            return None
        return (
            "PLM reads a query stream, which this encoder has not; take XLNet's, or MLM with a "
            "corruption that hides"
        )
