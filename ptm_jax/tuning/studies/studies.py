"""A study: many runs as one value.
Its runs are the product of its axes; `tuning.studies.study_runs` runs those that are missing.

A study file defines `study`, and `ptm study FILE --workdir W` runs it; configs/studies has
examples.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from ptm_jax.core.errors import UserError
from ptm_jax.core.system import Experiment, System
from ptm_jax.runs import resolving
from ptm_jax.tuning.scaling.scaling_laws import Form
from ptm_jax.tuning.studies import smaller_runs

PATHS: Mapping[str, tuple[str, ...]] = {
    "system": ("system",),
    "size": ("system",),
    "task": (),
    "way": (),
    "data": ("data",),
    "steps": ("recipe.phases.0.steps",),
    "batch": ("recipe.phases.0.batch",),
    "length": ("recipe.phases.0.length",),
    "lr": ("recipe.lr",),
    "seed": ("seed",),
    "budget": (),
    "compression": (),
}
"""Where the values of an axis go, by its name."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Axis:
    """One thing that varies.

    name    of the axis, and a key of `PATHS` where `paths` is empty
    values  the values, or {label: value}. On "system" and "size" a value is a System or a name of
            the catalogue, which takes the recipe (except its own rates by path) and the tokenizer
            of the base; on "task" a System or a name whose task the network gets
            (`systems.survey.compose`), or a function from System to System, as on "way"; on
            "budget" the budget's amount; on "compression" a `Compressed`, or None for the model
            that is compressed
    paths   paths of `--set` that take the value
    """

    name: str
    values: tuple[Any, ...] | Mapping[str, Any]
    paths: tuple[str, ...] = ()

    def __post_init__(self):
        if not self.paths and self.name not in PATHS:
            raise ValueError(
                f"axis {self.name!r} has no paths; give them, or name one of {', '.join(PATHS)}"
            )
        if not self.values or len(self.labelled) < len(self.values):
            raise ValueError(
                f"axis {self.name!r} has {len(self.values)} values, {len(self.labelled)} of "
                "them different"
            )

    @property
    def labelled(self) -> dict[str, Any]:
        """{label: value}."""
        if isinstance(self.values, Mapping):
            return dict(self.values)
        return {
            value.name if isinstance(value, System) else _label(value): value
            for value in self.values
        }

    @property
    def places(self) -> tuple[str, ...]:
        return self.paths or PATHS[self.name]


