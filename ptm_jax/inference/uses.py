"""The record of a use of a model: a task of `ptm predict`.

To add one: a `Use` in the file of its subject, and that file in `inference.predicting.kinds`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """The arguments of `ptm predict`, under their names there.

    text      texts of --text, or read from --input or standard input
    numbers   index of each text in its file, which a drawn answer depends on; (): 0, 1, ..
    settings  {name: value} of the options of the use (`Use.options`)
    """

    model: str
    text: tuple[str, ...] = ()
    pair: tuple[str, ...] = ()
    input: str | None = None
    output: str | None = None
    top: int = 5
    seed: int = 0
    max_new_tokens: int | None = None
    numbers: tuple[int, ...] = ()
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)


Result = Mapping[str, Any]
"""An object of --json; "text" is its text."""


def _nothing(request: Request) -> None:
    """Refuses nothing."""


def _cells(result: Result) -> Mapping[str, Any]:
    return result


def _text(result: Result) -> Iterator[str]:
    yield result["text"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ranking:
    """How a use ranks the lines of a file by their vectors.

    stored  (model, request) -> vectors [texts, D] of lines
    asked   (model, request) -> vectors [texts, D] of the texts of --text
    prompts (model, request) -> the prompt before the lines, of each model: what `stored` depends on
            beside the request
    scores  (model, asked [q, D], stored [n, D]) -> [q, n], larger is nearer
    field   name of the list in a result; score: name of a score in it
    """

    stored: Callable[[Any, Request], np.ndarray]
    asked: Callable[[Any, Request], np.ndarray]
    scores: Callable[[Any, np.ndarray, np.ndarray], np.ndarray]
    prompts: Callable[[Any, Request], Sequence[str]]
    field: str
    score: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Use:
    """A use of a model on texts.

    name     the value of --task
    words    whether the model is a table of word vectors; False: a network with an encoder
    run      (model, request) -> a result for each text. Raises UserError. None where it ranks
    lines    result -> its lines of text
    options  the names of options that other uses do not have
    check    raises UserError for arguments that do not fit
    paired   whether each text needs a second one, --pair
    ranking  how it compares texts with the lines of --input, or None
    several  the form of several models as one: "scores" (their mean), "vectors" (one after the
             other), or None
    as_json  whether the output is JSON without --json
    arrays   (model, request) -> [texts, D] float32 for an --output of .npy, or None
    columns  columns of an --output of .csv or .tsv
    cells    result -> {column: value}; a list or an object becomes JSON
    probe    a text that every model of the use reads: if it is refused too, the model is
    help     one line for `ptm list --uses`
    """

    name: str
    help: str
    run: Callable[[Any, Request], Sequence[Result]] | None = None
    words: bool = False
    lines: Callable[[Result], Iterator[str]] = _text
    options: tuple[str, ...] = ()
    check: Callable[[Request], None] = _nothing
    paired: bool = False
    ranking: Ranking | None = None
    several: str | None = None
    as_json: bool = False
    arrays: Callable[[Any, Request], np.ndarray] | None = None
    columns: tuple[str, ...] = ("text",)
    cells: Callable[[Result], Mapping[str, Any]] = _cells
    probe: str = "a"
