"""The survey's 270 rows (`rows.json`) and the words that their values earned in test runs
(`status.json`)."""

from __future__ import annotations

import dataclasses
import functools
import json
from importlib import resources
from typing import Any

WORDS = {
    "built": "initialises and takes a training step at its published size (shapes only); a part or "
    "a wrapper obeys the laws of its slot, or equals its definition; a task reads an example of "
    "its published format",
    "trains": "its loss on real text falls below a baseline that the test computes",
    "matches": "equals an independent implementation in outputs, loss and gradients",
    "sized": "has the published number of parameters, or of examples",
    "reproduces": "reaches a published or peer-measured quality or behaviour within the tolerance "
    "stated beside it",
}
"""{status word: its meaning}, weakest first."""

EXPECTED = {
    "system": ("built", "trains", "matches", "sized", "reproduces"),
    "method": ("built", "matches", "reproduces"),
    "task": ("built", "matches", "sized", "reproduces"),
    "corpus": ("built", "matches", "sized"),
}
"""{kind of row: the words that it can lack}. A row may earn the others too."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """A row of the survey's catalogue.

    table, group, section   the block of the catalogue, its title, and its sections in the survey
    kind                    "system", "task", "corpus" or "method"
    parts                   classes of the package or commands that implement it, such as "ptm
                            align" (systems, tasks and adaptations name their rows)
    """

    number: int
    name: str
    kind: str
    table: str
    group: str
    section: str
    parts: tuple[str, ...] = ()


@functools.cache
def rows() -> tuple[Row, ...]:
    """Returns all rows in the order of their numbers."""
    document = _read("rows.json")
    blocks = {
        table: dict(zip(("group", "section"), texts, strict=True))
        for table, texts in document["tables"].items()
    }
    return tuple(
        Row(number=number, name=name, kind=kind, table=table, parts=tuple(*parts), **blocks[table])
        for number, table, kind, name, *parts in document["rows"]
    )


@functools.cache
def status() -> dict[str, dict[str, list[str]]]:
    """Returns {name: {status word: [date, commit]}} of the test runs.
    A name is a value of a row, or the row's own name. `make status` writes the file."""
    return _read("status.json")


def _read(name: str) -> Any:
    return json.loads((resources.files(__package__) / name).read_text(encoding="utf-8"))
