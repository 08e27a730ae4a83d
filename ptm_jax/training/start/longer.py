"""More steps for a run in its own workdir.

The last phase may get more steps if the run that has them from the beginning is the same up to the
step that is done: then the longer run equals it bit for bit. A schedule whose rates at the steps
that are done depend on the number of all steps (`Linear`, `Cosine`) is refused, unless the complete
run is given another schedule for the added steps. A run with a last decay (`WarmupStableDecay`)
goes back to its checkpoint before the decay; the decayed model is set aside in a folder of its own.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from ptm_jax.adapt.base import listeners
from ptm_jax.core import spec
from ptm_jax.core.errors import UserError
from ptm_jax.core.recipe import Recipe
from ptm_jax.core.spec.classes import kinds_of
from ptm_jax.core.spec.rebuild import rebuild
from ptm_jax.core.system import Experiment
from ptm_jax.training import shelves, workdirs
from ptm_jax.training.hosts import group
from ptm_jax.training.logs import console
from ptm_jax.training.updates import schedules

Difference = tuple[str, Any, Any]

_RATES = re.compile(r"system\.recipe\.(lr$|schedule)")


def admitted(
    workdir: Path, record: Mapping[str, Any], config: Experiment, differences: list[Difference]
) -> list[Difference]:
    """Returns the differences from a run's record that are not those of more steps.
    Raises UserError for more steps that would not continue the run."""
    recipe = config.system.recipe
    name = f"system.recipe.phases.{len(recipe.phases) - 1}.steps"
    raised = [one for one in differences if one[0] == name and one[2] > one[1]]
    others = [one for one in differences if one not in raised and one[0] != "epochs"]
    if not raised or any(not _RATES.match(one[0]) for one in others):
        return differences
    before, done = recipe.steps - raised[0][2] + raised[0][1], _done(workdir)
    if others:
        if done < before:
            raise UserError(
                f"{workdir} has {done:,} of {before:,} steps; {others[0][0]} may change when they "
                "are done: run the same command again first"
            )
    elif back_to(workdir, recipe, before) is None and not _same_rates(
        recipe, before, min(done, before)
    ):
        kind = type(recipe.schedule).__name__
        raise UserError(
            f"{workdir}: with {recipe.steps:,} steps in place of {before:,} the schedule {kind} "
            f"has other rates at the {done:,} steps that are done. Give the rates of the added "
            "steps, as --set recipe.schedule='Constant()' recipe.lr=1e-5, or choose another "
            "--workdir"
        )
    if config.eval_every and done and not done % config.eval_every:
        if heard := listeners(config.system.wrappers):
            raise UserError(
                f"{workdir}: {type(heard[0]).__name__} reads every evaluation, and the last one of "
                "a finished run is none of them; choose another --workdir"
            )
    return []


def back_to(workdir: Path, recipe: Recipe, before: int) -> int | None:
    """Returns the step of the checkpoint from which a run of `before` steps goes on with the longer
    `recipe`, or None if it goes on from its last one, or cannot."""
    stable, done = schedules.stable_steps(recipe.schedule, before), _done(workdir)
    if stable is None or not stable < done <= before < recipe.steps:
        return None
    saved = stable in workdirs.steps_of(workdir)
    return stable if saved and _same_rates(recipe, before, stable) else None


def lengthened(config: Experiment, workdir: Path, more: int) -> Experiment:
    """Returns the experiment with `more` steps after those of the run in the workdir, in the last
    phase. If its own steps are not done, it has no more: the run goes on.
    Raises UserError without a run."""
    if more < 1:
        raise UserError(f"--more is {more}; it must be at least 1")
    record = workdirs.read(workdir)["config"]
    recipe = config.system.recipe
    examples = config.system.examples
    if config.epochs is not None:  # its steps, warm-up and sample are those of the text
        recipe = rebuild(record["system"]["recipe"], kinds_of(), "recipe")
        sample = record["system"]["examples"].get("sample")
        examples = examples if sample is None else dataclasses.replace(examples, sample=sample)
    steps = [phase["steps"] for phase in record["system"]["recipe"]["phases"]]
    done, planned = _done(workdir), sum(steps)
    if len(steps) == len(recipe.phases):
        steps[-1] += more if done >= planned else 0
        phases = [
            dataclasses.replace(phase, steps=count)
            for phase, count in zip(recipe.phases, steps, strict=True)
        ]
        recipe = dataclasses.replace(recipe, phases=tuple(phases))
    if not group.current().index:
        console.say(_explained(recipe, workdir, done, planned))
    system = dataclasses.replace(config.system, recipe=recipe, examples=examples)
    return dataclasses.replace(config, system=system, epochs=None)


def _explained(recipe: Recipe, workdir: Path, done: int, planned: int) -> str:
    """Returns the line of the steps that --more adds, and of their learning rates."""
    if done < planned:
        return (
            f"{workdir} has {done:,} of {planned:,} steps: it goes on to {planned:,}; give --more "
            "again for steps after them"
        )
    back = back_to(workdir, recipe, planned)
    done = done if back is None else back
    rates = schedules.build(recipe.schedule, recipe.lr, recipe.steps)
    first, last = (float(rates(jnp.asarray(step))) for step in (done, recipe.steps - 1))
    kind, warmup = type(recipe.schedule).__name__, vars(recipe.schedule).get("warmup", 0)
    line = (
        f"{recipe.steps - done:,} steps after {done:,}: the learning rate goes from {first:.3g} to "
        f"{last:.3g} ({kind})"
    )
    if done >= warmup:
        return line
    reach = "the added ones end in it too" if recipe.steps <= warmup else "the added ones leave it"
    return (
        f"{line}. The steps that are done lie in the warm-up of {warmup:,}, whose rates do not "
        f"depend on the number of all steps; {reach}"
    )


def earlier(workdir: Path, record: Mapping[str, Any], config: Experiment) -> dict[str, Any]:
    """Returns the fields of the record of a run that had other recipes.

    "earlier" is [{"step", "recipe"}] of each recipe that it had up to a step; "back" the step to
    which its checkpoints go back now (`went_back`)."""
    before = record["config"]["system"]["recipe"]
    known = {name: record[name] for name in ("earlier", "back") if name in record}
    if before == spec.to_json(config.system.recipe) or not (done := _done(workdir)):
        return known
    steps = sum(phase["steps"] for phase in before["phases"])
    back = back_to(workdir, config.system.recipe, steps)
    last = {"step": done if back is None else back, "recipe": before}
    known["earlier"] = [*known.get("earlier", []), last]
    return known | ({} if back is None else {"back": back})


def went_back(workdir: Path, record: dict[str, Any]) -> dict[str, Any]:
    """Returns the record without "back", after later checkpoints were removed.
    The last of them was copied before (`workdirs.set_aside`)."""
    shelf = shelves.shelf_of(workdir)
    for step in shelf.steps():
        if step > record["back"]:
            shelf.drop(step)
    return {name: value for name, value in record.items() if name != "back"}


def continued(config: Experiment, workdir: Path) -> Experiment:
    """Returns the experiment with the recipe of the run in the workdir, if its own is one that the
    run had before it got more steps: the first command then goes on, or finds the run complete."""
    if not (workdir / "config.json").is_file():
        return config
    record, asked = workdirs.read(workdir), spec.to_json(config.system.recipe)
    if all(one["recipe"] != asked for one in record.get("earlier", [])):
        return config
    recipe = rebuild(record["config"]["system"]["recipe"], kinds_of(), "recipe")
    return dataclasses.replace(config, system=dataclasses.replace(config.system, recipe=recipe))


def _done(workdir: Path) -> int:
    return max(workdirs.steps_of(workdir), default=0)


def _same_rates(recipe: Recipe, before: int, done: int) -> bool:
    """Whether the rates of the first `done` steps are the same with `before` steps in all."""
    steps = jnp.arange(done)
    old, new = (
        jnp.broadcast_to(schedules.build(recipe.schedule, recipe.lr, total)(steps), steps.shape)
        for total in (before, recipe.steps)
    )
    return bool(np.array_equal(old, new))
