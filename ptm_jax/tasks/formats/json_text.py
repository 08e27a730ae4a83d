"""JSON of task files: errors with their place, texts and labels, lines of entries, unique ids."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from ptm_jax.core.errors import UserError
from ptm_jax.core.reading import check_unicode, shown

_WHOLE = re.compile(r"([+-]?[0-9]{1,18})(?:\.0+)?")


def json_of(path: Path, text: str, line: int = 0) -> Any:
    """Parsed JSON. Raises UserError with file and line."""
    try:
        value = json.loads(text, object_pairs_hook=_object)
    except (ValueError, RecursionError) as error:
        at = line or (error.lineno if isinstance(error, json.JSONDecodeError) else 1)
        raise UserError(
            f"{path}:{at} is not JSON ({str(error).splitlines()[0]}); correct the line"
        ) from None
    if "\\ud" in text.lower():
        check_unicode(
            f"{path}:{line}" if line else str(path), json.dumps(value, ensure_ascii=False)
        )
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object whose fields have different names. Raises ValueError."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError(f"two fields are named {repeated(name for name, _ in pairs)!r}")
    return fields


def repeated(names: Iterable[str]) -> str | None:
    """Returns the first name that occurs twice, or None."""
    known: set[str] = set()
    return next((name for name in names if name in known or known.add(name)), None)


def one_text(place: str, name: str, value: Any) -> str:
    """A value that stands for a text. Raises UserError for a list, an object or a null."""
    if value is None or isinstance(value, list | tuple | dict | np.ndarray):
        kind = "null" if value is None else "an object" if isinstance(value, dict) else "a list"
        raise UserError(
            f"{place}: the field {name} is {kind}; expected a text. Join its parts, or write an "
            "entry for each"
        )
    return str(value)


def texts_of(place: str, name: str, values: Any) -> tuple[str, ...]:
    """A list of texts. Raises UserError for a single text, and for parts that are no texts."""
    if not isinstance(values, list | tuple | np.ndarray):
        raise UserError(f"{place}: the field {name} is {shown(values)}; expected a list of texts")
    return tuple(one_text(f"{place}, entry {n}", name, part) for n, part in enumerate(values, 1))


def whole(label: str) -> str | None:
    """The spelling of a whole number that pandas writes as `1.0` beside a missing value.

    None for another text.
    """
    match = _WHOLE.fullmatch(label)
    return None if match is None else match[1]


class Unique:
    """The ids of a file so far: each belongs to one question, as predictions are written by id."""

    def __init__(self):
        self._known: set[str] = set()

    def __call__(self, place: str, index: str) -> str:
        """Returns `place`. Raises UserError for an id that was there before."""
        if index in self._known:
            raise UserError(
                f"{place}: the id {index!r} belongs to another question of the file too; give "
                "each question its own"
            )
        self._known.add(index)
        return place


class Places:
    """The line of each entry of a JSON text, found by its id.
    Entries are asked for in the order of the text."""

    def __init__(self, path: str | Path, text: str):
        self._path, self._text, self._at, self._line = path, text, 0, 1

    def of(self, index: str, what: str = "question") -> str:
        place = self._text.find(json.dumps(index), self._at)
        place = (
            self._text.find(json.dumps(index, ensure_ascii=False), self._at) if place < 0 else place
        )
        if place >= 0:
            self._line += self._text.count("\n", self._at, place)
            self._at = place
        return f"{self._path}:{self._line}: {what} {index}"
