"""The runs of a study: the product of its axes, each with its experiment and its cost."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Callable, Mapping
from typing import Any

from ptm_jax.core import spec
from ptm_jax.core.errors import UserError
from ptm_jax.core.system import Experiment, System, refusal
from ptm_jax.corruptions.masking.token import LinearRate
from ptm_jax.runs import resolving
from ptm_jax.systems.survey.compose import compose
from ptm_jax.tuning.studies import smaller_runs
from ptm_jax.tuning.studies.smaller_runs import Compressed, Staged
from ptm_jax.tuning.studies.studies import Budget, Study, Transfer


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cost:
    """Cost of a run.

    parameters  of all towers; `body`: without the tables and heads of the vocabulary, and without
                positions
    operations  of a step, forward and backward, 2 m n k of every product; `body_operations`:
                without the products of the vocabulary
    memory      bytes used on a device; `capacity`: bytes that the device has
    seconds     of a step
    """

    parameters: int
    body: int
    operations: float
    body_operations: float
    memory: int
    capacity: int
    seconds: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Point:
    """A run of a study.

    It has its name, {axis: label}, its experiment, cost and transfers, or why it cannot be
    (`refusal`).

    task     of a run that is a fine-tuning
    value, stages, costs  of a run that compresses: its value, its stages, and the costs of those
                          that train
    after    the name of the run whose model it compresses
    """

    name: str
    labels: Mapping[str, str]
    config: Experiment | None = None
    cost: Cost | None = None
    transfers: tuple[Transfer, ...] = ()
    task: str = ""
    value: Compressed | None = None
    stages: tuple[Staged, ...] = ()
    costs: tuple[Cost, ...] = ()
    after: str = ""
    refusal: str = ""

    @property
    def parts(self) -> list[tuple[Any, Cost]]:
        """[(recipe, cost)] of what trains in this run, one after another."""
        if not self.stages:
            return [(self.config.system.recipe, self.cost)]
        trained = [stage.config.system.recipe for stage in self.stages if stage.trains]
        return list(zip(trained, self.costs, strict=True))

    @property
    def tokens(self) -> int:
        """Tokens of the run, with padding."""
        return sum(one.steps * one.phases[0].batch * one.phases[0].length for one, _ in self.parts)

    @property
    def steps(self) -> int:
        return sum(recipe.steps for recipe, _ in self.parts)

    def total(self, of: str) -> float:
        """A field of the cost of a step (operations, seconds) over all steps."""
        return sum(recipe.steps * vars(cost)[of] for recipe, cost in self.parts)


Costs = Callable[[Experiment], Cost]


def names(study: Study) -> list[tuple[str, dict[str, str]]]:
    """[(name of a run, {axis: label})], in the order of the axes, the last fastest."""
    runs = []
    for labels in itertools.product(*(axis.labelled for axis in study.axes)):
        named = dict(zip((axis.name for axis in study.axes), labels, strict=True))
        if study.keep is None or study.keep(named):
            name = "_".join(f"{axis}-{label}" for axis, label in named.items()) or "run"
            runs.append((re.sub(r"[^\w.+-]", "-", name), named))
    return runs


def point(study: Study, name: str, labels: Mapping[str, str], costs: Costs) -> Point:
    """The run of these labels. One that a value or a system refuses has a `refusal`."""
    try:
        config, budget = _placed(study, labels), study.budget
        if "budget" in labels:
            axis = next(axis for axis in study.axes if axis.name == "budget")
            budget = dataclasses.replace(budget, amount=float(axis.labelled[labels["budget"]]))
        if "compression" in labels:
            return _compressing(study, name, labels, config, costs)
        cost = costs(config)
        if budget is not None:
            config = _with_steps(config, budget, cost)
        return Point(
            name=name,
            labels=labels,
            config=config,
            cost=cost,
            transfers=study.transfers,
            task=study.task,
        )
    except (UserError, ValueError) as error:
        return Point(name=name, labels=labels, refusal=" ".join(str(error).split()))


def _compressing(
    study: Study, name: str, labels: Mapping[str, str], config: Experiment, costs: Costs
) -> Point:
    """The run of a compression, or of the model that others compress."""
    axis = next(axis for axis in study.axes if axis.name == "compression")
    value, known = (
        axis.labelled[labels["compression"]],
        {"name": name, "labels": labels, "config": config},
    )
    if value is None:
        return Point(**known, cost=costs(config), task=study.task)
    stages = smaller_runs.staged(value, config)
    wanted = smaller_runs.needed(labels, axis, value)
    after = [other for other, theirs in names(study) if theirs == wanted]
    if not after:
        raise UserError(
            f"it compresses the run of {', '.join(wanted.values())}, which is no run of the study"
        )
    stage_costs = tuple(costs(stage.config) for stage in stages if stage.trains)
    first = stage_costs[0] if stage_costs else costs(config)
    return Point(
        **known,
        cost=first,
        task=study.task,
        value=value,
        stages=tuple(stages),
        costs=stage_costs,
        after=after[0],
    )


def _placed(study: Study, labels: Mapping[str, str]) -> Experiment:
    config, base, changes, chosen = study.base, study.base.system, {}, {}
    for axis in study.axes:
        chosen[axis.name] = value = axis.labelled[labels[axis.name]]
        for place in axis.places:
            if place == "system":
                target = resolving.resolve(value) if isinstance(value, str) else value
                placed = target.system if isinstance(target, Experiment) else target
                rules = (*placed.recipe.lr_rules, *base.recipe.lr_rules)
                recipe = dataclasses.replace(base.recipe, lr_rules=rules)
                placed = dataclasses.replace(
                    placed, recipe=recipe, tokenizer=base.tokenizer, name=labels[axis.name]
                )
                config = dataclasses.replace(config, system=placed)
            else:
                changes[place] = (value,) if place == "data" and isinstance(value, str) else value
    if "task" in labels:
        task = chosen["task"]
        task = resolving.resolve(task) if isinstance(task, str) else task
        system = compose(config.system, task) if isinstance(task, System) else task(config.system)
        system = dataclasses.replace(system, tokenizer=base.tokenizer)
        config = dataclasses.replace(config, system=system)
    if "way" in labels:
        config = dataclasses.replace(config, system=chosen["way"](config.system))
    if reason := refusal(config.system):
        raise UserError(reason)
    return spec.override(config, changes) if changes else config


def _with_steps(config: Experiment, budget: Budget, cost: Cost) -> Experiment:
    recipe = config.system.recipe
    phase = recipe.phases[0]
    step = {
        "tokens": phase.batch * phase.length,
        "operations": cost.operations,
        "seconds": cost.seconds,
    }[budget.kind]
    steps = round(budget.amount / step)
    if steps < 1:
        raise UserError(
            f"a step takes {step:.3g} {budget.kind} and the budget is {budget.amount:.3g}; "
            "give a larger budget"
        )
    factor = steps / recipe.steps
    system = spec.respell(
        config.system,
        LinearRate,
        lambda rate: dataclasses.replace(rate, steps=max(1, round(rate.steps * factor))),
    )
    recipe = smaller_runs.rescheduled(recipe, dataclasses.replace(phase, steps=steps))
    return dataclasses.replace(config, system=dataclasses.replace(system, recipe=recipe))
