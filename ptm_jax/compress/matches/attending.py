"""Matches of attention: scores, distributions, and relations of values, keys or queries."""

from __future__ import annotations

import dataclasses
from typing import Literal

import jax
import jax.numpy as jnp

from ptm_jax.compress.matches.base import (
    Compared,
    Layers,
    Match,
    Outline,
    check_term,
    pairs,
    summed,
)
from ptm_jax.core.types import Array, Loss
from ptm_jax.nn.attention.multihead import Projected
from ptm_jax.objectives.base import token_loss


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Attention(Match):
    """Sums a term over the pairs of a map of layers. Networks may differ in width, not in the
    number of heads."""

    layers: Layers = "uniform"
    weight: float = 1.0
    span: tuple[float, float] = (0.0, 1.0)
    teacher: int = 0

    reads_states = True
    reads_heads = True

    def __post_init__(self):
        check_term(self)

    def projections(self, student: Outline, teacher: Outline) -> dict[str, tuple[int, int]]:
        if None in (student.heads, teacher.heads):
            raise ValueError(
                f"{type(self).__name__} compares attention, which both networks need; match "
                "states instead"
            )
        if student.heads != teacher.heads:
            raise ValueError(
                f"{type(self).__name__} compares head by head; the student has "
                f"{student.heads} heads and the teacher "
                f"{teacher.heads}; give the student as many"
            )
        if any(0 in pair for pair in pairs(self.layers, student, teacher)):
            raise ValueError(
                f"the map {self.layers!r} names the embeddings, which have no attention; "
                "begin with layer 1"
            )
        return {}

    def __call__(self, compared: Compared, name: str) -> Loss:
        student, teacher = compared.student, compared.teachers[self.teacher]
        losses = []
        for mine, its in pairs(self.layers, student.outline, teacher.outline):
            term = self.term(
                student.heads(mine), jax.lax.stop_gradient(teacher.heads(its)), compared.visible
            )
            weights = compared.tokens if term.ndim == 2 else compared.visible
            losses.append(token_loss(term, weights, name=name))
        return summed(losses, name)

    def term(self, mine: Projected, its: Projected, visible: Array) -> Array:
        """Returns the term of each token [B, L], or of each visible pair [B, L, L]."""
        raise NotImplementedError


def products(left: Array, right: Array, scale: Array) -> Array:
    """Returns scale * left right^T [B, H, L, L] float32 of [B, L, H, K]."""
    left, right = (x.astype(jnp.float32) for x in (left, right))
    return jnp.einsum("bqhd,bkhd->bhqk", left, right, precision="highest") * scale


def divergence(mine: Array, its: Array, visible: Array) -> Array:
    """Returns the mean over heads of KL(softmax(its) || softmax(mine)) [B, L].

    Scores are [B, H, L, L], over visible keys.
    """
    seen = visible[:, None] > 0

    def logs(scores):
        return jax.nn.log_softmax(jnp.where(seen, scores, -1e30), -1)

    p, q = logs(its), logs(mine)
    return jnp.where(seen, jnp.exp(p) * (p - q), 0.0).sum(-1).mean(1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class AttentionScores(_Attention):
    """Matches the attention scores of student and teacher before the softmax.

    The loss is the squared difference of q k^T / sqrt(K), the mean over heads and visible pairs of
    tokens, summed over the pairs of layers (TinyBERT: Jiao et al. 2020, Eq. 7).

    Deviation: the authors' program sets masked scores to 0 and counts them in the mean; here they
    do not count.
    """

    def term(self, mine: Projected, its: Projected, visible: Array) -> Array:
        return jnp.square(_scores(mine) - _scores(its)).mean(1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class AttentionMaps(_Attention):
    """Matches the attention distributions of student and teacher.

    The loss is their KL divergence, the mean over heads and tokens: MiniLM's for the last layers
    (Wang et al. 2020, arXiv 2002.10957, Eq. 6), MobileBERT's for all (Sun et al. 2020, arXiv
    2004.02984, Eq. 2). Relative positions do not count.
    """

    layers: Layers = "top"

    def term(self, mine: Projected, its: Projected, visible: Array) -> Array:
        return divergence(_scores(mine), _scores(its), visible)


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeadRelations(_Attention):
    """KL of the softmaxes of V V^T / sqrt(K), mean over heads and tokens.

    MiniLM: Wang et al. 2020, Eqs. 7 to 9.

    vectors  "value" (MiniLM), "query" or "key" (with the value: MiniLMv2)
    """

    layers: Layers = "top"
    vectors: Literal["value", "query", "key"] = "value"

    def __post_init__(self):
        super().__post_init__()
        if self.vectors not in ("value", "query", "key"):
            raise ValueError(f"vectors is {self.vectors!r}; it must be value, query or key")

    def term(self, mine: Projected, its: Projected, visible: Array) -> Array:
        return divergence(self._relation(mine), self._relation(its), visible)

    def _relation(self, heads: Projected) -> Array:
        x = {"value": heads.value, "query": heads.query, "key": heads.key}[self.vectors]
        return products(x, x, x.shape[-1] ** -0.5)


def _scores(heads: Projected) -> Array:
    return products(heads.query, heads.key, heads.scale)
