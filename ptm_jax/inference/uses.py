"""The record of a use of a model: a task of `ptm predict`.

To add one: a `Use` in the file of its subject, and that file in `inference.predicting.kinds`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """The arguments of `ptm predict`, under their names there.

    text      texts of --text, or read from --input or standard input
    lines     the texts of --input
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
    lines: tuple[str, ...] = ()
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)


Result = Mapping[str, Any]
"""An object of --json; "text" is its text."""


def _nothing(request: Request) -> None:
    """Refuses nothing."""


def _text(result: Result) -> Iterator[str]:
    yield result["text"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Use:
    """A use of a model on texts.

    name     the value of --task
    words    whether the model is a table of word vectors; False: a network with an encoder
    run      (model, request) -> a result for each text. Raises UserError
    lines    result -> its lines of text
    options  the names of options that other uses do not have
    check    raises UserError for arguments that do not fit
    ranks    whether it compares texts with the lines of --input
    several  the form of several models as one: "scores" (their mean), "vectors" (one after the
             other), or None
    as_json  whether the output is JSON without --json
    write    {ending of --output: writes the results to that path}, besides text and JSON
    help     one line for `ptm list --uses`
    """

    name: str
    run: Callable[[Any, Request], Sequence[Result]]
    help: str
    words: bool = False
    lines: Callable[[Result], Iterator[str]] = _text
    options: tuple[str, ...] = ()
    check: Callable[[Request], None] = _nothing
    ranks: bool = False
    several: str | None = None
    as_json: bool = False
    write: Mapping[str, Callable[[Sequence[Result]], bytes]] = dataclasses.field(
        default_factory=dict
    )
