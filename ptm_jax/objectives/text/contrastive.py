"""Contrastive objectives: positive pairs score higher than negative pairs (survey 3.1.4, Eq. 4)."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Literal

import jax
import jax.numpy as jnp

from ptm_jax.core.towers import Tower
from ptm_jax.core.types import Array, Batch, Encoded, Loss, Ratio
from ptm_jax.objectives.base import OnePass, blind, encode_view, real_rows, token_loss, view_of

if TYPE_CHECKING:
    from ptm_jax.core.system import System


_ABSENT = -1e30


def in_batch(
    anchors: Array, positives: Array, real: Array, both_ways: bool = False
) -> tuple[Array, Array]:
    """Returns (losses [B], hits [B]) for anchors and positives [B, D].

    The other rows' positives are the negatives.

    The loss is -s_ii + log sum_j exp s_ij with dot products s, over rows j that are `real` [B].
    `both_ways` averages it with the loss of every positive against all anchors. Under `jit`,
    negatives come from the rows of all data shards.
    """
    scores = jnp.einsum(
        "bd,cd->bc", anchors, positives, precision=jax.lax.Precision.HIGHEST
    ).astype(jnp.float32)
    matching = jnp.diagonal(scores)
    across = jnp.where(real[None, :] > 0, scores, _ABSENT)
    losses = jax.nn.logsumexp(across, 1) - matching
    if both_ways:
        down = jnp.where(real[:, None] > 0, scores, _ABSENT)
        losses = (losses + jax.nn.logsumexp(down, 0) - matching) / 2
    return jnp.where(real > 0, losses, 0.0), across.argmax(1) == jnp.arange(len(scores))


def _unit(x: Array) -> Array:
    """Scales the rows of x [B, D] to norm 1. A zero row stays zero and has a finite gradient."""
    return x * jax.lax.rsqrt(jnp.maximum((x * x).sum(-1, keepdims=True), 1e-12))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pooled(OnePass):
    """Base class of objectives on rows pooled by the head `pool`."""

    tower: str = "main"
    pool: str = "pool"

    def refusal(self, system: System) -> str | None:
        return blind(system, self.tower, self.pool)


@dataclasses.dataclass(frozen=True, kw_only=True)
class InfoNCE(Pooled):
    """Contrasts the positive of a row with the positives of the other rows.

    -log exp s(x, y+) / (exp s(x, y+) + sum_j exp s(x, y_j)), where y_j are the other rows'
    positives (survey Eq. 4 with B - 1 negatives; van den Oord et al. 2018, arXiv 1807.03748, Eq.
    4).

    x is the row and y+ its second text (`pair_input_ids`, `pair_segment_ids`), both pooled by the
    head `pool`. s is their dot product or cosine, divided by `temperature`. A row with an empty
    text is not a negative and has weight 0.

    Negatives come from one pass. With gradient accumulation they come from the micro-batch, so,
    unlike all other objectives here, the update depends on the number of micro-batches.
    """

    temperature: float = 1.0
    similarity: Literal["dot", "cosine"] = "dot"
    both_ways: bool = False

    def __post_init__(self):
        if self.temperature <= 0:
            raise ValueError(f"temperature is {self.temperature}; it must be above 0")
        if self.similarity not in ("dot", "cosine"):
            raise ValueError(f"similarity is {self.similarity!r}; it must be 'dot' or 'cosine'")

    def of(self, tower: Tower, encoded: Encoded, batch: Batch) -> Loss:
        both = (encoded, batch), (encode_view(tower, batch, "pair"), view_of(batch, "pair"))
        anchors, positives = (tower.read(self.pool, *one).astype(jnp.float32) for one in both)
        if self.similarity == "cosine":
            anchors, positives = _unit(anchors), _unit(positives)
        real = real_rows(batch) * real_rows(view_of(batch, "pair"))
        nll, right = in_batch(anchors / self.temperature, positives, real, self.both_ways)
        return token_loss(nll, real, right, "pair_nll")


@dataclasses.dataclass(frozen=True, kw_only=True)
class DIM(Pooled):
    """Deep InfoMax of a sentence and its n-gram: -s(m, x+) + log sum_{neg and pos} exp s(m, .).

    Kong et al. 2020, arXiv 1910.08350, section 4; survey Table 1, row DIM, which omits the exp and
    prints the score instead of the loss.

    m is the pooled first token of the masked sentence. x is the first state of an n-gram that the
    same encoder reads separately (`ngram_input_ids`, `ngram_segment_ids` [B, S]). The other rows'
    n-grams are the negatives. InfoWord is MLM and DIM in one pass: `Joint(parts=((1.0, MLM()),
    (1.0, DIM())))`. Scores are divided by `temperature`: 1 in the paper; a narrow tower needs the
    square root of its width in the first steps. For gradient accumulation see `InfoNCE`.
    """

    temperature: float = 1.0

    def of(self, tower: Tower, encoded: Encoded, batch: Batch) -> Loss:
        sentence = tower.head(self.pool, encoded.hidden).astype(jnp.float32)
        ngram = encode_view(tower, batch, "ngram").hidden[:, 0].astype(jnp.float32)
        real = real_rows(batch) * real_rows(view_of(batch, "ngram"))
        nll, right = in_batch(sentence / self.temperature, ngram, real)
        return token_loss(nll, real, right, "dim_nll")


@dataclasses.dataclass(frozen=True, kw_only=True)
class PairwiseRanking(Pooled):
    """max(0, margin - f(x) + f(x')): ranks a text above its corrupted copy x'.

    Collobert et al. 2011, section 4.2.

    x' is `negative_input_ids` [B, L] (`negative_segment_ids`). f is the head "score" on the pooled
    row: [B] or [B, 1].
    """

    head: str = "score"
    margin: float = 1.0

    def of(self, tower: Tower, encoded: Encoded, batch: Batch) -> Loss:
        hidden = encoded.hidden, encode_view(tower, batch, "negative").hidden
        good, bad = (
            tower.head(self.head, tower.head(self.pool, states)).reshape(-1) for states in hidden
        )
        real = real_rows(batch)
        hinge = token_loss(jnp.maximum(0.0, self.margin - good + bad), real, name="ranking_loss")
        accuracy = Ratio(((good > bad) * real).sum(), real.sum())
        return Loss(hinge.sum, hinge.weight, {**hinge.metrics, "ranking_accuracy": accuracy})
