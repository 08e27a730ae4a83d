"""The Python functions `ptm_jax.train` (`pretrain` here), `ptm_jax.finetune`, `ptm_jax.evaluate`.

Data are sources as on the command line (a path, a glob, `tfds:name/config`, `pydocs`, or a list of
them), a list of texts, or an iterable of dicts with the columns of a table ({"text": ...}). Texts
and dicts are written into a file of the workdir, named by their hash, so that the same call resumes
the run and other data are refused.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import itertools
import json
import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ptm_jax.adapt import catalogue as adaptations
from ptm_jax.convert import adapterfile
from ptm_jax.core import spec
from ptm_jax.core.errors import UserError, unknown
from ptm_jax.core.paths import flatten
from ptm_jax.core.system import Experiment, System
from ptm_jax.data.stores import working
from ptm_jax.data.text import sources
from ptm_jax.inference.loading import load
from ptm_jax.inference.pretrained import Pretrained
from ptm_jax.runs import heldout, resolving
from ptm_jax.runs.run import Run, best_checkpoint
from ptm_jax.tasks import evaluating
from ptm_jax.tasks.catalogue import catalogue
from ptm_jax.tasks.formats.named_columns import names_columns
from ptm_jax.tasks.formats.taskdata import TaskExamples
from ptm_jax.tasks.metrics import per_class
from ptm_jax.tasks.tables import guessing
from ptm_jax.training import loop, workdirs
from ptm_jax.training.logs import console
from ptm_jax.training.start import setup
from ptm_jax.tuning import finetuning, multitask, other_names, own_data, selection

Model = str | os.PathLike | Pretrained
"""A workdir, a Hugging Face checkpoint (a directory, or a name on the Hub), or a loaded model."""
OPTIONS = ("epochs", "batch", "length", "lr", "seed", "steps", "tagger", "compress")
"""Options of `finetune` that `tuning.finetuning.experiment` takes."""
Data = str | os.PathLike | Iterable[str | os.PathLike | Mapping[str, Any]]


def pretrain(
    config: Model | System | Experiment, data: Data | None = None, *, workdir: str | os.PathLike,
    callbacks: Sequence[loop.Callback] = (), quiet: bool = False, **fields: Any,
) -> Pretrained:  # fmt: skip
    """Pre-trains a system, or trains a model further, in a workdir, and returns the model.
    The same call resumes the run.

    config     a name of `ptm list`, a config file, a System, an Experiment, or a model to train
               further
    data       text (default: the config's)
    callbacks  called as `callback(step, split, values)` with every line of the log
               (`training.loop.Callback`); True ends it
    fields     of the Experiment: seed=1, epochs=2, precision="float32", eval_every=100,
               metrics=("csv",), ...; by paths **{"recipe.lr": 1e-4}

    Raises UserError where the command line refuses, and for an unknown field.
    """
    with _folder(workdir) as folder:
        if not isinstance(config, System | Experiment):
            config = resolving.resolve(_path_of(config, folder), experiment=True)
        config = setup.experiment(
            _with(setup.experiment(config), fields), () if data is None else _sources(data, folder)
        )
        result = loop.train(config, folder, quiet=quiet, callbacks=callbacks)
        if result.stopped:
            console.say(
                f"stopped after step {result.step} of {result.steps}; the same call goes on"
            )
        return load(folder)


def finetune(
    model: Model, texts: Sequence[Any] | None = None, labels: Sequence[Any] | None = None, *,
    task: str | None = None, data: Data | None = None,
    text_column: str | Sequence[str] | None = None, label_column: str | Sequence[str] | None = None,
    heldout: float | None = None, skip_empty: bool = False,
    workdir: str | os.PathLike | None = None, adapt: Sequence[Any] = (), best: bool = False,
    patience: int = 0, callbacks: Sequence[loop.Callback] = (), quiet: bool = False,
    fields: Mapping[str, Any] | None = None,
    **options: Any,
) -> Pretrained:  # fmt: skip
    """Fine-tunes a model on labelled texts, or for a task on its data, and returns it.
    A tenth is held out.

    texts     texts, pairs of texts, or lists of words
    labels    one for each text: a class (str, int or bool), a number (float), or the tags of the
              words (a list)
    task      of `ptm list --tasks`; with `data`, its published files, or dicts with its columns.
              Default: as the labels are
    text_column, label_column, heldout   as `ptm train --text-column`: `data` is a table (csv, tsv,
              jsonl, parquet, or dicts), whose task is guessed from its columns and printed, unless
              `task` is given; of contrast and sts the texts in their order, and the number
    skip_empty   leave rows of the table with an empty cell out, and print their lines
    workdir   folder of the run, from which the same call resumes (default: a temporary one, which
              is deleted)
    adapt     adaptations: values, or names as in --adapt
    best      return the checkpoint with the best held-out metric; patience: measurements without
              improvement until the end
    fields    of the Experiment, also by paths: {"recipe.clip": 5.0}
    options   epochs, batch, length, lr, seed, steps, tagger (`tuning.finetuning.experiment`), also
              under the names of transformers (`tuning.other_names.SAME`)

    Raises UserError.
    """
    options = other_names.translated(options, OPTIONS)
    with _folder(workdir) as folder:
        options["adapt"] = _adaptations(adapt)
        init = _path_of(model, folder)
        columns = (text_column, label_column)
        asked = any(one is not None for one in (*columns, heldout)) or skip_empty
        if asked and (texts is not None or data is None):
            raise UserError("columns are of a table; give it as data, without texts and labels")
        if asked and not (task is not None and names_columns(catalogue.get(task).examples)):
            question = _asked(task, columns, heldout, skip_empty)
            name, config, lines = _of_table(init, _sources(data, folder), question, options, fields)
        else:
            name, sources = _labelled(texts, labels, task, data, folder)
            if asked:
                others = {"heldout": heldout, "skip_empty": skip_empty}
                options["examples"] = _of_groups(name, sources, columns, others)
            config = _with(finetuning.experiment(name, init, sources, **options), fields or {})
            lines = "\n".join(own_data.lines_of(config))
        if lines and not quiet:
            console.say(lines)
        chosen = selection.Selection(best=best, patience=patience)
        tuned = selection.finetune(
            config, folder, name, selection=chosen, quiet=quiet, callbacks=callbacks
        )
        _report(tuned, quiet)
        return load(tuned.checkpoint)


def evaluate(
    model: Model, texts: Sequence[Any] | None = None, labels: Sequence[Any] | None = None, *,
    task: str | None = None,
    data: Data | None = None, split: str = "heldout", batch: int = 32, skip_empty: bool = False,
) -> dict[str, float]:  # fmt: skip
    """Returns {metric: number} of a model on labelled texts, or on the data of a task.

    Without either it returns the means of a run's own objective on its held-out text or on the text
    of `data` (nats per token). `task`, `data` and `skip_empty` are those of `finetune`. Raises
    UserError.
    """
    if task is None and texts is None:
        if not isinstance(model, str | os.PathLike):
            raise UserError(
                "a loaded model has no text of its own; give texts and labels, a task and "
                "data, or a workdir"
            )
        run = Run(Path(model))
        config = run.experiment()
        if data is not None and config.system.examples.labelled:
            raise UserError(f"{run.folder} was fine-tuned; give the task whose data these are")
        with tempfile.TemporaryDirectory(prefix="ptm-") as folder:
            sources = () if data is None else _sources(data, Path(folder))
            with heldout.text_of(run, sources, split, config.seed) as (corpus, part):
                return dict(heldout.measure(run, config, corpus, part).metrics)
    with _folder(None) as folder:
        name, sources = _labelled(texts, labels, task, data, folder)
        loaded = load(best_checkpoint(model)) if isinstance(model, str | os.PathLike) else model
        loaded = multitask.of_task(loaded, name) if multitask.has_task(loaded, name) else loaded
        value = evaluating.task_of(loaded, catalogue.get(name), skip_empty)
        source = evaluating.source_of(value, sources, split)
        return dict(evaluating.evaluate(loaded, value, source, batch=batch).metrics)


def _adaptations(adapt: Sequence[Any]) -> list[Any]:
    """Returns adaptations as values, given values or names as in --adapt."""
    return [
        one
        for part in adapt
        for one in (adaptations.read_all((part,)) if isinstance(part, str) else (part,))
    ]


def _of_table(
    init: str, sources: Sequence[str], asked: guessing.Asked, options: dict[str, Any],
    fields: Mapping[str, Any] | None,
) -> tuple[str, Experiment, str]:  # fmt: skip
    """Returns the task of a table, its experiment and the lines of the guess. Raises UserError."""
    chosen = own_data.experiment(init, sources, asked, **options)
    config = _with(chosen.config, fields or {})
    return chosen.task, config, "\n".join([*chosen.lines, chosen.plan(config)])


def _report(tuned: selection.Tuned, quiet: bool) -> None:
    """Prints the metrics of a run, or that it was stopped."""
    if tuned.ended == "stopped":
        console.say(
            f"stopped after step {tuned.step} of {tuned.result.steps}; the same call goes on"
        )
        return
    figures = ", ".join(f"{metric} {value:.4f}" for metric, value in tuned.metrics.items())
    lines = [
        f"{tuned.task}: {tuned.examples:,} held-out examples, checkpoint of step "
        f"{tuned.step}: {figures}",
        *(per_class.lines(tuned.classes) if tuned.classes else ()),
    ]
    if not quiet:
        console.say("\n".join(lines))


def _asked(
    task: str | None, columns: Sequence[str | Sequence[str] | None], heldout: float | None,
    skip_empty: bool,
) -> guessing.Asked:  # fmt: skip
    """Returns the question to a table; a single column may be a text. Raises UserError."""
    texts, labels = map(_names, columns)
    share = 0.1 if heldout is None else heldout
    return guessing.Asked(
        text_columns=texts, label_columns=labels, task=task, share=share, skip_empty=skip_empty
    )


def _of_groups(
    task: str, sources: Sequence[str], columns: Sequence[str | Sequence[str] | None],
    of_tables: Mapping[str, Any],
) -> TaskExamples:  # fmt: skip
    """Returns the examples of a task with the named columns. Raises UserError, also for options of
    tables with labels."""
    if excluded := [name for name, value in of_tables.items() if value not in (None, False)]:
        raise UserError(f"{excluded[0]} is for a table with labels; with {task} leave it out")
    return catalogue.get(task).examples.with_columns(sources, *map(_names, columns))


def _names(columns: str | Sequence[str] | None) -> tuple[str, ...]:
    """Returns the names of columns; a single one may be a text."""
    return () if columns is None else (columns,) if isinstance(columns, str) else tuple(columns)


def _with(config: Experiment, fields: Mapping[str, Any]) -> Experiment:
    """Returns the experiment with other fields; a name with dots is a path, as of --set.
    Raises UserError for an unknown one, or a wrong value."""
    known = [field.name for field in dataclasses.fields(config)]
    paths = {name: value for name, value in fields.items() if "." in name}
    plain = {name: value for name, value in fields.items() if name not in paths}
    if odd := [name for name in plain if name not in known]:
        if odd[0] in other_names.FIELDS:
            raise UserError(
                f"unknown field {odd[0]!r}; write {{{other_names.FIELDS[odd[0]]!r}: ...}}"
            )
        raise unknown("field", odd[0], known)
    try:
        return spec.override(dataclasses.replace(config, **plain), paths)
    except ValueError as error:
        raise UserError(str(error)) from None


@contextlib.contextmanager
def _folder(workdir: str | os.PathLike | None) -> Iterator[Path]:
    """Yields the workdir, or a temporary one. Raises UserError."""
    if workdir is not None:
        yield working.opened(workdir, "workdir")
        return
    with tempfile.TemporaryDirectory(prefix="ptm-") as folder:
        try:
            yield Path(folder) / "run"
        except UserError as error:  # the folder is gone when the message is read
            text = _GIVEN.sub(r"the data, row \1", str(error))
            raise UserError(text.replace(f"{folder}/run/", "")) from error


_GIVEN = re.compile(r"\S*/given_[0-9a-f]{16}\.jsonl:(\d+)")
"""A line of a file that was made of the caller's texts or dicts."""


def _path_of(model: str | os.PathLike | Pretrained, folder: Path) -> str:
    """Returns the path of a model, which is saved first if it is a loaded one."""
    return os.fspath(model if isinstance(model, str | os.PathLike) else _saved(model, folder))


def _saved(model: Pretrained, folder: Path) -> Path:
    """Returns the workdir of a loaded model: a folder below the run's, named by a hash of the
    parameters."""
    path = folder / f"init_{adapterfile.digest(flatten(model.params))[:16]}"
    if not path.exists():
        model.save(path)
    return path


def _sources(data: Data, folder: Path) -> tuple[str, ...]:
    """Returns the sources of `data`; texts and dicts are written into a file in the folder.
    Raises UserError."""
    if isinstance(data, str | os.PathLike):
        return (os.fspath(data),)
    if isinstance(data, list | tuple):
        files = [
            isinstance(one, os.PathLike) or isinstance(one, str) and _is_source(one) for one in data
        ]
        if files and all(files):
            return tuple(map(os.fspath, data))
        if any(files):
            raise UserError(
                f"data has {sum(files)} files and {len(files) - sum(files)} texts; give either"
            )
    return (_written("jsonl", (_line(one, number) for number, one in enumerate(data, 1)), folder),)


def _is_source(text: str) -> bool:
    if len(text) > 1000 or "\n" in text:
        return False
    with contextlib.suppress(UserError, OSError, ValueError):
        return bool(sources.expand(text))
    return False


def _line(one: Any, number: int) -> str:
    row = {"text": one} if isinstance(one, str) else one
    if not isinstance(row, Mapping):
        raise UserError(
            f"row {number} of the data is of type {type(one).__name__}; give texts, dicts, or paths"
        )
    try:
        return json.dumps(dict(row), ensure_ascii=False, default=lambda value: value.tolist())
    except (TypeError, ValueError, AttributeError) as error:
        raise UserError(
            f"row {number} of the data is no JSON object ({error}); give numbers, texts and lists"
        ) from None


def _written(kind: str, lines: Iterable[str], folder: Path) -> str:
    """Returns the path of a file of the lines, named by their hash."""
    draft, hashed = folder / f"given.{os.getpid()}", hashlib.sha256()
    with workdirs.writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with draft.open("wb") as file:
            for line in lines:
                hashed.update(data := f"{line}\n".encode())
                file.write(data)
        return str(draft.replace(folder / f"given_{hashed.hexdigest()[:16]}.{kind}"))


def _labelled(
    texts: Any, labels: Any, task: str | None, data: Any, folder: Path
) -> tuple[str, tuple[str, ...]]:
    """Returns (name of the task, its sources). Raises UserError."""
    if texts is None:
        if labels is not None or task is None or data is None:
            raise UserError("give texts and labels, or the name of a task and its data")
        return task, _sources(data, folder)
    texts, labels = (
        list(texts),
        [
            one.tolist() if isinstance(one, np.generic | np.ndarray) else one
            for one in (() if labels is None else labels)
        ],
    )
    if data is not None or not texts or len(texts) != len(labels):
        raise UserError(
            f"{len(texts)} texts and {len(labels)} labels{' and data' * (data is not None)}; "
            "give a label for each"
        )
    if isinstance(labels[0], list | tuple):
        words = [text.split() if isinstance(text, str) else list(text) for text in texts]
        if odd := [
            i
            for i, (sentence, tags) in enumerate(zip(words, labels, strict=True), 1)
            if len(sentence) != len(tags)
        ]:
            raise UserError(
                f"text {odd[0]} has {len(words[odd[0] - 1])} words and "
                f"{len(labels[odd[0] - 1])} tags"
            )
        entities = any(str(tag)[:2] == "B-" for tags in labels for tag in tags)
        rows = (
            (*(f"{word}\t{tag}" for word, tag in zip(*pair, strict=True)), "")
            for pair in zip(words, labels, strict=True)
        )
        return task or ("ner" if entities else "pos"), (
            _written("conll", itertools.chain.from_iterable(rows), folder),
        )
    pairs, number = not isinstance(texts[0], str), isinstance(labels[0], float)
    kind = {
        (False, False): "classify",
        (True, False): "pairs",
        (False, True): "rate",
        (True, True): "stsb",
    }[pairs, number]
    columns = ("sentence1", "sentence2") if pairs else ("text",)
    rows = (
        {**dict(zip(columns, one if pairs else (one,), strict=True)), "label": label}
        for one, label in zip(texts, labels, strict=True)
    )
    return task or kind, _sources(rows, folder)
