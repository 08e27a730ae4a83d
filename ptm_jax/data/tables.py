"""Rows of labelled files with the place of each: tables, JSON, and the plain formats that data sets were published in.

What is read is told by the file itself (JSON objects, parquet, .csv, or tabs) unless a format is named:

    labelled   a class, a blank, the text (SST's stsa files, TextFooler's IMDb)
    trec       COARSE:fine and the question (Li and Roth 2002)
    parallel   s1.SPLIT, s2.SPLIT and labels.SPLIT side by side (SNLI as InferSent has it)
    folders    a directory with a file of lines for every class (rt-polarity.pos), or a directory of files (IMDb's pos/);
               a file is read as `labelled`
    triples    three lines: a text with $T$, what stands there, its polarity (SemEval 2014 task 4, .seg)
    semeval    class|place of the first noun|of the second|text (SemEval 2010 task 8)

SuperGLUE's nested tasks are unrolled in `data.unrolled`.
"""

from __future__ import annotations

import csv
import hashlib
import io
import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ptm_jax.core.errors import UserError
from ptm_jax.data import readers, sources

Fields = dict[str, Any]


class Source(NamedTuple):
    """Where examples are: a file, directory or `tfds:name/config#split`; `held`: True for the tenth that is held out of it,
    False for the rest, None for all."""

    path: str
    held: bool | None = None

    @property
    def name(self) -> str:
        """For a progress bar."""
        return self.path.rsplit("/", 1)[-1]


def rows(
    path: str | Path, format: str = "", columns: Sequence[str] = (), needed: Sequence[Sequence[str]] = (),
    encoding: str = "utf-8-sig",
) -> Iterator[tuple[str, Fields]]:  # fmt: skip
    """(place "FILE:LINE", {column: value}) of a source.

    needed   groups of names: a table must have a column of each group
    columns  those of a table whose first line has none of these names
    Raises UserError with file and line.
    """
    if str(path).startswith("tfds:"):
        yield from _tfds(str(path))
        return
    path = Path(path)
    if format in _FORMATS:
        yield from _FORMATS[format](path, encoding)
        return
    if path.name.startswith("s1.") and path.with_name("s2" + path.suffix).is_file():
        yield from _parallel(path, encoding)
        return
    kind = readers.file_format(path) or path.suffix
    if kind == ".parquet":
        yield from _parquet(path)
        return
    text = text_of(path, encoding)
    if text.lstrip()[:1] in ("{", "["):
        yield from _json(path, text)
        return
    yield from _table(path, text, kind == ".csv", columns, needed)


def text_of(path: Path, encoding: str = "utf-8-sig") -> str:
    """The text of a file, which may be compressed. Raises UserError."""
    try:
        with readers._open(path) as file:
            return file.read().decode(encoding)
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text (byte {error.start}); convert it, as iconv -t utf-8 does") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}; check the path") from None


def lines_of(path: Path, encoding: str = "utf-8-sig") -> Iterator[tuple[int, str]]:
    """(number, line) of a file; only a line feed ends a line, and a last one that is empty is none."""
    lines = text_of(path, encoding).split("\n")
    yield from ((number, line.rstrip("\r")) for number, line in enumerate(lines, 1) if line or number < len(lines))


def digest(path: str) -> str:
    """sha256 of what a source holds."""
    if path.startswith("tfds:"):
        return sources._tfds_fingerprint(path.partition("#")[0])
    whole = hashlib.sha256()
    for file in sorted(Path(path).rglob("*")) if Path(path).is_dir() else [Path(path)]:
        if file.is_file():
            whole.update(file.read_bytes())
    return whole.hexdigest()


def _table(path: Path, text: str, commas: bool, columns: Sequence[str], needed: Sequence[Sequence[str]]) -> Iterator:
    """Tabs part the fields of a table and quotes are ordinary characters there; a .csv is one as spreadsheets write it."""
    found = _csv(path, text) if commas else _tsv(text)
    line, first = next(found, (0, []))
    named = not columns or any(name in first for group in needed for name in group)
    names = first if named else columns
    for group in needed:
        if not set(group) & set(names):
            there = ", ".join(names) or "nothing"
            raise UserError(f"{path} has no column {' or '.join(group)}; its first line has: {there}")
    for number, row in found if named else itertools.chain([(line, first)], found):
        if len(row) < len(names) or (named and len(row) > len(names)):
            what = "the first line has" if named else f"expected {', '.join(names)}, which are"
            raise UserError(f"{path}:{number}: {len(row)} columns; {what} {len(names)}")
        yield f"{path}:{number}", dict(zip(names, row, strict=False))


def _tsv(text: str) -> Iterator[tuple[int, list[str]]]:
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip("\r"):
            yield number, line.rstrip("\r").split("\t")


def _csv(path: Path, text: str) -> Iterator[tuple[int, list[str]]]:
    csv.field_size_limit(1 << 30)
    reader = csv.reader(io.StringIO(text, newline=""))
    try:
        yield from ((reader.line_num, row) for row in reader if row)
    except csv.Error as error:
        raise UserError(f"{path}:{reader.line_num} is not CSV ({error}); check its quotes") from None


def _json(path: Path, text: str) -> Iterator[tuple[str, Fields]]:
    """An object on every line, or a list of objects."""
    if text.lstrip().startswith("["):
        found = ((f"{path}: entry {number}", item) for number, item in enumerate(json_of(path, text), 1))
    else:
        lines = ((n, line) for n, line in enumerate(text.split("\n"), 1) if line.strip())
        found = ((f"{path}:{n}", json_of(path, line, n)) for n, line in lines)
    for place, item in found:
        if not isinstance(item, dict):
            raise UserError(f"{place} is no JSON object; expected fields with names")
        yield place, item


