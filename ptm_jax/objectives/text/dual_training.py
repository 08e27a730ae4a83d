"""Joint training of a teacher and of a student with a smaller vocabulary.

Zhao et al. 2019, arXiv 1909.11687.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp

from ptm_jax.core import slots
from ptm_jax.core.batch import rows_of
from ptm_jax.core.paths import flatten
from ptm_jax.core.streams import named
from ptm_jax.core.towers import Tower
from ptm_jax.core.types import Array, Batch, Loss, Ratio, add_losses
from ptm_jax.objectives.base import gather, token_loss

if TYPE_CHECKING:
    from ptm_jax.core.system import System


TEACHER, MATRICES = "teacher", "projections"
_QUERY, _OUT = (
    re.compile(r"attention/(query|key|value)/(kernel|bias)$"),
    re.compile(r"attention/out/kernel$"),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DualTraining(slots.Objective):
    """L_MLM(student) + L_MLM(teacher) + `epsilon` (L_down + L_up) (section 3.3).

    The student reads rows in its vocabulary. The teacher reads rows that mix both vocabularies
    (`corruptions.masking.two_vocabularies`). It predicts a hidden piece within the vocabulary of
    that piece, with the heads "mlm" and "second".

        L_down = sum over the encoder's parameters of |V theta_t - theta_s|^2
        L_up   = sum over the encoder's parameters of |U theta_s - theta_t|^2

    Both axes of a matrix are projected. All layers share the projections, one for each width. Only
    the student's rows of the teacher's token table count. Both networks are trained.
    """

    epsilon: float = 1.0
    where: str = r"^encoder/"

    def __post_init__(self):
        if self.epsilon < 0:
            raise ValueError(
                f"epsilon is {self.epsilon}; the weight of the projections must not be below 0"
            )

    def refusal(self, system: System) -> str | None:
        for name in (TEACHER, MATRICES):
            if name not in system.towers:
                return (
                    "DualTraining needs the towers main, teacher and projections, and there is "
                    f"no {name!r}; add it"
                )
        return None

    def __call__(self, towers: Mapping[str, Tower], batch: Batch, key: Array) -> Loss:
        student, teacher = towers[self.tower], towers[TEACHER]
        mine = _masked(student, batch, "student", {"mlm": "mlm"}, key)
        its = _masked(teacher, batch, "mixed", {"mlm": "mlm", "second": "second"}, key)
        (student_loss,), weight = mine, batch["student_mlm_weights"].sum()
        parts = [(1.0, student_loss), *((1.0, part) for part in _shares(its))]
        down, up = distances(student.params, teacher.params, towers[MATRICES].params, self.where)
        total = add_losses(*parts, (self.epsilon, Loss((down + up) * weight, weight, {})))
        metrics = {"down": Ratio(down * weight, weight), "up": Ratio(up * weight, weight)}
        return dataclasses.replace(total, metrics={**total.metrics, **metrics})


def _masked(
    tower: Tower, batch: Batch, view: str, heads: Mapping[str, str], key: Array
) -> list[Loss]:
    """Returns the MLM loss of each head {prefix of its labels: name} on the row of a view."""
    row = {name: batch[f"{view}_{name}"] for name in ("input_ids", "segment_ids", "positions")}
    row |= {"rows": rows_of(batch)} | ({"step": batch["step"]} if "step" in batch else {})
    encoded = tower(row, None if key is None else named(key, view))
    states, losses = gather(encoded.hidden, batch[f"{view}_mlm_positions"]), []
    for prefix, head in heads.items():
        labels, weights = batch[f"{view}_{prefix}_labels"], batch[f"{view}_{prefix}_weights"]
        judged = tower.head(head, states).judge(labels)
        name = "student_nll" if view == "student" else f"teacher_{prefix}_nll"
        losses.append(token_loss(judged.nll, weights, judged.right, name))
    return losses


def _shares(losses: list[Loss]) -> list[Loss]:
    """Returns losses whose means over all their predictions add up: each has the weight of all."""
    weight = sum(loss.weight for loss in losses)
    return [dataclasses.replace(loss, weight=weight) for loss in losses]


def distances(
    student: Any, teacher: Any, matrices: Mapping[str, Array], where: str
) -> tuple[Array, Array]:
    """Returns the squared distances of the parameters of two networks, in both directions.

    (sum of |V theta_t - theta_s|^2, sum of |U theta_s - theta_t|^2) over the parameters whose path
    matches `where`.
    """
    mine, its = (
        {path: _flat(path, leaf) for path, leaf in flatten(tree).items()}
        for tree in (student, teacher)
    )
    down = up = jnp.zeros(())
    for path in (path for path in mine if path in its and re.search(where, path)):
        narrow, wide = mine[path], its[path]
        if path.endswith("embed/token"):
            wide = wide[-len(narrow) :]
        axes = [
            axis for axis, (a, b) in enumerate(zip(narrow.shape, wide.shape, strict=True)) if a != b
        ]
        lower, upper = wide, narrow
        for axis in axes:
            size = wide.shape[axis]
            lower, upper = (
                _along(matrices[f"down_{size}"], lower, axis),
                _along(matrices[f"up_{size}"], upper, axis),
            )
        down += jnp.square(lower - narrow).sum()
        up += jnp.square(upper - wide).sum()
    return down, up


def _flat(path: str, leaf: Array) -> Array:
    """Returns a parameter with its heads concatenated: [.., H, K] as [.., H K]."""
    if _QUERY.search(path):
        return leaf.reshape(*leaf.shape[:-2], -1)
    return leaf.reshape(*leaf.shape[:-3], -1, leaf.shape[-1]) if _OUT.search(path) else leaf


def _along(matrix: Array, x: Array, axis: int) -> Array:
    """Returns the product of a matrix [m, n] with an axis of n of x."""
    return jnp.moveaxis(jnp.tensordot(matrix, x, ((1,), (axis,)), precision="highest"), 0, axis)
