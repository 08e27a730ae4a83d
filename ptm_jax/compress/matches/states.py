"""Matches of the states of layers."""

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
from ptm_jax.objectives.base import real_rows, token_loss

Projection = Literal["none", "shared", "each"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _States(Match):
    """Sums a term of states [B, L, D] over the pairs of a map of layers.

    layers      the map (`matches.base.MAPS`, or pairs)
    projection  "none": both networks are equally wide; "shared": one trained dense layer maps the
                student's states of all pairs to the teacher's width; "each": one for each pair
    """

    layers: Layers = "uniform"
    projection: Projection = "none"
    weight: float = 1.0
    span: tuple[float, float] = (0.0, 1.0)
    teacher: int = 0

    reads_states = True

    def __post_init__(self):
        check_term(self)
        if self.projection not in ("none", "shared", "each"):
            raise ValueError(f"projection is {self.projection!r}; it must be none, shared or each")

    def projections(self, student: Outline, teacher: Outline) -> dict[str, tuple[int, int]]:
        layer_pairs = pairs(self.layers, student, teacher)
        sizes = student.width, teacher.width
        if self.projection == "none":
            if student.width != teacher.width:
                raise ValueError(
                    f"{type(self).__name__} compares states of one width; the student is "
                    f"{student.width} wide and the "
                    f"teacher {teacher.width}; give projection=shared"
                )
            return {}
        return (
            {"": sizes}
            if self.projection == "shared"
            else {f"_{layer}": sizes for layer, _ in layer_pairs}
        )

    def __call__(self, compared: Compared, name: str) -> Loss:
        student, teacher = compared.student, compared.teachers[self.teacher]
        losses = []
        for mine, its in pairs(self.layers, student.outline, teacher.outline):
            states, target = student.states(mine), jax.lax.stop_gradient(teacher.states(its))
            if self.projection != "none":
                states = compared.project(
                    name if self.projection == "shared" else f"{name}_{mine}", states
                )
            losses.append(self.term(states, target, compared, name))
        return summed(losses, name)

    def term(self, mine: Array, its: Array, compared: Compared, name: str) -> Loss:
        """Returns the loss of one pair of states [B, L, D]."""
        raise NotImplementedError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Hidden(_States):
    """Matches the states of student and teacher.

    The loss is the mean of (W s - t)^2 over features and tokens, summed over the pairs: TinyBERT's
    hidden states (Jiao et al. 2020, arXiv 1909.10351, Eq. 8; its Eq. 9 is the map "embeddings"),
    and MobileBERT's feature maps (Sun et al. 2020, Eq. 1).
    """

    def term(self, mine: Array, its: Array, compared: Compared, name: str) -> Loss:
        return token_loss(jnp.square(mine - its).mean(-1), compared.tokens, name=name)


@dataclasses.dataclass(frozen=True, kw_only=True)
class StateCosine(_States):
    """1 - cos(s, t) of the states of each token, of the last layer by default.

    DistilBERT: Sanh et al. 2019.
    """

    layers: Layers = "top"

    def term(self, mine: Array, its: Array, compared: Compared, name: str) -> Loss:
        return token_loss(1.0 - (_unit(mine) * _unit(its)).sum(-1), compared.tokens, name=name)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Patient(_States):
    """|s / |s| - t / |t||^2 of the state of the first token.

    BERT-PKD: Sun et al. 2019, arXiv 1908.09355, Eq. 7.

    average  the mean over features and pairs in place of their sum, as in the authors' program;
             their beta is for this
    """

    layers: Layers = "skip"
    average: bool = False

    def term(self, mine: Array, its: Array, compared: Compared, name: str) -> Loss:
        distance = jnp.square(_unit(mine[:, 0]) - _unit(its[:, 0])).sum(-1)
        if self.average:
            student, teacher = compared.student.outline, compared.teachers[self.teacher].outline
            distance = distance / (mine.shape[-1] * len(pairs(self.layers, student, teacher)))
        return token_loss(distance, real_rows(compared.student.batch), name=name)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gram(_States):
    """Matches the products of states of student and teacher.

    The loss is the squared difference of the products of all pairs of tokens, s s^T / D [L, L]
    ("tokens"; for any widths), or of all pairs of features, s^T s / L [D, D] ("features": the flow
    of Yim et al. 2017 of a layer with itself).
    """

    over: Literal["tokens", "features"] = "tokens"

    def projections(self, student: Outline, teacher: Outline) -> dict[str, tuple[int, int]]:
        if self.over == "tokens" and self.projection == "none":
            pairs(self.layers, student, teacher)
            return {}
        return super().projections(student, teacher)

    def term(self, mine: Array, its: Array, compared: Compared, name: str) -> Loss:
        if self.over == "tokens":

            def product(x):
                return jnp.einsum("bqd,bkd->bqk", x, x, precision="highest") / x.shape[-1]

            return token_loss(jnp.square(product(mine) - product(its)), compared.visible, name=name)
        real = compared.tokens[..., None]
        size = jnp.maximum(real.sum(1, keepdims=True), 1.0)

        def product(x):
            return jnp.einsum("bld,ble->bde", x * real, x, precision="highest") / size

        distance = jnp.square(product(mine) - product(its)).mean((1, 2))
        return token_loss(distance, real_rows(compared.student.batch), name=name)


def _unit(x: Array) -> Array:
    """Returns x / |x|; 0 for 0."""
    return x * jax.lax.rsqrt(jnp.maximum(jnp.square(x).sum(-1, keepdims=True), 1e-24))
