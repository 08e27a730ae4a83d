"""Evaluates a model on a task: predictions, metrics, and the prediction file."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ptm_jax.core.errors import UserError, unknown
from ptm_jax.core.reading import check_apart
from ptm_jax.data.text import dataset_folders
from ptm_jax.encoders.context import read_languages
from ptm_jax.inference import head_scores
from ptm_jax.inference.text.classifying import names_of
from ptm_jax.tasks.catalogue import Task, catalogue
from ptm_jax.tasks.formats.entity_spans import types_are_texts
from ptm_jax.tasks.formats.tabular import Source
from ptm_jax.tasks.formats.taskdata import Remarks, first_of
from ptm_jax.tasks.kinds.base import kind_of
from ptm_jax.tasks.metrics.per_class import ClassScores
from ptm_jax.tasks.tables import prediction_tables
from ptm_jax.tasks.tables.own_tables import OwnTable

if TYPE_CHECKING:
    from ptm_jax.inference.pretrained import Pretrained


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """Predictions for examples, their metrics (none without labels), truncated-text counts, and
    the signatures of metrics that depend on settings (BLEU)."""

    task: Task
    source: Source
    examples: Sequence[Any]
    predictions: Sequence[Any]
    metrics: Mapping[str, float]
    remarks: Remarks
    signatures: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def of_table(self) -> bool:
        """Whether the examples are of a table of the user's."""
        return isinstance(self.task.examples, OwnTable)

    @property
    def names_classes(self) -> bool:
        """Whether the data names the classes: a table of the user's, and types given as text."""
        return self.of_table or types_are_texts(self.task.examples)

    def write(self, path: str | Path, id_column: str | None = None) -> None:
        """Writes the prediction file (`write`), of a table with the ids of its rows. Raises
        UserError, also for the file of the examples."""
        if not Path(path).is_dir():
            check_apart(path, "the file of predictions", self.source.path)
        ids = self.task.examples.ids(self.source, id_column) if self.of_table else {}
        write(path, self.task, self.examples, self.predictions, ids)

    def by_class(self) -> Mapping[str, ClassScores]:
        """Returns the figures of each class, of examples with labels; {} of a kind without
        classes."""
        kind = kind_of(self.task.examples)
        if kind.by_class is None or not self.metrics:
            return {}
        return kind.by_class(self.task.examples, self.examples, self.predictions)


def task_for(model: Pretrained, task: Task) -> Task:
    """Returns the task with its classes in the model's order.
    Raises UserError if the model has other classes."""
    kind = kind_of(task.examples, model.module.encoder)
    if not kind.named or not task.examples.labels:
        return task
    head = model.module.heads.get(kind.head)
    if head is None:
        raise UserError(
            f"{model.system.name} has no head {kind.head!r}, which the task {task.name} "
            "needs; fine-tune it with "
            f"`ptm train --init MODEL --task {task.name} --data PATH`"
        )
    names, known = names_of(model, head.classes), task.examples.labels
    if known == "found" and not names:
        raise UserError(
            f"{model.system.name} does not name its {head.classes} classes; fine-tune it on "
            f"{task.name}"
        )
    spelled = {name.lower(): name for name in (names if known == "found" else known)}
    if {name.lower() for name in names} == set(spelled):
        order = tuple(spelled[name.lower()] for name in names)
        return dataclasses.replace(task, examples=dataclasses.replace(task.examples, labels=order))
    if len(known) != head.classes:
        raise UserError(
            f"{model.system.name} has {head.classes} classes and {task.name} has {len(known)}"
        )
    return task


def task_of(model: Pretrained, task: Task, skip_empty: bool = False) -> Task:
    """Returns the task with the columns of the table on which the model was fine-tuned for it;
    `skip_empty`: rows with an empty cell are left out."""
    examples = model.system.examples
    if isinstance(examples, OwnTable) and examples.task == task.name:
        examples = dataclasses.replace(examples, skip_empty=skip_empty or examples.skip_empty)
        return dataclasses.replace(task, examples=examples)
    return dataclasses.replace(task, examples=task.examples.like(examples))


def assumed(model: Pretrained, task: Task) -> str | None:
    """Returns a remark if the names of a model's classes are absent or differ from the task's.
    The classes are then taken in the task's order. None without a remark."""
    kind = kind_of(task.examples, model.module.encoder)
    if not kind.named or not isinstance(task.examples.labels, tuple) or not task.examples.labels:
        return None
    names = names_of(model, model.module.heads[kind.head].classes)
    if {name.lower() for name in names} == {name.lower() for name in task.examples.labels}:
        return None
    named = f"names its classes {', '.join(names)}" if names else "does not name its classes"
    return (
        f"time the model {named}: they are taken for {', '.join(task.examples.labels)} of "
        f"{task.name} in this order"
    )


def in_language(model: Pretrained, code: str) -> Pretrained:
    """Returns the model with the language of its texts, where it has vectors or adapters of
    languages. Raises UserError for a language that it has not."""
    reads = code and read_languages(model.module.encoder)
    return model.for_language(code) if reads else model


def source_of(task: Task, data: Sequence[str], split: str = "heldout") -> Source:
    """Returns the source of --data: a file, or the files of a directory for a split.
    Raises UserError."""
    if len(data) == 1 and task.examples.is_file(str(data[0])):
        return Source(str(data[0]))
    if split == "test" and len(data) == 1 and Path(data[0]).is_dir():
        splits = dataset_folders.splits_of(Path(data[0]))
        if "test" in splits:
            return Source(splits["test"])
        file = first_of(Path(data[0]), task.examples.test)
        if file is None:
            raise UserError(
                f"{data[0]} has no file {' or '.join(task.examples.test)}; give the file itself"
            )
        return Source(str(file))
    return heldout_of(task, data, split)


