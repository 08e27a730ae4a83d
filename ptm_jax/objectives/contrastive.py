"""Contrastive objectives: what belongs together scores higher than what does not (survey 3.1.4, Eq. 4)."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import jax
import jax.numpy as jnp

from ptm_jax.core.towers import Tower
from ptm_jax.core.types import Array, Batch, Encoded, Loss, Ratio
from ptm_jax.objectives.base import OnePass, blind, encode_view, real_rows, token_loss, view_of

_ABSENT = -1e30


def in_batch(anchors: Array, positives: Array, real: Array, both_ways: bool = False) -> tuple[Array, Array]:
    """([B] losses, [B] hits) of anchors [B, D] and positives [B, D]: row i's positive against those of the other rows.

    -s_ii + log sum_j exp s_ij, s = dot products, over the rows j that are `real` [B]. `both_ways` takes the mean with
    the same over the anchors of every positive. Under `jit` the rows of all data shards are negatives of each other.
    """
    scores = jnp.einsum("bd,cd->bc", anchors, positives, precision=jax.lax.Precision.HIGHEST).astype(jnp.float32)
    own = jnp.diagonal(scores)
    across = jnp.where(real[None, :] > 0, scores, _ABSENT)
    losses = jax.nn.logsumexp(across, 1) - own
    if both_ways:
        down = jnp.where(real[:, None] > 0, scores, _ABSENT)
        losses = (losses + jax.nn.logsumexp(down, 0) - own) / 2
    return jnp.where(real > 0, losses, 0.0), across.argmax(1) == jnp.arange(len(scores))


def _unit(x: Array) -> Array:
    """x [B, D] with rows of length 1; a zero row stays, and has a gradient."""
    return x * jax.lax.rsqrt(jnp.maximum((x * x).sum(-1, keepdims=True), 1e-12))


@dataclasses.dataclass(frozen=True, kw_only=True)
class InfoNCE(OnePass):
    """-log exp s(x, y+) / (exp s(x, y+) + sum_j exp s(x, y_j)), the y_j being the other rows' positives (survey Eq. 4 with
    B - 1 negatives; van den Oord et al. 2018, arXiv 1807.03748, Eq. 4).

    x is the row and y+ its second text (`pair_input_ids`, `pair_segment_ids`), both pooled by the head `pool`; s is their
    product, or cosine, over `temperature`. A row without a token on either side is no negative and has no weight.

    Negatives are the rows of one pass: with gradient accumulation those of the micro-batch, so, unlike every other
    objective here, the update depends on their number.
    """

    tower: str = "main"
    pool: str = "pool"
    temperature: float = 1.0
    similarity: Literal["dot", "cosine"] = "dot"
    both_ways: bool = False

    def __post_init__(self):
        if self.temperature <= 0:
            raise ValueError(f"temperature is {self.temperature}; it must be above 0")
        if self.similarity not in ("dot", "cosine"):
            raise ValueError(f"similarity is {self.similarity!r}; it must be 'dot' or 'cosine'")

    def of(self, tower: Tower, encoded: Encoded, batch: Batch) -> Loss:
        hidden = encoded.hidden, encode_view(tower, batch, "pair").hidden
        anchors, positives = (tower.head(self.pool, states).astype(jnp.float32) for states in hidden)
        if self.similarity == "cosine":
            anchors, positives = _unit(anchors), _unit(positives)
        real = real_rows(batch) * real_rows(view_of(batch, "pair"))
        nll, right = in_batch(anchors / self.temperature, positives, real, self.both_ways)
        return token_loss(nll, real, right, "pair_nll")

    def refusal(self, system: Any) -> str | None:
        return blind(system, self.tower, self.pool)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DIM(OnePass):
    """Deep InfoMax of a sentence and its n-gram: -s(m, x+) + log sum_{neg and pos} exp s(m, .) (survey Table 1, row DIM,
    which lacks the exp and prints a score where this is a loss; Kong et al. 2020, arXiv 1910.08350, section 4).

    m is the pooled first token of the masked sentence, x the first state of an n-gram that the same encoder reads alone
    (`ngram_input_ids`, `ngram_segment_ids` [B, S]); the other rows' n-grams are the negatives. InfoWord is MLM and DIM
    in one pass: `Joint(parts=((1.0, MLM()), (1.0, DIM())))`. Scores are divided by `temperature` (1: the paper's; a
    narrow tower's first steps want the square root of its width). With gradient accumulation see `InfoNCE`.
    """

    tower: str = "main"
    pool: str = "pool"
    temperature: float = 1.0

    def of(self, tower: Tower, encoded: Encoded, batch: Batch) -> Loss:
        sentence = tower.head(self.pool, encoded.hidden).astype(jnp.float32)
        ngram = encode_view(tower, batch, "ngram").hidden[:, 0].astype(jnp.float32)
        real = real_rows(batch) * real_rows(view_of(batch, "ngram"))
        nll, right = in_batch(sentence / self.temperature, ngram, real)
        return token_loss(nll, real, right, "dim_nll")

    def refusal(self, system: Any) -> str | None:
        return blind(system, self.tower, self.pool)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PairwiseRanking(OnePass):
    """max(0, margin - f(x) + f(x')): a text scores higher than its corrupted self (Collobert et al. 2011, section 4.2).

    x' is `negative_input_ids` [B, L] (`negative_segment_ids`), f the head "score" of the pooled row: [B] or [B, 1].
    """

    tower: str = "main"
    pool: str = "pool"
    head: str = "score"
    margin: float = 1.0

    def of(self, tower: Tower, encoded: Encoded, batch: Batch) -> Loss:
        hidden = encoded.hidden, encode_view(tower, batch, "negative").hidden
        good, bad = (tower.head(self.head, tower.head(self.pool, states)).reshape(-1) for states in hidden)
        real = real_rows(batch)
        hinge = token_loss(jnp.maximum(0.0, self.margin - good + bad), real, name="ranking_loss")
        return Loss(hinge.sum, hinge.weight, {**hinge.metrics, "ranking_accuracy": _share(good > bad, real)})

    def refusal(self, system: Any) -> str | None:
        return blind(system, self.tower, self.pool)


def _share(right: Array, weights: Array) -> Ratio:
    return Ratio((right * weights).sum(), weights.sum())
