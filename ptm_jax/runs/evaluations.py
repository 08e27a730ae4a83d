"""The record of an evaluation of `ptm evaluate --task`.

A room lists its evaluations in a function `kinds()`, which the command imports when it runs. To add
one: an `Evaluation` in the file of its subject, and its name in `kinds()` of that room.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

METHOD = (("method",), "{option} is for word vectors; {model} is no file of them: leave it out")
"""An entry of `Evaluation.refuses`."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """The arguments of `ptm evaluate`, under their names there. `progress` opens a progress bar;
    `language` is the code of the data, where one is known."""

    task: str | None
    model: str
    data: tuple[str, ...] = ()
    split: str = "heldout"
    batches: int = 0
    batch: int = 32
    config: str | None = None
    predictions: str | None = None
    id_column: str | None = None
    skip_empty: bool = False
    text_column: tuple[str, ...] = ()
    label_column: tuple[str, ...] = ()
    plot: str | None = None
    adapter: str | None = None
    tower: str | None = None
    ensemble: tuple[str, ...] = ()
    beside: str | None = None
    languages: tuple[str, ...] = ()
    method: str = "3cosadd"
    speed: float | None = None
    by: str = "piece"
    top: tuple[int, ...] = (1, 10)
    filter: str | None = None
    prompts: tuple[str, ...] = ()
    train: tuple[str, ...] = ()
    entities: str | None = None
    permutations: int = 100
    searches: tuple[int, int] = (5, 500)
    language: str = ""
    progress: Callable[[], Any] = contextlib.nullcontext


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """The result of an evaluation.

    document  the fields of --json, with "metrics" and, where texts were cut or left out, "remarks"
    head      first line of the text
    width     columns of the names of metrics
    table     rows that are printed below the metrics, the header first; ()
    """

    document: Mapping[str, Any]
    head: str
    width: int
    table: Sequence[Sequence[str]] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluation:
    """An evaluation.

    name     the value of --task; "" is the evaluation without --task
    reads    its model: "run" (held-out text of a run), "words" (a table of word vectors), "graph"
             (a run on a graph), or "task" (a model with the head of a task)
    run      raises UserError
    refuses  ((names of options, message), ...): options that it does not take. A message has the
             fields {option}, {task} and {model}
    help     one line for `ptm list --uses`; "": not listed there
    names_columns  whether it takes --text-column and --label-column
    takes    options that only the evaluations which name them take
    """

    name: str
    reads: str
    run: Callable[[Request], Report]
    refuses: tuple[tuple[tuple[str, ...], str], ...] = ()
    help: str = ""
    names_columns: bool = False
    takes: tuple[str, ...] = ()