def heldout_of(task: Task, data: Sequence[str], split: str = "heldout") -> Source:
    """Returns the source of a run's held-out examples, or of another `split`.
    A single file has a tenth held out."""
    return task.examples.files(data)[split]


def length_of(model: Pretrained, task: Task) -> int:
    """Returns the row length in tokens: the length in fine-tuning, or the task's default."""
    return head_scores.length_of(
        model, type(model.system.examples) is type(task.examples), task.length
    )


def evaluate(
    model: Pretrained, task: Task, source: Source, *, labels: bool = True,
    length: int | None = None, batch: int = 32,
    beside: Any = None,
) -> Evaluation:  # fmt: skip
    """Predicts a source of examples, and computes the metrics if it has labels. Raises UserError.

    beside   the model of the first stage of a two-stage task, such as the sketchy reader of
             `squad2_retro`
    """
    task, remarks = task_for(model, task), Remarks()
    if (order := assumed(model, task)) is not None:
        remarks[order] += 1
    examples, kind = task.examples.examples(source, remarks, labels), kind_of(task.examples)
    first = {} if beside is None else {"first": _first(beside, task, examples, batch)}
    length = length or length_of(model, task)
    predictions, cut = kind.predict(model, task.examples, examples, length, batch, **first)
    if short := cut.pop("cut", 0):
        remarks[f"texts are longer than {length} tokens; their ends are cut off"] += short
    metrics = measured(task, examples, predictions) if labels else {}
    signatures = kind.signatures(examples, predictions, task) if metrics else {}
    signatures = {name: line for name, line in signatures.items() if name in metrics}
    return Evaluation(
        task, source, examples, predictions, metrics, remarks=remarks + cut, signatures=signatures
    )


def rows_of(
    task: Task, examples: Sequence[Any], predictions: Sequence[Any]
) -> list[Mapping[str, Any]]:
    """Returns the rows of a table of predictions (`Kind.cells`)."""
    return list(kind_of(task.examples).cells(task.examples, examples, predictions))


def _first(model: Pretrained, task: Task, examples: Sequence[Any], batch: int) -> Sequence[Any]:
    """Returns the predictions of the first-stage model of a task."""
    name = kind_of(task.examples).first
    if not name:
        raise UserError(f"{task.name} needs one model; leave --beside out")
    before = task_for(model, catalogue.get(name))
    return kind_of(before.examples).predict(
        model, before.examples, examples, length_of(model, before), batch
    )[0]


def measured(task: Task, examples: Sequence[Any], predictions: Sequence[Any]) -> dict[str, float]:
    """Returns the metrics of a task, in the order of its measures.
    Raises UserError for unknown measures or lengths that differ."""
    if len(examples) != len(predictions):
        raise UserError(
            f"{len(examples)} examples and {len(predictions)} predictions; both must be as many"
        )
    measures, figures = kind_of(task.examples).measures, {}
    for name in task.metrics:
        if name not in measures:
            raise unknown("measure", name, measures)
        figures |= measures[name](examples, predictions, task)
    return {name: float(value) for name, value in figures.items()}


def lines(task: Task, examples: Sequence[Any], predictions: Sequence[Any]) -> Iterator[str]:
    """Yields the lines of a task's prediction file, in the format of its server or scorer."""
    return kind_of(task.examples).lines(task, examples, predictions)


def write(
    path: str | Path, task: Task, examples: Sequence[Any], predictions: Sequence[Any],
    ids: Mapping[str, str] | None = None,
) -> None:  # fmt: skip
    """Writes the prediction file atomically.

    A table for the endings of `prediction_tables.ENDINGS`, unless the task's server reads such a
    file; `ids`: {place of an example: its id}. In a directory it gets the name that the server
    expects. Raises UserError (`check_table`).
    """
    path = Path(path)
    path = path / (task.file or f"{task.name}.txt") if path.is_dir() else path
    if check_table(path, task):
        rows = rows_of(task, examples, predictions)
        if ids:
            numbered = zip(examples, rows, strict=True)
            rows = [{**row, "id": ids.get(example.place)} for example, row in numbered]
        if (separator := prediction_tables.SEPARATORS.get(path.suffix.lower())) is not None:
            text = "".join(prediction_tables.lines(rows, separator, ids=bool(ids)))
        else:
            each = zip(examples, predictions, strict=True)
            published = [list(lines(task, [example], [one])) for example, one in each]
            text = prediction_tables.objects(rows, published, path.suffix.lower() == ".jsonl")
    else:
        text = "".join(f"{line}\n" for line in lines(task, examples, predictions))
    draft = path.with_name(path.name + ".draft")
    draft.write_text(text, encoding="utf8", newline="")
    draft.replace(path)


def check_table(path: Path, task: Task) -> bool:
    """Returns whether a file of predictions is a table of rows: by its ending, where the task's
    server reads no such file. Raises UserError for CSV and TSV of predictions that are no rows."""
    ending, kind = path.suffix.lower(), kind_of(task.examples)
    if path.is_dir() or path.suffix == Path(task.file).suffix:
        return False
    if ending in prediction_tables.SEPARATORS and kind.cells is None:
        raise UserError(
            f"{path}: the predictions of {task.name} are no rows of a table; give the file the "
            "ending .jsonl"
        )
    return ending in prediction_tables.ENDINGS and kind.cells is not None
