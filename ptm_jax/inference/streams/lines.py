"""The lines of a file or of standard input, one text each, read one after the other.

A line feed ends a line. `.csv`, `.tsv` and `.jsonl` have columns: one row is one text, and may have
a second one, the pair. Files may be compressed. A line that holds no text has a `fault`, and the
next line follows: memory is bounded by the longest line, of which `LONGEST` bytes are read.
"""

from __future__ import annotations

import collections
import contextlib
import csv
import dataclasses
import hashlib
import json
import sys
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from ptm_jax.core.archives import COMPRESSIONS, DAMAGED, opened
from ptm_jax.core.errors import UserError
from ptm_jax.core.reading import broken, check_encoding

LONGEST = 1 << 24
"""Bytes of a line that are read at most."""
TEXTS = ("text", "sentence", "sentence1", "question", "content", "review")
PAIRS = ("pair", "sentence2", "text2")
QUESTIONS, PASSAGES = ("question", "text"), ("context", "passage", "pair")
IDS = ("id", "guid", "uuid", "index", "idx")
"""Names of a column of ids, in lower case."""
TABLES = (".csv", ".tsv", ".jsonl")


@dataclasses.dataclass(frozen=True)
class Line:
    """A text with its number from 1, its pair or "", and why it is refused, or "".

    `id` is the cell of the table's column of ids; None for a table without one.
    """

    number: int
    text: str
    pair: str = ""
    fault: str = ""
    id: str | None = None

    def texts(self) -> dict[str, str]:
        """Returns {"text", and "pair" where the line has one}."""
        return {"text": self.text} | ({"pair": self.pair} if self.pair else {})


@dataclasses.dataclass(frozen=True)
class Source:
    """A file of texts, or standard input (`path` None).

    text, pair   names of the column of the texts in a table, and of their pairs: the first that the
                 table has. () for no pairs
    id           name of the column of ids in a table; () for none
    offset       byte of the decompressed file where reading begins, the start of a line
    before       number of lines before it
    """

    path: Path | None
    text: tuple[str, ...] = TEXTS
    pair: tuple[str, ...] = ()
    id: tuple[str, ...] = ()
    offset: int = 0
    before: int = 0

    @property
    def paths(self) -> tuple[Path, ...]:
        """Returns the files of the lines; () for standard input."""
        return () if self.path is None else (self.path,)

    @property
    def name(self) -> str:
        return "standard input" if self.path is None else str(self.path)

    @property
    def format(self) -> str:
        """'.csv', '.tsv', '.jsonl', or '' for a file with a text in each line."""
        if self.path is None:
            return ""
        name = self.path.name.lower()
        for ending in COMPRESSIONS:
            name = name.removesuffix(ending)
        return next((ending for ending in TABLES if name.endswith(ending)), "")

    def columns(self) -> list[str]:
        """Returns the columns of the first row of a table. Raises UserError."""
        with opened(self.path) as stream:
            first = next(numbered(self, stream), (1, "", ""))[1]
        if self.format == ".jsonl":
            with contextlib.suppress(ValueError, RecursionError):
                fields = json.loads(first)
                return list(fields) if isinstance(fields, dict) else []
            return []
        separator = "," if self.format == ".csv" else "\t"
        return [name.strip(' "') for name in first.split(separator)]

    def lines(self) -> Iterator[Line]:
        """Yields the lines, in order. Raises UserError for a file that cannot be read, and for a
        table without the columns."""
        read = {".csv": _csv, ".tsv": _tsv, ".jsonl": _jsonl}.get(self.format, _plain)
        try:
            with _stdin() if self.path is None else opened(self.path) as stream:
                yield from map(checked, read(self, stream))
        except DAMAGED as error:
            raise broken(Path(self.name), f"is a damaged archive ({error})") from None
        except OSError as error:
            raise UserError(f"{self.name} cannot be read ({error.strerror or error})") from None

    def digest(self) -> tuple[str, int | None]:
        """Returns (sha256 of the file, its number of lines; None where it is compressed)."""
        state, count, last = hashlib.sha256(), 0, b"\n"
        with self.path.open("rb") as stream:
            while piece := stream.read(1 << 20):
                state.update(piece)
                count, last = count + piece.count(b"\n"), piece[-1:]
        plain = self.path.suffix.lower() not in COMPRESSIONS
        return state.hexdigest(), count + (last != b"\n") if plain else None


def _stdin() -> contextlib.AbstractContextManager[BinaryIO]:
    return contextlib.nullcontext(sys.stdin.buffer)


def numbered(source: Source, stream: BinaryIO) -> Iterator[tuple[int, str, str]]:
    """Yields (number, line without its end, fault). Bytes that are not UTF-8 become surrogates,
    which `checked` refuses."""
    number, head = source.before, b""
    _skip(source, stream)
    while raw := stream.readline(LONGEST):
        number, fault = number + 1, ""
        if len(head) < 100 and not source.offset:
            head += raw
            check_encoding(source.name, head)
        if number == 1 and b"\0" in raw:
            raise UserError(
                f"{source.name} is not UTF-8 text (byte {raw.index(0)} is zero); give a text file"
            )
        end = raw
        while len(end) == LONGEST and not end.endswith(b"\n"):
            end, fault = stream.readline(LONGEST), f"it has more than {LONGEST:,} bytes"
        text = raw.decode("utf-8-sig" if number == 1 else "utf-8", "surrogateescape")
        yield number, text[:100] if fault else text.rstrip("\r\n"), fault


def _skip(source: Source, stream: BinaryIO) -> None:
    """Goes to the offset of a source; an archive is read up to there."""
    if source.path is None or source.path.suffix.lower() not in COMPRESSIONS:
        if source.offset:
            stream.seek(source.offset)
        return
    left = source.offset
    while left and (piece := stream.read(min(left, 1 << 20))):
        left -= len(piece)


