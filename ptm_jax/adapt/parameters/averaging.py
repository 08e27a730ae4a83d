"""Means of the parameters of several steps.

    SelfEnsemble        the mean of the last steps as the evaluated model (Xu et al. 2020, arXiv
                        2002.10345)
    SelfDistillation    the mean of the last steps as a teacher in training (the same)
    EMA                 the exponential moving average as the evaluated model (GPT-BERT)
    NTASGD              the mean of all steps since the held-out loss stopped falling

The stored parameters lie outside of the towers, as `recent/<tower>/...` ([K, ...] of K steps) or
`average/<tower>/...`, and are saved and restored with them.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Literal

import jax
import jax.numpy as jnp

from ptm_jax.adapt.base import ReadsEvaluations
from ptm_jax.core import slots
from ptm_jax.core.types import Array, Params
from ptm_jax.objectives.regularisation.averaging import OwnTeacher

if TYPE_CHECKING:
    from ptm_jax.core.system import System
    from ptm_jax.core.types import Step


def begin(params: Params, tower: str, slots: int) -> Params:
    """Returns the initial `recent`.

    Every slot holds the given parameters and only the first one counts.
    """
    ring = jax.tree.map(lambda leaf: jnp.repeat(leaf[None], slots, 0), params[tower])
    return {tower: ring, "count": jnp.ones((), jnp.float32)}


def remember(recent: Params, params: Params, tower: str, due: Array | bool = True) -> Params:
    """Returns `recent` with its oldest parameters replaced by the newest, if `due`.

    One slot is written in both cases: a choice between two rings would copy them whole.
    """
    slots = jax.tree.leaves(recent[tower])[0].shape[0]
    at = (recent["count"] % slots).astype(jnp.int32)

    def put(old, new):
        return old.at[at].set(jnp.where(due, new.astype(old.dtype), old[at]))

    ring = jax.tree.map(put, recent[tower], params[tower])
    return {tower: ring, "count": recent["count"] + jnp.asarray(due, jnp.float32)}


def ages(recent: Params, tower: str) -> Any:
    """Returns [slots] float32: 0 for the newest parameters, 1 for the ones before, and so on.

    Negative for unused slots.
    """
    slots = jax.tree.leaves(recent[tower])[0].shape[0]
    age = (recent["count"] - 1 - jnp.arange(slots)) % slots
    return jnp.where(age < recent["count"], age, -1.0)


def mean(recent: Params, tower: str, chosen: Array) -> Params:
    """Returns the mean of the parameters in the chosen slots [slots].

    If none is chosen, the newest parameters.
    """
    chosen = jnp.where(chosen.any(), chosen, ages(recent, tower) == 0).astype(jnp.float32)
    weights = chosen / chosen.sum()
    return jax.tree.map(
        lambda ring: jnp.einsum("k,k...->...", weights, ring, precision="highest"), recent[tower]
    )


class _Averaging(slots.Wrapper):
    """Stores the parameters of a tower's last steps outside of the towers; they are not trained."""

    owns = r"^recent/"
    logical_axes = {"recent/count": ()}

    def refusal(self, system: System) -> str | None:
        """Refuses another adaptation that keeps parameters outside of the tower (overrides
        `effective`)."""
        for other in system.adapt:
            if other is not self and slots.overrides(other, "effective"):
                return (
                    f"{type(self).__name__} averages a tower alone; leave "
                    f"{type(other).__name__} out, or merge it first"
                )
        return None

    def trainable(self, path: str, step: Step) -> bool:
        return not path.startswith("recent/")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SelfEnsemble(_Averaging):
    """Evaluates, uses and exports the mean of the parameters after the last `last` steps.

    Section 3.2, Eq. 5: BERT_SE. Only every `every`-th step counts.
    """

    last: int = 5
    every: int = 1
    tower: str = "main"

    def __post_init__(self):
        if min(self.last, self.every) < 1:
            raise ValueError(f"last is {self.last} and every {self.every}; both must be at least 1")

    def init(self, params: Params, source: Params | None) -> Params:
        return {**params, "recent": begin(params, self.tower, self.last)}

    def on_step(self, params: Params, step: Step) -> Params:
        due = (step + 1) % self.every == 0
        return {**params, "recent": remember(params["recent"], params, self.tower, due)}

    def effective(self, params: Params, train: bool) -> Params:
        if train:
            return params
        return {
            **params,
            self.tower: mean(params["recent"], self.tower, ages(params["recent"], self.tower) >= 0),
        }

    def finish(self, params: Params) -> Params:
        """Returns the mean of the parameters."""
        return {
            name: tree for name, tree in self.effective(params, False).items() if name != "recent"
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class SelfDistillation(_Averaging):
    """Adds `scale` times the squared error between the scores and a teacher's scores.

    For "average" the teacher has the mean of the parameters of the last `last` steps (BERT_SDA, Eq.
    8). For "vote" the teacher's scores are the mean of the scores of the models of these steps
    (BERT_SDV, Eq. 10).
    """

    last: int = 3
    scale: float = 1.0
    kind: Literal["average", "vote"] = "average"
    tower: str = "main"

    def __post_init__(self):
        if self.last < 1:
            raise ValueError(f"last is {self.last}; it must be at least 1")
        if self.kind not in ("average", "vote"):
            raise ValueError(f"kind is {self.kind!r}; it must be 'average' or 'vote'")

    @property
    def teachers(self) -> tuple[str, ...]:
        """Names of the teacher towers: one for "average"; for "vote" one for each remembered
        step."""
        return (
            ("teacher",)
            if self.kind == "average"
            else tuple(f"teacher{age}" for age in range(1, self.last + 1))
        )

    def rewrite(self, system: System) -> Any:
        student = system.towers[self.tower]
        towers = {**system.towers, **dict.fromkeys(self.teachers, student)}
        objective = OwnTeacher(task=system.objective, teachers=self.teachers, scale=self.scale)
        return dataclasses.replace(system, towers=towers, objective=objective)

    def init(self, params: Params, source: Params | None) -> Params:
        trained = {name: tree for name, tree in params.items() if name not in self.teachers}
        return {**trained, "recent": begin(params, self.tower, self.last + 1)}

    def on_step(self, params: Params, step: Step) -> Params:
        return {**params, "recent": remember(params["recent"], params, self.tower)}

    def effective(self, params: Params, train: bool) -> Params:
        recent = params["recent"]
        age = ages(recent, self.tower)
        if self.kind == "average":
            return {**params, "teacher": mean(recent, self.tower, age > 0)}

        def nearest(wanted):
            return jnp.minimum(wanted, age.max())

        taught = {
            f"teacher{n}": mean(recent, self.tower, age == nearest(n))
            for n in range(1, self.last + 1)
        }
        return {**params, **taught}

    def finish(self, params: Params) -> Params:
        """Returns the student's parameters."""
        return {
            name: tree for name, tree in params.items() if name not in ("recent", *self.teachers)
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class EMA(_Averaging):
    """Evaluates, uses and exports the exponential moving average of a tower's parameters.

    average = decay * average + (1 - decay) * parameters after every step, from the parameters that
    the run begins with (Polyak and Juditsky 1992; GPT-BERT, Charpentier and Samuel 2024, arXiv
    2410.24159: 0.999).
    """

    decay: float = 0.999
    tower: str = "main"

    def __post_init__(self):
        if not 0 <= self.decay < 1:
            raise ValueError(f"decay is {self.decay}; it must be at least 0 and below 1")

    def init(self, params: Params, source: Params | None) -> Params:
        return {**params, "recent": {self.tower: jax.tree.map(jnp.copy, params[self.tower])}}

    def on_step(self, params: Params, step: Step) -> Params:
        average = jax.tree.map(
            lambda old, new: old + (1.0 - self.decay) * (new - old),
            params["recent"][self.tower],
            params[self.tower],
        )
        return {**params, "recent": {self.tower: average}}

    def effective(self, params: Params, train: bool) -> Params:
        return params if train else {**params, self.tower: params["recent"][self.tower]}

    def finish(self, params: Params) -> Params:
        """Returns the average of the parameters."""
        return {
            name: tree for name, tree in self.effective(params, False).items() if name != "recent"
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class NTASGD(_Averaging, ReadsEvaluations):
    """Averages the parameters from a non-monotonic trigger on (averaged SGD).

    Merity et al. 2018, arXiv 1708.02182, Algorithm 1. It evaluates, uses and exports the mean of
    the parameters since the trigger. The trigger is the first evaluation with a held-out loss above
    the best loss of the evaluations more than `patience` before it. The run needs held-out text,
    and evaluations (`eval_every`: an epoch in the paper).
    """

    patience: int = 5
    tower: str = "main"

    owns = r"^average/"
    logical_axes = {"average/count": (), "average/best": (), "average/losses": (None,)}

    def __post_init__(self):
        if self.patience < 0:
            raise ValueError(f"patience is {self.patience}; it must not be negative")

    def trainable(self, path: str, step: Step) -> bool:
        return not path.startswith("average/")

    def init(self, params: Params, source: Params | None) -> Params:
        """`count`: averaged steps; `best`: the least loss before the last `patience` evaluations,
        whose are `losses`."""
        largest = jnp.finfo(jnp.float32).max  # a checkpoint has no infinite numbers
        none = {
            "count": jnp.zeros(()),
            "best": jnp.asarray(largest),
            "losses": jnp.full((self.patience,), largest),
        }
        return {
            **params,
            "average": {self.tower: jax.tree.map(jnp.copy, params[self.tower]), **none},
        }

    def on_step(self, params: Params, step: Step) -> Params:
        average = params["average"]
        count = average["count"] + (average["count"] > 0)
        share = jnp.where(count > 0, 1.0 / jnp.maximum(count, 1.0), 0.0)
        mean = jax.tree.map(
            lambda old, new: old + share * (new - old), average[self.tower], params[self.tower]
        )
        return {**params, "average": {**average, self.tower: mean, "count": count}}

    def on_heldout(self, params: Params, loss: Array | float) -> Params:
        average, loss = params["average"], jnp.asarray(loss, jnp.float32)
        begins = (average["count"] == 0) & (loss > average["best"])
        queue = jnp.append(average["losses"], loss)
        tower = jax.tree.map(
            lambda old, new: jnp.where(begins, new, old), average[self.tower], params[self.tower]
        )
        best, count = (
            jnp.minimum(average["best"], queue[0]),
            jnp.where(begins, 1.0, average["count"]),
        )
        return {
            **params,
            "average": {self.tower: tower, "count": count, "best": best, "losses": queue[1:]},
        }

    def effective(self, params: Params, train: bool) -> Params:
        if train:
            return params
        average = params["average"]

        def choose(old, new):
            return jnp.where(average["count"] > 0, old, new)

        return {**params, self.tower: jax.tree.map(choose, average[self.tower], params[self.tower])}

    def finish(self, params: Params) -> Params:
        """Returns the mean of the parameters, or the last ones if there is none."""
        return {
            name: tree for name, tree in self.effective(params, False).items() if name != "average"
        }
