"""A fine-tuning run around the trainer: measured on its way, the best checkpoint chosen, ended early, several seeds.

The trainer knows nothing of tasks: it is handed a function that looks on (`train.loop.Watch`). What is found lies in the
workdir, so that a run that was stopped goes on, and one that is done is only read:

    task.jsonl     {"step", "metrics"} of every evaluation of the held-out examples
    task.json      task, examples, metrics, the step that they are of, how the run ended

Of several tasks at once the metrics are "mean", of every task's first metric, by which checkpoints are chosen, and
"TASK/METRIC" of each; `parts` has the examples and remarks of every task.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ptm_jax.core.errors import UserError
from ptm_jax.core.system import Experiment, in_effect
from ptm_jax.data import tokenizers
from ptm_jax.data.taskdata import tell
from ptm_jax.tasks import evaluating, finetuning, multitask
from ptm_jax.tasks.pretrained import Pretrained

DONE, CURVE = "task.json", "task.jsonl"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Selection:
    """How the checkpoint of a fine-tuning run is chosen.

    best      the one of the best held-out metric, measured every epoch (or every `eval_every` steps of the config); else
              the last one
    patience  end the run after so many measurements without a better one; 0: never
    """

    best: bool = False
    patience: int = 0

    def __post_init__(self):
        if self.patience < 0:
            raise ValueError(f"patience is {self.patience}; it must be at least 1, or 0 for no end before the last step")

    @property
    def watches(self) -> bool:
        """Whether the held-out metric is measured during the run."""
        return self.best or self.patience > 0


@dataclasses.dataclass(frozen=True)
class Tuned:
    """A run: the held-out metrics of its chosen checkpoint, which is of `step`; `main` is the first of them.

    ended is "done", "early" (patience) or "stopped" (SIGTERM); result is the trainer's, where it was called; parts is
    {task: {"examples", "remarks"}} of a run on several tasks.
    """

    workdir: Path
    task: str
    step: int
    examples: int
    metrics: Mapping[str, float]
    ended: str = "done"
    result: Any = None
    parts: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)

    @property
    def main(self) -> float:
        """What models are compared by."""
        return next(iter(self.metrics.values()))

    @property
    def checkpoint(self) -> Path:
        """The chosen one."""
        return self.workdir / "checkpoints" / f"step_{self.step:08d}"


class _Measure:
    """The held-out examples of the task of a run, or (None) of all tasks of its mixture, and what a model says to them."""

    def __init__(self, config: Experiment, task: str | None):
        examples = config.system.examples
        self._mixed = task is None
        files = examples.files(config.data) if self._mixed else {task: config.data}
        parts = examples.parts if self._mixed else {task: examples}
        own = lambda name: dataclasses.replace(finetuning.catalogue.get(name), examples=parts[name])
        self._parts = {name: (own(name), files[name]) for name in parts}
        self.name = "+".join(parts)

    def __call__(self, model: Any, aloud: bool = False) -> dict[str, Any]:
        """{"examples", "metrics", "parts"} as `Tuned` has them; `aloud` tells what was cut."""
        found = {}
        for name, (task, data) in self._parts.items():
            one = multitask.of_task(model, name) if self._mixed else model
            found[name] = evaluating.evaluate(one, task, evaluating.heldout_of(task, data))
            if aloud:
                tell(found[name].remarks, found[name].source.path)
        examples = sum(len(one.examples) for one in found.values())
        if not self._mixed:
            return {"examples": examples, "metrics": dict(found[self.name].metrics), "parts": {}}
        metrics = {"mean": float(np.mean([next(iter(one.metrics.values())) for one in found.values()]))}
        metrics |= {f"{name}/{metric}": value for name, one in found.items() for metric, value in one.metrics.items()}
        parts = {name: {"examples": len(one.examples), "remarks": dict(one.remarks)} for name, one in found.items()}
        return {"examples": examples, "metrics": metrics, "parts": parts}


class _Watcher:
    """Measures the held-out examples whenever the trainer evaluates; the checkpoints of the best and the newest stay."""

    def __init__(self, workdir: Path, measure: _Measure, selection: Selection):
        self._workdir, self._measure, self._selection = workdir, measure, selection
        self.curve = _lines(workdir / CURVE)
        self.ended, self.last = False, None

    def __call__(self, step: int, program: Any, params: Any) -> bool:
        self.curve = [line for line in self.curve if line["step"] < step]
        model = Pretrained(
            dataclasses.replace(program.system, towers=program.towers), in_effect(program.system, params),
            tokenizers.load(self._workdir / "tokenizer"),
        )  # fmt: skip
        self.last = self._measure(model)
        self.curve.append({"step": step, "metrics": self.last["metrics"]})
        (self._workdir / CURVE).write_text("".join(json.dumps(line) + "\n" for line in self.curve), encoding="utf8")
        self._sweep()
        scores = [next(iter(line["metrics"].values())) for line in self.curve]
        since = len(scores) - 1 - int(np.argmax(scores))
        self.ended = 0 < self._selection.patience <= since
        return self.ended

    def best(self) -> dict[str, Any] | None:
        """The evaluation of the best held-out metric, the first of several."""
        return max(self.curve, key=lambda line: next(iter(line["metrics"].values())), default=None)

    def _sweep(self) -> None:
        """Checkpoints of epochs that are neither the best nor the last before this one are not needed any more."""
        steps = [line["step"] for line in self.curve]
        for step in set(steps[:-2]) - {self.best()["step"]}:
            shutil.rmtree(self._workdir / "checkpoints" / f"step_{step:08d}", ignore_errors=True)


def tuned(workdir: str | Path) -> Tuned | None:
    """The finished run of a workdir; None where there is none."""
    path = Path(workdir) / DONE
    if not path.is_file():
        return None
    try:
        found = json.loads(path.read_text(encoding="utf8"))
        told = (found[name] for name in ("task", "step", "examples", "metrics", "ended"))
        return Tuned(Path(workdir), *told, parts=found.get("parts", {}))
    except (ValueError, KeyError) as error:
        raise UserError(f"{path} is damaged ({error}); delete it and run again") from None


def finetune(
    config: Experiment, workdir: str | Path, task: str | None, *, train: Callable, load: Callable,
    selection: Selection | None = None, quiet: bool = False,
) -> Tuned:  # fmt: skip
    """Train and measure on the held-out examples of a task, or (None) of all tasks of a mixture; what SIGTERM stopped has no
    metrics. `train` and `load` are `train.loop.train` and `ptm_jax.load`, which tasks do not import. Raises UserError."""
    selection, workdir = selection or Selection(), Path(workdir)
    known, measure = tuned(workdir), _Measure(config, task)
    if known is not None and known.ended != "done":
        return known
    watcher = None
    if selection.watches:
        every = config.eval_every or finetuning.per_epoch(config)
        count = max(1, math.ceil(config.system.recipe.steps / every))
        config = dataclasses.replace(config, eval_every=every, save_every=every, keep=count + 1)
        watcher = _Watcher(workdir, measure, selection)
    result = train(config, workdir, quiet=quiet, watch=watcher)
    if result.stopped and not (watcher is not None and watcher.ended):
        return Tuned(workdir, measure.name, result.step, 0, {}, "stopped", result)
    if known is None:
        known = _chosen(workdir, measure, result, watcher, selection, load)
    return dataclasses.replace(known, result=result)


def _chosen(workdir, measure: _Measure, result, watcher, selection: Selection, load) -> Tuned:
    """The last checkpoint, or the best one, with its metrics, written down."""
    step, best = result.step, selection.best
    if watcher is not None and watcher.ended:
        found, best = watcher.last, True
    else:
        found = measure(load(workdir), aloud=True)
        if watcher is not None:
            watcher.curve.append({"step": step, "metrics": found["metrics"]})
    line = watcher.best() if watcher is not None and best else {"step": step, "metrics": found["metrics"]}
    ended = "early" if watcher is not None and watcher.ended else "done"
    made = {"task": measure.name, **line, "examples": found["examples"], "ended": ended}
    made |= {"parts": found["parts"]} if found["parts"] else {}
    draft = workdir / f"{DONE}.{os.getpid()}"  # every process of a run writes the same
    draft.write_text(json.dumps(made, indent=1) + "\n", encoding="utf8")
    draft.replace(workdir / DONE)
    return tuned(workdir)


def best_checkpoint(path: str | Path) -> Path:
    """The chosen checkpoint of a fine-tuned workdir; anything else as it is."""
    found = tuned(path)
    return Path(path) if found is None or not found.checkpoint.is_dir() else found.checkpoint


def _lines(path: Path) -> list[dict[str, Any]]:
    if not path.is_file():
        return []
    found = []
    for text in path.read_text(encoding="utf8").splitlines():
        try:
            found.append(json.loads(text))
        except ValueError:
            continue  # the line that was being written
    return found


def spread(runs: Sequence[Tuned]) -> dict[str, tuple[float, float]]:
    """{metric: (mean, standard deviation over the seeds)}, the latter with n - 1, 0 for one run."""
    found = {}
    for name in runs[0].metrics:
        values = [run.metrics[name] for run in runs]
        found[name] = float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
    return found
