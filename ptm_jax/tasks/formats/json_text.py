"""JSON of task files: errors with their place, the line of an entry, unique ids."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ptm_jax.core.errors import UserError


def json_of(path: Path, text: str, line: int = 0) -> Any:
    """Parsed JSON. Raises UserError with file and line."""
    try:
        return json.loads(text, object_pairs_hook=_object)
    except (ValueError, RecursionError) as error:
        at = line or (error.lineno if isinstance(error, json.JSONDecodeError) else 1)
        raise UserError(
            f"{path}:{at} is not JSON ({str(error).splitlines()[0]}); correct the line"
        ) from None


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