def json_of(path: Path, text: str, line: int = 0) -> Any:
    """Parsed JSON. Raises UserError with file and line."""
    try:
        return json.loads(text)
    except ValueError as error:
        at = line or getattr(error, "lineno", 1)
        raise UserError(f"{path}:{at} is not JSON ({str(error).splitlines()[0]}); correct the line") from None


def _parquet(path: Path) -> Iterator[tuple[str, Fields]]:
    import pyarrow as arrow
    import pyarrow.parquet as parquet

    try:
        found = parquet.read_table(path).to_pylist()
    except (arrow.ArrowException, OSError) as error:
        raise UserError(f"{path} is not a readable parquet file ({str(error).splitlines()[0]})") from None
    yield from ((f"{path}: row {number}", row) for number, row in enumerate(found, 1))


def _labelled(path: Path, encoding: str) -> Iterator[tuple[str, Fields]]:
    for number, line in lines_of(path, encoding):
        label, blank, text = line.partition(" ")
        if line and not blank:
            raise UserError(f"{path}:{number}: expected a class, a blank and the text; given {line[:40]!r}")
        if line:
            yield f"{path}:{number}", {"label": label, "text": text}


def _trec(path: Path, encoding: str) -> Iterator[tuple[str, Fields]]:
    for place, fields in _labelled(path, encoding):
        coarse, colon, _ = fields["label"].partition(":")
        if not colon:
            raise UserError(f"{place}: expected COARSE:fine before the question; given {fields['label']!r}")
        yield place, {**fields, "coarse": coarse}


def _parallel(path: Path, encoding: str) -> Iterator[tuple[str, Fields]]:
    beside = {field: path.with_name(name + path.suffix) for field, name in (("sentence2", "s2"), ("label", "labels"))}
    first = [line for _, line in lines_of(path, encoding)]
    others = {}
    for field, file in beside.items():
        if not file.is_file() and field == "label":
            continue
        others[field] = [line for _, line in lines_of(file, encoding)]
        if len(others[field]) != len(first):
            raise UserError(f"{file} has {len(others[field])} lines and {path} has {len(first)}; both must have as many")
    for number, text in enumerate(first):
        fields = {name: lines[number] for name, lines in others.items()}
        yield f"{path}:{number + 1}", {"sentence1": text, **fields}


def _folders(path: Path, encoding: str) -> Iterator[tuple[str, Fields]]:
    if not path.is_dir():
        yield from _labelled(path, encoding)
        return
    entries = sorted(path.iterdir())
    if any(entry.is_dir() for entry in entries):  # beside which IMDb has lists of addresses and counts of words
        entries = [entry for entry in entries if entry.is_dir()]
    for entry in entries:
        if entry.is_dir():
            for file in sorted(entry.glob("*.txt")):
                yield f"{file}:1", {"label": entry.name, "text": " ".join(text_of(file, encoding).split())}
        elif entry.suffix:
            for number, line in lines_of(entry, encoding):
                if line.strip():
                    yield f"{entry}:{number}", {"label": entry.suffix[1:], "text": line}


def _triples(path: Path, encoding: str) -> Iterator[tuple[str, Fields]]:
    lines = [line for _, line in lines_of(path, encoding)]
    if len(lines) % 3:
        raise UserError(f"{path} has {len(lines)} lines; expected three for every example: text, aspect, polarity")
    for number in range(0, len(lines), 3):
        text, aspect, label = (line.strip() for line in lines[number : number + 3])
        yield f"{path}:{number + 1}", {"text": text.replace("$T$", aspect), "aspect": aspect, "label": label}


def _semeval(path: Path, encoding: str) -> Iterator[tuple[str, Fields]]:
    """The nouns between [E1] [/E1] and [E2] [/E2], as Baldini Soares et al. (2019) mark them."""
    for number, line in lines_of(path, encoding):
        label, *places, text = line.split("|", 3) if line.count("|") >= 3 else [""] * 4
        words = text.split()
        if not all(place.isdigit() for place in places):
            raise UserError(f"{path}:{number}: expected class|place|place|text; given {line[:40]!r}")
        outside = [place for place in places if int(place) >= len(words)]
        for name, place in zip(("E1", "E2"), places, strict=True):
            if int(place) < len(words):
                words[int(place)] = f"[{name}] {words[int(place)]} [/{name}]"
        remark = "places of nouns outside the text, left unmarked" if outside else ""
        yield f"{path}:{number}", {"label": label, "text": " ".join(words), "": remark}


def _tfds(source: str) -> Iterator[tuple[str, Fields]]:
    name, _, split = source.partition("#")
    builder = sources._builder(name)
    if split not in builder.info.splits:
        raise UserError(f"{name} has no split {split!r}; it has {', '.join(builder.info.splits)}")
    features = builder.info.features
    with sources._tfds_errors(name):
        found = builder.as_data_source(split=split)
    for number, row in enumerate(found, 1):
        fields = {key: _plain(value, features.get(key)) for key, value in row.items()}
        yield f"{source}:{number}", fields


def _plain(value: Any, feature: Any) -> Any:
    """A tfds value as Python's; a class by its name."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, dict):
        return {key: _plain(part, None) for key, part in value.items()}
    value = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(value, list):
        return [_plain(part, getattr(feature, "feature", None)) for part in value]
    if isinstance(value, int) and getattr(feature, "names", None):
        return feature.names[value] if value >= 0 else "-"
    return value


_FORMATS: dict[str, Callable[[Path, str], Iterator[tuple[str, Fields]]]] = {
    "labelled": _labelled, "trec": _trec, "parallel": _parallel, "folders": _folders, "triples": _triples,
    "semeval": _semeval,
}  # fmt: skip
FORMATS = ("", *_FORMATS)
"""What `rows` takes as a format."""
