"""Compression of a model: fine-tuning if the method trains, then the smaller model in a folder."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ptm_jax.compress.base import Compression
from ptm_jax.core.errors import UserError
from ptm_jax.core.system import Experiment
from ptm_jax.core.types import Batch
from ptm_jax.inference import loading
from ptm_jax.inference.pretrained import Pretrained
from ptm_jax.runs.run import best_checkpoint
from ptm_jax.runs.writing import check_free
from ptm_jax.tasks import evaluating
from ptm_jax.tasks.catalogue import catalogue
from ptm_jax.tasks.kinds.base import kind_of
from ptm_jax.training.start import setup
from ptm_jax.tuning import finetuning, selection
from ptm_jax.tuning.augmentation import teaching


@dataclasses.dataclass(frozen=True)
class Size:
    """Size of a model: parameters, zero parameters, bytes of its arrays, held-out metrics.
    Metrics are {} if none were measured."""

    parameters: int
    zeros: int
    bytes: int
    metrics: Mapping[str, float]


@dataclasses.dataclass(frozen=True)
class Compressed:
    """A compressed model and its original.
    If a signal stopped the run, `result` is the run's result and `after` is None."""

    before: Size
    after: Size | None
    result: Any = None


def compress(
    compression: Compression, model: str | os.PathLike, out: str | os.PathLike, *,
    task: str | None = None,
    data: Sequence[str] = (), workdir: str | os.PathLike | None = None, quiet: bool = False,
    change: Callable[[Experiment], Experiment] = lambda config: config, **options: Any,
) -> Compressed:  # fmt: skip
    """Compresses a model and writes it as a workdir, from which `ptm_jax.load` loads it.
    The same call goes on after a stop.

    task, data   on which the method trains, which examples it reads, and on which the model is
                 measured before and after
    workdir      of the fine-tuning and its data (default: `out`.run)
    change       applied to the experiment of the fine-tuning; `options` are those of
                 `finetuning.experiment`

    Raises UserError for a method that needs a task and has none, and for a model that it does not
    fit.
    """
    check_free(out)
    if not (task and data):
        _check_needs_none(compression)
    first = loading.load(best_checkpoint(model))
    if not loading.has_encoder(first):
        raise UserError(
            f"{model} has no encoder; give a model with one, or compress word vectors with "
            "`ptm compress static`"
        )
    measure = _Measure(task, data)
    before, config = measure(first), None
    if compression.trains or compression.rows:
        workdir = Path(f"{os.fspath(out).rstrip(os.sep)}.run" if workdir is None else workdir)
        if compression.measures:
            plain = change(
                finetuning.experiment(task, os.fspath(best_checkpoint(model)), data, **options)
            )
            _check_head(compression, first, plain.system.objective.head, (model, task))
            place = workdir.with_name(f"{workdir.name}.measured")
            compression = _reading(
                compression.measured, first, (plain, place, compression.measures)
            )
        wrappers = (compression,) if compression.trains else ()
        init = compression.start(os.fspath(best_checkpoint(model)))
        config = change(finetuning.experiment(task, init, data, compress=wrappers, **options))
    if compression.stored:
        scores = teaching.write_scores(
            (first,), catalogue.get(task), data, workdir / "teacher_scores.jsonl"
        )
        config = teaching.taught(config, scores)
    if compression.trains:
        tuned = selection.finetune(config, workdir, task, quiet=quiet)
        if tuned.ended == "stopped":
            return Compressed(before, None, tuned.result)
        first = loading.load(tuned.checkpoint)
        compression = first.system.compress[-1]
    after = smaller(compression, first, config, workdir)
    after.save(out)
    return Compressed(before, measure(after))


def _check_needs_none(compression: Compression) -> None:
    """Raises UserError if the method needs a task with its data."""
    if compression.trains or compression.rows or compression.measures:
        needs = (
            "trains the model"
            if compression.trains
            else f"reads {compression.rows + compression.measures:,} examples"
        )
        raise UserError(
            f"{type(compression).__name__} {needs}; give the task (--task) and its data (--data)"
        )


def _check_head(compression: Compression, model: Pretrained, head: str | None, names) -> None:
    """Raises UserError if the model lacks the head of the task; `names` are its path and the
    task's name."""
    if head is not None and head not in model.module.heads:
        path, task = names
        raise UserError(
            f"{type(compression).__name__} measures the loss of a fine-tuned model, and "
            f"{path} has no head {head!r}; run ptm train --init {path} --task {task} "
            "first, and compress that run"
        )


def smaller(
    compression: Compression, model: Pretrained, config: Experiment | None, workdir: Path | None
) -> Pretrained:
    """Returns the compressed model.
    The examples that the method reads are those of `config`, prepared in `workdir`.

    Raises UserError for a model that the method does not fit."""
    system, params = _reading(compression.smaller, model, (config, workdir, compression.rows))
    tower = model.tower if model.tower in system.towers else next(iter(system.towers))
    return dataclasses.replace(model, system=system, params=params, tower=tower)


def _reading(method: Callable[..., Any], model: Pretrained, source: tuple[Any, Any, int]) -> Any:
    """Returns method(system, parameters, batches).
    `source` is (experiment, workdir, number of examples)."""
    config, workdir, rows = source
    system = model.system
    if rows:
        config, corpus = setup.begin(config, workdir)
        system = dataclasses.replace(system, objective=config.system.objective)

    def batches() -> Iterator[Batch]:
        size = config.system.recipe.phases[0].batch
        stream = setup.stream(config, corpus, 0, "train", epochs=1)
        for _, batch in zip(range(math.ceil(rows / size)), stream, strict=False):
            yield batch

    try:
        return method(system, model.params, batches)
    except ValueError as error:
        kind = type(method.__self__).__name__
        raise UserError(f"{model.system.name} does not take {kind}: {error}") from error


class _Measure:
    """Measures a model on the held-out examples of a task, if there is one."""

    def __init__(self, task: str | None, data: Sequence[str]):
        if task is not None and not data:
            raise UserError(f"--task {task} needs the task's data; give them as --data")
        self._task = None if task is None else catalogue.get(task)
        self._data = data

    def __call__(self, model: Pretrained) -> Size:
        leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(model.params[model.tower])]
        metrics: Mapping[str, float] = {}
        if (
            self._task is not None
            and kind_of(self._task.examples, model.module.encoder).head in model.module.heads
        ):
            source = evaluating.heldout_of(self._task, self._data)
            metrics = evaluating.evaluate(model, self._task, source).metrics
        zeros = sum(int(np.sum(leaf == 0)) for leaf in leaves)
        return Size(
            sum(leaf.size for leaf in leaves), zeros, sum(leaf.nbytes for leaf in leaves), metrics
        )
