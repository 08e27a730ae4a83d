"""Fine-tuning runs: evaluation, choice of the best checkpoint, early stopping, several seeds.

The trainer calls a function at each evaluation (`training.loop.Watch`). Results are in the workdir,
so a stopped run can continue, and a finished run is only read:

    task.jsonl     {"step", "metrics"} of each evaluation on the held-out examples
    task.json      task, number of examples, metrics and their step, how the run ended
    predictions.csv   of a run on a table of the user's: the held-out rows (`tasks.tables`)

The metrics of several tasks are "TASK/METRIC" of each task, and "mean", the mean of their first
metrics, which is used to choose checkpoints. `parts` has the numbers of examples and the remarks of
the tasks.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ptm_jax.core.system import Experiment, in_effect
from ptm_jax.data.tokenizers import saved
from ptm_jax.inference import loading
from ptm_jax.inference.pretrained import Pretrained
from ptm_jax.runs.run import CHOICE, Run
from ptm_jax.tasks import evaluating
from ptm_jax.tasks.catalogue import catalogue
from ptm_jax.tasks.formats.taskdata import print_remarks
from ptm_jax.tasks.metrics.per_class import ClassScores
from ptm_jax.training import loop, shelves, workdirs
from ptm_jax.training.hosts import group
from ptm_jax.training.logs import logs
from ptm_jax.training.logs.figures import metric
from ptm_jax.tuning import finetuning, multitask

if TYPE_CHECKING:
    from ptm_jax.core.types import Params


CURVE = "task.jsonl"
PREDICTIONS = "predictions.csv"
"""The held-out predictions of a run on a table of the user's."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Selection:
    """How the checkpoint of a fine-tuning run is chosen.

    best      choose the best held-out metric, measured every epoch or every `eval_every` steps;
              otherwise the last step
    patience  number of measurements without improvement after which the run ends; 0: never
    """

    best: bool = False
    patience: int = 0

    def __post_init__(self):
        if self.patience < 0:
            raise ValueError(
                f"patience is {self.patience}; it must be at least 1, or 0 for no end before "
                "the last step"
            )

    @property
    def watches(self) -> bool:
        """Whether the held-out metric is measured during the run."""
        return self.best or self.patience > 0


@dataclasses.dataclass(frozen=True)
class Tuned:
    """A run and the held-out metrics of its chosen checkpoint, of step `step`.

    ended   "done", "early" (patience) or "stopped" (SIGTERM)
    result  the trainer's, where it was called
    parts   {task: {"examples", "remarks"}} of a run on several tasks
    classes {class: its `ClassScores`} of a run whose data names them
    """

    workdir: Path
    task: str
    step: int
    examples: int
    metrics: Mapping[str, float]
    ended: str = "done"
    result: Any = None
    parts: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    classes: Mapping[str, ClassScores] = dataclasses.field(default_factory=dict)

    @property
    def predictions(self) -> Path | None:
        """The file of the held-out predictions; None where there is none."""
        path = self.workdir / PREDICTIONS
        return path if path.is_file() else None

    @property
    def main(self) -> float:
        """The metric by which models are compared: the first."""
        return _main(self.metrics)

    @property
    def checkpoint(self) -> Path:
        """The chosen checkpoint."""
        return workdirs.checkpoint_of(self.workdir, self.step)