def _plain(source: Source, stream: BinaryIO) -> Iterator[Line]:
    for number, text, fault in numbered(source, stream):
        yield Line(number, text.strip(), fault=fault)


def _jsonl(source: Source, stream: BinaryIO) -> Iterator[Line]:
    for number, text, fault in numbered(source, stream):
        if fault or not text.strip():
            yield Line(number, text.strip(), fault=fault)
            continue
        try:
            fields = json.loads(text, object_pairs_hook=_once)
        except (ValueError, RecursionError) as error:
            yield Line(number, text, fault=f"it is not JSON ({error})")
            continue
        if not isinstance(fields, dict):
            yield Line(number, text, fault="it is no JSON object")
            continue
        yield _of_fields(source, number, fields)


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Returns an object of JSON. Raises ValueError for a name that it has twice."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"two fields are named {twice!r}")
    return fields


def _tsv(source: Source, stream: BinaryIO) -> Iterator[Line]:
    if _quotes_tabs(source):
        return _csv(source, stream, "\t")
    rows = (
        (number, text.split("\t") if text else [], text, fault)
        for number, text, fault in numbered(source, stream)
    )
    return _table(source, rows)


def _quotes_tabs(source: Source) -> bool:
    """Returns whether a table with tabs has quotes around cells, as pandas writes it: whether it
    has no wrong quote, read so."""
    csv.field_size_limit(LONGEST)
    with opened(source.path) as stream:
        texts = (f"{text}\n" for _, text, _ in numbered(source, stream))
        try:
            collections.deque(csv.reader(texts, delimiter="\t", strict=True), maxlen=0)
        except csv.Error:
            return False
    return True


def _csv(source: Source, stream: BinaryIO, separator: str = ",") -> Iterator[Line]:
    csv.field_size_limit(LONGEST)
    texts = (f"{text}\n" for _, text, _ in numbered(source, stream))
    reader = csv.reader(texts, delimiter=separator, strict=True)

    def rows():
        start = 1
        try:
            for row in reader:
                yield start, row, separator.join(row), ""
                start = reader.line_num + 1
        except csv.Error as error:
            raise UserError(
                f"{source.name}:{start} is not CSV ({error}); check its quotes"
            ) from None

    return _table(source, rows())


def _table(source: Source, rows: Iterator[tuple[int, list[str], str, str]]) -> Iterator[Line]:
    """The rows below the first, whose cells are the names of the columns."""
    names = [name.strip() for name in next(rows, (0, [], "", ""))[1]]
    _column(source, names, "text", source.text)
    for what, wanted in (("pair", source.pair), ("id", source.id)):
        if wanted:
            _column(source, names, what, wanted)
    for number, row, text, fault in rows:
        if fault or not row:
            yield Line(number, text, fault=fault)
        elif len(row) != len(names):
            yield Line(number, text, fault=f"it has {len(row)} columns, not {len(names)}")
        else:
            yield _of_fields(source, number, dict(zip(names, row, strict=True)))


def _column(source: Source, names: list[str], what: str, wanted: tuple[str, ...]) -> None:
    """Raises UserError for a table without a column of the texts, or of the pairs."""
    if (twice := next((one for one in wanted if names.count(one) > 1), None)) is not None:
        raise UserError(
            f"{source.name}: two columns are named {twice!r}; rename one of them, or remove it"
        )
    if not set(wanted) & set(names):
        listed = ", ".join(filter(None, names)) or "nothing"
        raise UserError(
            f"{source.name} has no column {' or '.join(wanted)}; it has: {listed}. Name the column "
            f"by --{what}-column"
        )


def _of_fields(source: Source, number: int, fields: dict) -> Line:
    """The text of a row, and its pair; a refused row has the one that could be read."""
    values, faults = {}, []
    for what, wanted in (("text", source.text), ("pair", source.pair)):
        name = next((name for name in wanted if name in fields), None)
        if name is None and wanted:
            faults.append(f"it has no field {' or '.join(wanted)}")
        elif name is not None and not isinstance(fields[name], str):
            faults.append(f"its field {name} is no text")
        values[what] = "" if name is None else str(fields[name]).strip()
    if source.id:
        values["id"] = "" if (value := fields.get(source.id[0])) is None else str(value)
    return Line(number, **values, fault=next(iter(faults), ""))


def id_column(names: Sequence[str], asked: str | None, others: Collection[str] = ()) -> str | None:
    """Returns the column of ids of a table: `asked`, or one with a usual name that is none of
    `others`. None without one."""
    if asked is not None:
        return asked
    return next((name for name in names if name.lower() in IDS and name not in others), None)


def checked(line: Line) -> Line:
    """The line, refused where it is empty or has no UTF-8 form."""
    fault = line.fault or ("" if line.text else "it is empty")
    try:
        f"{line.text}{line.pair}".encode()
    except UnicodeEncodeError:
        fault = fault or "it is not UTF-8 text"
        line = dataclasses.replace(line, text=_escaped(line.text), pair=_escaped(line.pair))
    return dataclasses.replace(line, fault=fault) if fault else line


def _escaped(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


def blocks(lines: Iterator[Line], size: int, largest: int = LONGEST) -> Iterator[list[Line]]:
    """Yields `size` lines at a time, fewer where they have more than `largest` characters."""
    block, characters = [], 0
    for line in lines:
        block.append(line)
        characters += len(line.text) + len(line.pair)
        if len(block) == size or characters > largest:
            yield block
            block, characters = [], 0
    if block:
        yield block
