"""Losses of a cross-encoder on lists: a query with K texts, of which each has a grade.

The K pairs of a list are adjacent rows of a batch [G K, L] (`tasks.formats.ranked_texts`). The
field `list_scores` [G K, K] float32 holds their grades, the same in each row of a list. Rows
without a token are no texts. The head gives one logit for each row.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from ptm_jax.core import slots
from ptm_jax.core.system import System
from ptm_jax.core.towers import Tower
from ptm_jax.core.types import Array, Batch, Encoded, Loss, Ratio
from ptm_jax.objectives.base import OnePass, real_rows, scores_of, token_loss

FIELD = "list_scores"
LOW = -1e30
Weighting = Literal["none", "ndcg1", "ndcg2", "lambdarank", "ndcg2++"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class GradedLists:
    """The logits and the grades of G lists, and 1.0 for a text and 0.0 for none, each [G, K]."""

    logits: Array
    grades: Array
    real: Array

    @property
    def weights(self) -> Array:
        """[G]: 1.0 for lists with a text."""
        return self.real.max(1)

    def masked(self, values: Array) -> Array:
        """Returns values [G, K] with a very low one where there is no text."""
        return jnp.where(self.real > 0, values, LOW)

    def ordered(self, keys: Array) -> GradedLists:
        """Returns the lists by falling keys [G, K], texts before what is none."""
        order = jnp.argsort(-self.masked(jax.lax.stop_gradient(keys)), 1, stable=True)
        parts = {name: jnp.take_along_axis(part, order, 1) for name, part in vars(self).items()}
        return GradedLists(**parts)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ListLoss(OnePass):
    """Base class of the losses of lists. A subclass defines `judged(lists) -> Loss`."""

    tower: str = "main"
    head: str = "classify"

    def refusal(self, system: System) -> str | None:
        head = slots.heads_of(system, self.tower).get(self.head)
        if head is not None and slots.classes_of(head) not in (None, 1):
            return f"the head {self.head} has {slots.classes_of(head)} classes; a list needs one"
        return super().refusal(system)

    def of(self, tower: Tower, encoded: Encoded, batch: Batch) -> Loss:
        size = batch[FIELD].shape[1]
        logits = scores_of(tower, self.head, encoded, batch)[:, 0].astype(jnp.float32)
        real = real_rows(batch).reshape(-1, size)
        lists = GradedLists(logits=logits.reshape(-1, size), grades=batch[FIELD][::size], real=real)
        loss = self.judged(lists)
        graded, ranked = lists.masked(lists.grades), lists.masked(lists.logits)
        first = jnp.take_along_axis(graded, ranked.argmax(1)[:, None], 1)[:, 0] == graded.max(1)
        right = Ratio((first * lists.weights).sum(), lists.weights.sum())
        return dataclasses.replace(loss, metrics={**loss.metrics, "first": right})

    def judged(self, lists: GradedLists) -> Loss:
        """Returns the loss of lists."""
        raise NotImplementedError

    def distributions(self, scores: Array, batch: Batch) -> list[Array]:
        """Returns each logit, [B, 1]."""
        return [scores]


@dataclasses.dataclass(frozen=True, kw_only=True)
class BinaryRelevance(ListLoss):
    """The logistic loss of each text, with its grade in [0, 1] as the target: the mean over
    texts."""

    def judged(self, lists: GradedLists) -> Loss:
        loss = jax.nn.softplus(lists.logits) - lists.logits * lists.grades
        return token_loss(loss, lists.real, name="binary_relevance")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ListNet(ListLoss):
    """The cross-entropy of the softmax of the logits against the softmax of the grades (Cao et al.
    2007, Eq. 4 with the probabilities of the first place): the mean over lists."""

    def judged(self, lists: GradedLists) -> Loss:
        target = jax.nn.softmax(lists.masked(lists.grades), 1) * lists.real
        chances = jax.nn.log_softmax(lists.masked(lists.logits), 1)
        return token_loss(-(target * chances).sum(1), lists.weights, name="list_net")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ListMLE(ListLoss):
    """-log of the probability of the right order under Plackett and Luce (Xia et al. 2008, Eq. 9):
    the mean over lists.

    by_grades  the right order is by falling grades; False: the order of the data
    """

    by_grades: bool = False

    def judged(self, lists: GradedLists) -> Loss:
        if self.by_grades:
            lists = lists.ordered(lists.grades)
        logits = lists.masked(lists.logits)
        after = jax.lax.cumlogsumexp(logits, axis=1, reverse=True)
        terms = jnp.where(lists.real > 0, after - logits, 0.0) * self.shares(lists)
        return token_loss(terms.sum(1), lists.weights, name="list_mle")

    def shares(self, lists: GradedLists) -> Array:
        """Returns the weight of each place, [G, K]."""
        return jnp.ones_like(lists.real)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PositionListMLE(ListMLE):
    """`ListMLE` with the weight 2^(n - place) - 1 of each of n places, divided by their sum (Lan et
    al. 2014)."""

    def shares(self, lists: GradedLists) -> Array:
        count = lists.real.sum(1, keepdims=True)
        places = jnp.arange(1, lists.real.shape[1] + 1)
        over = jnp.maximum(count - 127, 0)  # 2^127 is the largest power of float32
        weights = (jnp.exp2(count - places - over) - jnp.exp2(-over)) * lists.real
        return weights / (weights.sum(1, keepdims=True) + 1e-10)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LambdaLoss(ListLoss):
    """-w_ij log2 sigmoid(sigma (s_i - s_j)), the mean over the pairs of a batch whose grades are
    y_i > y_j (Wang et al. 2018, Eqs. 12 to 20).

    weighting  "ndcg2++" (mu times ndcg2, plus lambdarank), "ndcg2", "lambdarank", "ndcg1" (its
               pairs are all i, j), "none" (RankNet)
    k          pairs with one of the first k places of the ranking alone; None: all. The mean is
               over these pairs

    The weights w are of the gains 2^y - 1 over the best discounted gain, and of the places by
    falling logits; they have no gradient. Negative grades have no gain.
    """

    weighting: Weighting = "ndcg2++"
    mu: float = 10.0
    sigma: float = 1.0
    k: int | None = None

    def __post_init__(self):
        if not self.sigma > 0 or (self.k is not None and self.k < 1):
            raise ValueError(
                f"sigma is {self.sigma} and k {self.k}; sigma is above 0, and k at least 1"
            )

    def judged(self, lists: GradedLists) -> Loss:
        lists = lists.ordered(lists.logits)
        size = lists.real.shape[1]
        pairs = (lists.real[:, :, None] * lists.real[:, None, :]) > 0
        if self.weighting != "ndcg1":
            pairs &= lists.grades[:, :, None] > lists.grades[:, None, :]
        near = np.minimum(*np.ogrid[:size, :size]) < (self.k or size)
        apart = lists.logits[:, :, None] - lists.logits[:, None, :]
        terms = -self._weights(lists) * jax.nn.log_sigmoid(self.sigma * apart) / np.log(2)
        total, count = jnp.where(pairs & near, terms, 0.0).sum(), (pairs & near).sum()
        weight = pairs.sum().astype(jnp.float32)
        # The weight is that of all pairs, which the logits do not decide.
        return _mean(total * weight / jnp.maximum(count, 1), weight, "lambda_loss")

    def _weights(self, lists: GradedLists) -> Array | float:
        size = lists.real.shape[1]
        discount = np.log2(np.arange(2, size + 3, dtype=np.float32))
        grades = jnp.maximum(lists.masked(lists.grades), 0.0)
        best = jnp.sort(jnp.exp2(grades) - 1, 1, descending=True) / discount[:size]
        gain = (jnp.exp2(grades) - 1) / jnp.maximum(best[:, : self.k].sum(1), 1e-10)[:, None]
        if self.weighting == "none":
            return 1.0
        if self.weighting == "ndcg1":
            return (gain / discount[:size])[:, :, None]
        places = np.arange(size)
        between = np.abs(places[:, None] - places[None, :])
        inverse = 1 / discount
        second = np.where(between > 0, inverse[between - 1] - inverse[between], 0.0)
        rank = np.abs(inverse[:size, None] - inverse[None, :size])
        of_places = {"ndcg2": second, "lambdarank": rank, "ndcg2++": self.mu * second + rank}
        return of_places[self.weighting] * jnp.abs(gain[:, :, None] - gain[:, None, :])


@dataclasses.dataclass(frozen=True, kw_only=True)
class RankNet(LambdaLoss):
    """-log2 sigmoid(sigma (s_i - s_j)), the mean over pairs with y_i > y_j (Burges et al. 2005)."""

    weighting: Weighting = "none"


@dataclasses.dataclass(frozen=True, kw_only=True)
class RankError(ListLoss):
    """The squared error of approximate ranks, discounted by the true ones (ADR-MSE: Schlatt et al.
    2025, arXiv 2405.07920): the mean over texts.

    The approximate rank of i is 1/2 plus the sum of sigmoid(alpha (s_j - s_i)) over all j; texts of
    equal grades share the mean of their true ranks.
    """

    alpha: float = 1.0

    def judged(self, lists: GradedLists) -> Loss:
        real = lists.real[:, None, :]
        apart = lists.logits[:, None, :] - lists.logits[:, :, None]
        ranks = 0.5 + (jax.nn.sigmoid(self.alpha * apart) * real).sum(2)
        mine, its = lists.grades[:, :, None], lists.grades[:, None, :]
        true = ((its > mine) * real).sum(2) + ((its == mine) * real).sum(2) / 2 + 0.5
        error = jnp.square(true - ranks) / jnp.log2(true + 1)
        return token_loss(error, lists.real, name="rank_error")


def _mean(total: Array, weight: Array, name: str) -> Loss:
    return Loss(total, weight, {name: Ratio(total, weight)})