class _Measure:
    """Measures a model on the held-out examples of the task of a run, or (None) of all tasks of its
    mixture."""

    def __init__(self, config: Experiment, task: str | None):
        examples = config.system.examples
        self._mixed = task is None
        files = examples.files(config.data) if self._mixed else {task: config.data}
        parts = examples.parts if self._mixed else {task: examples}

        def own(name):
            return dataclasses.replace(catalogue.get(name), examples=parts[name])

        self._parts = {name: (own(name), files[name]) for name in parts}
        self.name = "+".join(parts)
        self.evaluation: evaluating.Evaluation | None = None  # of the last call

    def write(self, path: Path) -> None:
        """Writes the predictions of the last call."""
        self.evaluation.write(path)

    def __call__(self, model: Pretrained, aloud: bool = False) -> dict[str, Any]:
        """{"examples", "metrics", "parts"} as in `Tuned`; `aloud` prints what was cut."""
        evaluations = {}
        for name, (task, data) in self._parts.items():
            one = multitask.of_task(model, name) if self._mixed else model
            evaluations[name] = evaluating.evaluate(one, task, evaluating.heldout_of(task, data))
            if aloud:
                print_remarks(evaluations[name].remarks, evaluations[name].source.path)
        self.evaluation = next(iter(evaluations.values()))
        examples = sum(len(one.examples) for one in evaluations.values())
        if not self._mixed:
            return {
                "examples": examples,
                "metrics": dict(evaluations[self.name].metrics),
                "parts": {},
            }
        metrics = {"mean": float(np.mean([_main(one.metrics) for one in evaluations.values()]))}
        metrics |= {
            f"{name}/{metric}": value
            for name, one in evaluations.items()
            for metric, value in one.metrics.items()
        }
        parts = {
            name: {"examples": len(one.examples), "remarks": dict(one.remarks)}
            for name, one in evaluations.items()
        }
        return {"examples": examples, "metrics": metrics, "parts": parts}


class _Watcher:
    """Measures the model at each evaluation of the trainer, and keeps the best and the newest
    checkpoints."""

    def __init__(self, workdir: Path, measure: _Measure, selection: Selection):
        self._workdir, self._measure, self._selection = workdir, measure, selection
        self.curve = _lines(workdir / CURVE)
        self.ended, self.last = False, None

    def __call__(self, step: int, program: Any, params: Params) -> bool:
        self.curve = [line for line in self.curve if line["step"] < step]
        model = Pretrained(
            dataclasses.replace(program.system, towers=program.towers),
                in_effect(program.system, params),
            saved.load(self._workdir / "tokenizer"),
        )  # fmt: skip
        self.last = self._measure(model)
        self.curve.append({"step": step, "metrics": self.last["metrics"]})
        (self._workdir / CURVE).write_text(
            "".join(json.dumps(line) + "\n" for line in self.curve), encoding="utf8"
        )
        self._sweep()
        scores = [ranked(_main(line["metrics"])) for line in self.curve]
        since = len(scores) - 1 - int(np.argmax(scores))
        self.ended = 0 < self._selection.patience <= since
        return self.ended

    def best(self) -> dict[str, Any]:
        """The first evaluation with the best held-out metric."""
        return max(self.curve, key=lambda line: ranked(_main(line["metrics"])))

    def _sweep(self) -> None:
        """Deletes the checkpoints that are neither the best nor among the last two."""
        steps = [line["step"] for line in self.curve]
        shelf = shelves.shelf_of(self._workdir)
        for step in {*steps[:-2]} & {*shelf.steps()} - {self.best()["step"]}:
            shelf.drop(step)


def tuned(workdir: str | Path) -> Tuned | None:
    """The finished run of a workdir; None where there is none."""
    choice = Run(Path(workdir)).choice()
    if choice is None:
        return None
    classes = {name: ClassScores(*one) for name, one in choice.pop("classes", {}).items()}
    return Tuned(Path(workdir), classes=classes, **choice)


