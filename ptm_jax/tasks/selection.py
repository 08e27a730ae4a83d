"""A fine-tuning run around the trainer: measured at every epoch, the best checkpoint chosen, ended early, several seeds.

The trainer knows nothing of tasks: it is handed a function that looks on (`train.loop.Watch`). What is found lies in the
workdir, so that a run that was stopped goes on, and one that is done is only read:

    task.jsonl     {"step", "metrics"} of every evaluation of the held-out examples
    task.json      task, examples, metrics, the step that they are of, how the run ended
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
from ptm_jax.tasks import evaluating, finetuning
from ptm_jax.tasks.catalogue import Task
from ptm_jax.tasks.pretrained import Pretrained

DONE, CURVE = "task.json", "task.jsonl"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Selection:
    """How the checkpoint of a fine-tuning run is chosen.

    best      the one of the best held-out metric, measured every epoch; else the last one
    patience  end the run after so many epochs without a better one; 0: never
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

    ended is "done", "early" (patience) or "stopped" (SIGTERM); result is the trainer's, where it was called.
    """

    workdir: Path
    task: str
    step: int
    examples: int
    metrics: Mapping[str, float]
    ended: str = "done"
    result: Any = None

    @property
    def main(self) -> float:
        """What models are compared by."""
        return next(iter(self.metrics.values()))

    @property
    def checkpoint(self) -> Path:
        """The chosen one."""
        return self.workdir / "checkpoints" / f"step_{self.step:08d}"


class _Watcher:
    """Measures the held-out examples whenever the trainer evaluates; the checkpoints of the best and the newest stay."""

    def __init__(self, workdir: Path, task: Task, config: Experiment, selection: Selection):
        self._workdir, self._task, self._config, self._selection = workdir, task, config, selection
        self.curve = _lines(workdir / CURVE)
        self.ended = False

    def __call__(self, step: int, program: Any, params: Any) -> bool:
        self.curve = [line for line in self.curve if line["step"] < step]
        model = Pretrained(
            dataclasses.replace(program.system, towers=program.towers), in_effect(program.system, params),
            tokenizers.load(self._workdir / "tokenizer"),
        )  # fmt: skip
        source = evaluating.heldout_of(self._task, self._config.data)
        found = evaluating.evaluate(model, self._task, source)
        self.curve.append({"step": step, "metrics": dict(found.metrics)})
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
        return Tuned(Path(workdir), found["task"], found["step"], found["examples"], found["metrics"], found["ended"])
    except (ValueError, KeyError) as error:
        raise UserError(f"{path} is damaged ({error}); delete it and run again") from None


def finetune(
    config: Experiment, workdir: str | Path, task: str, *, train: Callable, load: Callable,
    selection: Selection | None = None, quiet: bool = False,
) -> Tuned:  # fmt: skip
    """Train and measure on the held-out examples; what SIGTERM stopped has no metrics. `train` and `load` are
    `train.loop.train` and `ptm_jax.load`, which tasks do not import. Raises UserError."""
    selection, workdir = selection or Selection(), Path(workdir)
    known, task_ = tuned(workdir), finetuning.catalogue.get(task)
    if known is not None and known.ended != "done":
        return known
    task_ = dataclasses.replace(task_, examples=config.system.examples)
    watcher = None
    if selection.watches:
        epoch = finetuning.per_epoch(config)
        count = max(1, math.ceil(config.system.recipe.steps / epoch))
        config = dataclasses.replace(config, eval_every=epoch, save_every=epoch, keep=count + 1)
        watcher = _Watcher(workdir, task_, config, selection)
    result = train(config, workdir, quiet=quiet, watch=watcher)
    if result.stopped and not (watcher is not None and watcher.ended):
        return Tuned(workdir, task, result.step, 0, {}, "stopped", result)
    if known is None:
        known = _chosen(workdir, task_, config, result, watcher, selection, load)
    return dataclasses.replace(known, result=result)


def _chosen(workdir, task: Task, config: Experiment, result, watcher, selection: Selection, load) -> Tuned:
    """The last checkpoint, or the best one, with its metrics, written down."""
    step, examples, metrics = result.step, None, None
    if watcher is None or not watcher.ended:
        found = evaluating.evaluate(load(workdir), task, evaluating.heldout_of(task, config.data))
        examples, metrics = len(found.examples), dict(found.metrics)
        tell(found.remarks, found.source.path)
        if watcher is not None:
            watcher.curve.append({"step": step, "metrics": metrics})
    best = watcher.best() if watcher is not None else None
    if best is not None and (selection.best or metrics is None):
        step, metrics = best["step"], best["metrics"]
    if examples is None:
        examples = len(task.examples.examples(evaluating.heldout_of(task, config.data)))
    ended = "early" if watcher is not None and watcher.ended else "done"
    made = {"task": task.name, "step": step, "examples": examples, "metrics": metrics, "ended": ended}
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
