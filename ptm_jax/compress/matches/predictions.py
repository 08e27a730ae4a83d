"""Matches of predictions (Bucilua et al. 2006; Hinton et al. 2015, arXiv 1503.02531)."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp

from ptm_jax.compress.matches.base import Compared, Match, check_term
from ptm_jax.core.errors import UserError
from ptm_jax.core.types import Array, Loss, add_losses
from ptm_jax.objectives.base import token_loss


def soft_targets(
    student: Array, teachers: Sequence[Array], temperature: float, entropy: bool = False
) -> Array:
    """Returns T^2 KL(p || q) [..] for logits [.., C].

    q the student's softmax at temperature T, p the mean of the teachers'.

    With `entropy` it is the cross-entropy -T^2 sum p log q, which has the same gradient.
    """
    soft = sum(jax.nn.softmax(one / temperature) for one in teachers) / len(teachers)
    divergence = -(soft * jax.nn.log_softmax(student / temperature)).sum(-1)
    if not entropy:
        divergence = divergence + jax.scipy.special.xlogy(soft, soft).sum(-1)
    return temperature**2 * divergence


def squared(student: Array, teachers: Sequence[Array]) -> Array:
    """Returns the mean over C of (s - t)^2, t the mean of the teachers' logits [.., C]."""
    return jnp.square(student - sum(teachers) / len(teachers)).mean(-1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Predictions(Match):
    """Compares the student's logits with the logits of all teachers.

    heads    names of the predictions that count, such as "mlm" of a joint task; default: all
    """

    heads: tuple[str, ...] = ()
    weight: float = 1.0
    span: tuple[float, float] = (0.0, 1.0)

    def __post_init__(self):
        check_term(self)

    def __call__(self, compared: Compared, name: str) -> Loss:
        mine, losses = compared.student.predictions, []
        names = self.heads or tuple(mine)
        for head in names:
            if head not in mine:
                raise UserError(
                    f"the task has no predictions {head!r} to distil; it has {', '.join(mine)}"
                )
            scores, weights = mine[head]
            theirs = [
                jax.lax.stop_gradient(teacher.predictions[head][0]) for teacher in compared.teachers
            ]
            if odd := [one.shape[-1] for one in theirs if one.shape != scores.shape]:
                raise UserError(
                    f"the teacher predicts {odd[0]} classes and the student "
                    f"{scores.shape[-1]} ({head}); take a teacher of "
                    "the same task and vocabulary"
                )
            number = scores.shape[-1] == 1
            term = squared(scores, theirs) if number else self.of(scores, theirs)
            losses.append((1.0 / len(names), token_loss(term, weights, name=name)))
        return add_losses(*losses)

    def of(self, student: Array, teachers: Sequence[Array]) -> Array:
        """Returns the term [..] for logits [.., C]."""
        raise NotImplementedError


@dataclasses.dataclass(frozen=True, kw_only=True)
class SoftTargets(_Predictions):
    """T^2 KL(p || q) of the softmaxes at temperature T, p the mean over the teachers.

    Hinton et al. 2015, section 2. The survey's Eq. 5 leaves out the minus of the cross-entropy. For
    regression it is the squared difference.

    kind  "kl", which is 0 for equal predictions, or "cross_entropy", with the same gradient
    """

    temperature: float = 1.0
    kind: Literal["kl", "cross_entropy"] = "kl"

    def __post_init__(self):
        super().__post_init__()
        if self.temperature <= 0 or self.kind not in ("kl", "cross_entropy"):
            raise ValueError(
                f"temperature is {self.temperature}, kind {self.kind!r}; above 0, and kl or "
                "cross_entropy"
            )

    def of(self, student: Array, teachers: Sequence[Array]) -> Array:
        return soft_targets(student, teachers, self.temperature, self.kind == "cross_entropy")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Logits(_Predictions):
    """The squared difference of the logits, mean over classes.

    Ba and Caruana 2014, arXiv 1312.6184; Tang et al. 2019.
    """

    def of(self, student: Any, teachers: Sequence[Array]) -> Array:
        return squared(student, teachers)