def finetune(
    config: Experiment, workdir: str | Path, task: str | None, *,
    selection: Selection | None = None, quiet: bool = False,
    callbacks: Sequence[loop.Callback] = (),
) -> Tuned:  # fmt: skip
    """Trains, and measures on the held-out examples of a task, or (None) of all tasks of a mixture.
    A stopped run has no metrics. Raises UserError."""
    selection, workdir = selection or Selection(), Path(workdir)
    known, measure = tuned(workdir), _Measure(config, task)
    if known is not None and known.ended != "done":
        return known
    watcher = _Watcher(workdir, measure, selection)
    if selection.watches:
        every = config.eval_every or finetuning.per_epoch(config)
        count = max(1, math.ceil(config.system.recipe.steps / every))
        config = dataclasses.replace(config, eval_every=every, save_every=every, keep=count + 1)
    result = loop.train(
        config,
        workdir,
        quiet=quiet,
        watch=watcher if selection.watches else None,
        callbacks=callbacks,
    )
    if result.stopped and not watcher.ended:
        return Tuned(workdir, measure.name, result.step, 0, {}, "stopped", result)
    if known is None:
        known = _chosen(workdir, measure, result.step, watcher, selection)
    facts = {
        "system": config.system.name,
        **result.facts,
        "task": known.task,
        "chosen step": known.step,
        "held-out examples": known.examples,
    }
    metrics = {f"held-out {name}": metric(name, value) for name, value in known.metrics.items()}
    logs.report(
        workdir, facts | metrics, splits=("train",)
    )  # the trainer's own held-out figures are of its precision
    return dataclasses.replace(known, result=result)


def _chosen(
    workdir, measure: _Measure, step: int, watcher: _Watcher, selection: Selection
) -> Tuned:
    """Writes the choice of the last checkpoint, or of the best, with its metrics."""
    measured = watcher.last if watcher.ended else measure(loading.load(workdir), aloud=True)
    if not watcher.ended:
        watcher.curve.append({"step": step, "metrics": measured["metrics"]})
    line = watcher.best() if selection.best or watcher.ended else watcher.curve[-1]
    ended = "early" if watcher.ended else "done"
    made = {"task": measure.name, **line, "examples": measured["examples"], "ended": ended}
    made |= {"parts": measured["parts"]} if measured["parts"] else {}
    if measure.evaluation.names_classes:
        if line is not watcher.curve[-1]:
            measure(loading.load(workdirs.checkpoint_of(workdir, line["step"])))
        made["classes"] = measure.evaluation.by_class()
        if measure.evaluation.of_table and not group.current().index:
            measure.write(workdir / PREDICTIONS)
    draft = workdir / f"{CHOICE}.{os.getpid()}"  # every process of a run writes the same
    draft.write_text(json.dumps(made, indent=1) + "\n", encoding="utf8")
    draft.replace(workdir / CHOICE)
    return tuned(workdir)


def _lines(path: Path) -> list[dict[str, Any]]:
    records = []
    for text in path.read_text(encoding="utf8").splitlines() if path.is_file() else ():
        with contextlib.suppress(ValueError):  # the line that was being written
            records.append(json.loads(text))
    return records


def _main(metrics: Mapping[str, float]) -> float:
    return next(iter(metrics.values()))


def ranked(metric: float) -> float:
    """Returns the value that compares runs and checkpoints; NaN metrics are the worst."""
    return -math.inf if math.isnan(metric) else metric


def spread(runs: Sequence[Tuned]) -> dict[str, tuple[float, float]]:
    """{metric: (mean, standard deviation with n - 1)} over the seeds.
    The deviation is 0 for one run."""
    spreads = {}
    for name in runs[0].metrics:
        values = [run.metrics[name] for run in runs]
        spreads[name] = (
            float(np.mean(values)),
            float(np.std(values, ddof=1)) if len(values) > 1 else 0.0,
        )
    return spreads


def expected_best(scores: Sequence[float], draws: int | None = None) -> np.ndarray:
    """The expected best of n = 1, 2, ...

    `most` runs drawn with replacement [most]: sum_v v (P(V <= v)^n - P(V < v)^n) (Dodge et al.
    2019, arXiv 1909.03004, Eq. 7). Default of `most`: the number of scores.
    """
    values = np.sort([ranked(score) for score in scores])
    if not len(values):
        raise ValueError("no run has a score; give at least one")
    n = np.arange(1, (draws or len(values)) + 1)[:, None]
    below, upto = np.arange(len(values)) / len(values), np.arange(1, len(values) + 1) / len(values)
    return (values * (upto**n - below**n)).sum(1)