def _label(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Budget:
    """The quantity that is equal in all runs and gives their steps.

    It is tokens (B L of every step), operations (products of every step, `Cost.operations`), or
    seconds as the plan predicts them. Warm-up, decay and a `LinearRate` of masks
    take their shares of the steps in the base.
    """

    kind: Literal["tokens", "operations", "seconds"]
    amount: float

    def __post_init__(self):
        if not 0 < self.amount < math.inf:
            raise ValueError(
                f"the amount of the budget is {self.amount}; it must be a finite number above 0"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Law:
    """A law to fit to the runs that are done.

    It gives their `metric` over the variables of the form, which are columns of the table.

    by    axis whose labels get a fit each ("": one fit)
    hold  number of runs with the most operations that are left out of each fit, and predicted by it
    """

    form: Form
    metric: str = "loss"
    by: str = ""
    hold: int = 1
    draws: int = 200


@dataclasses.dataclass(frozen=True, kw_only=True)
class Transfer:
    """A task on which every run is fine-tuned once it is pre-trained.
    Its first metric is a column of the table.

    data    file or folder below that of `--tasks`
    column  name of the column (default: the task's)
    epochs, batch, length, lr  of the fine-tuning; None takes the task's default
    adapt   wrappers of the fine-tuned system
    """

    task: str
    data: str
    column: str = ""
    epochs: float | None = None
    batch: int | None = None
    length: int | None = None
    lr: float | None = None
    adapt: tuple[Any, ...] = ()

    @property
    def name(self) -> str:
        return self.column or self.task


@dataclasses.dataclass(frozen=True, kw_only=True)
class Published:
    """A published figure for runs of a study.

    It is for the runs with these labels, in a column or another measure.

    differs  differences of the published setting: corpus, size, steps, split
    """

    labels: Mapping[str, str]
    measure: str
    value: float
    source: str
    differs: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Picture:
    """The column `y` over the column `x`: a point per label of the axis `by`, a mean of runs."""

    x: str
    y: str
    by: str
    log: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Study:
    """Many runs of one experiment.

    base     the experiment of all runs, with one phase
    task     of a base with labelled examples: its runs are fine-tunings, measured by the task's
             metrics and the model's size (`tuning.model_facts`). Data that are no absolute paths
             lie below the folder of `--tasks`
    axes     what varies; the runs are the product. `keep` selects among them: {axis: label} -> bool
             (default: all)
    budget   the quantity that is equal; None: the recipe's steps
    metrics  held-out metrics of the table. Every run has the first; others are empty where the task
             has none of that name
    laws     what is fitted
    transfers  tasks on which every run is fine-tuned
    published  published figures, shown with the means over seeds
    pictures   of one column over another
    remark   of the page: what these sizes can show, and what not
    """

    name: str
    base: Experiment
    axes: tuple[Axis, ...]
    budget: Budget | None = None
    metrics: tuple[str, ...] = ("loss",)
    laws: tuple[Law, ...] = ()
    transfers: tuple[Transfer, ...] = ()
    published: tuple[Published, ...] = ()
    pictures: tuple[Picture, ...] = ()
    task: str = ""
    remark: str = ""
    keep: Callable[[Mapping[str, str]], bool] | None = None

    def __post_init__(self):
        names = [axis.name for axis in self.axes]
        self._check_axes(names)
        if not self.metrics:
            raise ValueError("metrics is empty; name at least one held-out metric, as loss")
        if len(self.base.system.recipe.phases) > 1:
            raise ValueError(
                f"{self.base.system.name} has several phases; a study needs a base with one"
            )
        if "compression" in names and (not self.task or self.budget is not None):
            raise ValueError("runs that compress need a base on a task, its `task`, and no budget")
        if self.task and not self.base.system.examples.labelled:
            raise ValueError(
                f"the task is {self.task} and the base reads text; take "
                "`finetuning.experiment` as the base"
            )
        for axis in self.axes:
            if axis.name == "compression":
                smaller_runs.check(axis)
        for law in self.laws:
            if law.by and law.by not in names:
                raise ValueError(
                    f"a law is fitted by {law.by!r}, which is no axis; there are: "
                    f"{', '.join(names)}"
                )
        if len(set(self.columns)) < len(self.columns):
            raise ValueError(
                f"the columns {', '.join(self.columns)} are not all different; give a "
                "transfer its `column`"
            )
        for one in self.published:
            if unknown := [name for name in one.labels if name not in names]:
                raise ValueError(
                    f"a published figure has the label {unknown[0]!r}, which is no axis: "
                    f"{', '.join(names)}"
                )

    def _check_axes(self, names: list[str]) -> None:
        """Raises ValueError if two axes set the same, or an axis contradicts the budget."""
        places = [place for axis in self.axes for place in axis.places]
        twice = sorted(
            {
                name
                for name in [*names, *places]
                if (names + places).count(name) > 1 and name not in PATHS
            }
        )
        twice += sorted(
            {name for name in names if names.count(name) > 1}
            | {p for p in places if places.count(p) > 1}
        )
        if twice:
            raise ValueError(
                f"two axes set {twice[0]}; the axes contradict each other: leave one out"
            )
        if self.budget is not None and "recipe.phases.0.steps" in places:
            raise ValueError(
                f"an axis sets the steps, which the budget of {self.budget.kind} gives; "
                "leave one out"
            )
        if self.budget is None and "budget" in names:
            raise ValueError(
                "there is an axis of budgets and no budget; give budget=Budget(kind=..., "
                "amount=...)"
            )

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the measured columns: held-out metrics, then transfers."""
        return (*self.metrics, *(transfer.name for transfer in self.transfers))


def defines(path: str | Path) -> bool:
    """Whether a file defines `study`, by its text: a config is not imported for the question."""
    return Path(path).is_file() and bool(
        re.search(r"^study\s*=", Path(path).read_text(encoding="utf8"), re.M)
    )


def load(path: str | Path) -> Study:
    """The `study` of a Python file, or of a file of configs/studies by its name.
    Raises UserError."""
    from ptm_jax.core.spec.own_code import import_file

    file = place(path)
    study = vars(resolving.guard(lambda: import_file(file), file)).get("study")
    if not isinstance(study, Study):
        raise UserError(f"{path} defines no `study` (a tuning.studies.studies.Study)")
    return study


def place(path: str | Path) -> Path:
    """The file of a study, or that of configs/studies with its name. Raises UserError."""
    file, folder = Path(path), resolving.CONFIGS / "studies"
    for candidate in (file, folder / file.name, folder / f"{file.name}.py"):
        if candidate.is_file():
            return candidate
    raise UserError(f"no such study: {path}; give a .py file that defines `study`")
