"""The record of a stream beside its output: OUTPUT.progress.

The first line has the command and the hashes of model and input. Each block
adds a line before its rows are written: rows and bytes after it, its refused lines, a hash of the
texts so far. The rows are written to OUTPUT.partial, which gets the name OUTPUT after the last one.
A cut output is thus continued after its last complete row, and never looks complete.
"""

from __future__ import annotations

import dataclasses
import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from ptm_jax.core.errors import UserError
from ptm_jax.inference.streams.lines import Line
from ptm_jax.inference.streams.row_formats import Format

NAMES = "names"
"""Field of a record with {field: path}, which messages name. It is not compared."""
SHOWN = 10
"""Numbers of refused lines that are named at the end."""


class Busy(UserError):
    """Another process writes the output."""


class Texts:
    """A running sha256 of texts."""

    def __init__(self):
        self.state = hashlib.sha256()

    def add(self, lines: Sequence[Line]) -> str:
        """Adds lines. Returns the hash of all so far."""
        for line in lines:
            part = json.dumps([line.text, line.pair]).encode()
            self.state.update(part)
        return self.state.hexdigest()


Refused = list[tuple[int, int, str]]
"""(number of the row, number of its line, reason) of each refused line. Records of older versions
have no reason: it is ""."""


def named(refused: Refused) -> str:
    """'3 (lines 4, 9, 12)'."""
    lines = [str(line) for _, line, _ in refused[:SHOWN]]
    more = ", ..." if len(refused) > SHOWN else ""
    return f"{len(refused):,} (line{'s' * (len(refused) > 1)} {', '.join(lines)}{more})"


def reasons(refused: Refused) -> list[str]:
    """Returns '  line 4: it is empty' for each line that `named` names."""
    return [f"  line {line}: {reason}" for _, line, reason in refused[:SHOWN] if reason]


@dataclasses.dataclass(frozen=True)
class Begun:
    """The part of an output that is complete.

    It has the rows, bytes and refused lines; `texts`: (rows, hash of their texts) at the last
    block; and whether nothing is left to do.
    """

    rows: int = 0
    size: int = 0
    refused: Refused = dataclasses.field(default_factory=list)
    texts: tuple[int, str] = (0, "")
    complete: bool = False


def path_of(output: Path) -> Path:
    """Returns the path of the record of an output."""
    return output.with_name(f"{output.name}.progress")


def partial_of(output: Path) -> Path:
    """Returns the path of the rows of an output that is not complete."""
    target = output.resolve()
    return target.with_name(f"{target.name}.partial")


def published(output: Path) -> None:
    """Gives the rows of a complete output its name."""
    if (partial := partial_of(output)).exists():
        partial.replace(output.resolve())


def locked(output: Path) -> BinaryIO:
    """Opens the record of an output. Raises Busy where another process writes it."""
    path = path_of(output)
    try:
        file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644), "r+b")
    except OSError as error:
        raise UserError(f"{path} cannot be written ({error.strerror})") from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise Busy(f"another process writes {output}; wait for its end") from None
    return file


def check(output: Path, overwrite: bool, option: str) -> None:
    """Raises UserError for an output without a record, which other commands have written."""
    if overwrite or path_of(output).exists():
        return
    for path in (output, partial_of(output)):
        if path.exists() and path.stat().st_size:
            raise UserError(f"{path} exists, without a record of its command; {_advice(option)}")


def begun(
    file: BinaryIO, output: Path, record: Mapping[str, Any], form: Format, option: str
) -> Begun:
    """Returns the complete part of an output; nothing where it begins anew.

    Older versions wrote the rows to the output itself. Raises UserError for an output of another
    command, model or input.
    """
    entries, rows = list(_entries(file)), partial_of(output)
    rows = rows if rows.exists() else output
    if not rows.exists() or rows.stat().st_size <= len(form.begin()) or not entries:
        return Begun()
    names = [name for name in record if name != NAMES and entries[0].get(name) != record[name]]
    if names:
        raise UserError(f"{_difference(output, entries[0], record, names)}; {_advice(option)}")
    return _restored(entries[1:], rows, form)


def _difference(
    output: Path, old: Mapping[str, Any], record: Mapping[str, Any], names: Sequence[str]
) -> str:
    """Returns which file or model has changed, or with which others an output was begun."""
    before, now = old.get(NAMES, {}), record.get(NAMES, {})
    changed = [now[name] for name in names if now.get(name) and before.get(name) == now[name]]
    if len(changed) == len(names):
        have = "has" if len(changed) == 1 else "have"
        return f"{' and '.join(changed)} {have} changed since {output} was begun"
    labels = {**before, "task": old.get("task")}
    spelled = [f"{name} ({labels[name]})" if labels.get(name) else name for name in names]
    return f"{output} was begun with another {' and another '.join(spelled)}"


def _advice(option: str) -> str:
    return f"give another {option}, or --overwrite to begin anew"


def _restored(points: Sequence[Mapping[str, Any]], output: Path, form: Format) -> Begun:
    actual = output.stat().st_size if output.exists() else 0
    if points and points[-1].get("complete") and points[-1]["bytes"] == actual:
        return Begun(
            points[-1]["rows"], actual, _refused(points, points[-1]["rows"]), complete=True
        )
    points = [point for point in points if not point.get("complete")]
    complete = form.complete(output) if output.exists() else (0, 0)
    if complete is None:
        complete = max(
            ((p["rows"], p["bytes"]) for p in points if p["bytes"] <= actual), default=(0, 0)
        )
    rows, size = complete
    if size > actual or not any(rows <= point["rows"] for point in points):
        return Begun()
    known = [(p["rows"], p["texts"]) for p in points if p["rows"] <= rows]
    return Begun(rows, size, _refused(points, rows), max(known, default=(0, "")))


def _refused(points: Sequence[Mapping[str, Any]], rows: int) -> Refused:
    """The refused lines among the first rows."""
    entries = [(*entry, "")[:3] for point in points for entry in point.get("refused", ())]
    return [entry for entry in entries if entry[0] <= rows]


def _entries(file: BinaryIO) -> Iterator[dict[str, Any]]:
    """The entries of a record; a torn last one is left out."""
    file.seek(0)
    for line in file:
        try:
            entry = json.loads(line)
        except ValueError:
            return
        if not line.endswith(b"\n") or not isinstance(entry, dict):
            return
        yield entry


def write(file: BinaryIO, fields: Mapping[str, Any]) -> None:
    """Appends an entry, on the disk when this returns."""
    file.write(json.dumps(fields).encode() + b"\n")
    flush(file)


def flush(file: BinaryIO) -> None:
    """Writes what the process holds to the disk."""
    file.flush()
    os.fsync(file.fileno())


def restart(file: BinaryIO, record: Mapping[str, Any], begun: Begun, texts: str) -> None:
    """Writes the record of an output, and one entry for its complete part."""
    file.seek(0)
    file.truncate()
    write(file, record)
    if begun.rows:
        write(file, entry(begun.rows, begun.size, begun.refused, texts))


def entry(rows: int, size: int, refused: Refused, texts: str, **more: object) -> dict[str, Any]:
    """Returns the entry of a record after so many rows."""
    return {"rows": rows, "bytes": size, "refused": refused, "texts": texts, **more}
