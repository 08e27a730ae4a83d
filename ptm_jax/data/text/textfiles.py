"""Documents of files: txt, jsonl, csv, tsv, parquet, Wikipedia dumps, WET crawls, tars of texts.
Files may be compressed.

Text is UTF-8, with or without a byte order mark. Every error names the file and the place in it. A
file may be a few kilobytes that decompress to gigabytes, or one endless line: no more than
`document_bytes` are read for one document.
"""

from __future__ import annotations

import collections
import csv
import io
import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ptm_jax.core.archives import COMPRESSIONS, DAMAGED, opened
from ptm_jax.core.errors import UserError
from ptm_jax.core.reading import check_encoding, check_unicode, not_utf8
from ptm_jax.data.languages import codes
from ptm_jax.data.text import crawl, dataset_folders, parquet, wiki
from ptm_jax.data.text.bounded import DOCUMENT_BYTES, Bounded
from ptm_jax.data.text.documents import Document, document

FORMATS = (".txt", ".jsonl", ".csv", ".tsv", ".parquet", ".arrow", ".xml", ".wet", ".tar")
TEXT_FIELDS = (
    "text",
    "sentence",
    "content",
    "document",
    "article",
    "body",
    "passage",
    "review",
    "abstract",
)

_DUMP = re.compile(r"(wik|pages).*\.xml(-p\d+p\d+)?$")  # any other XML in a folder is not text
_HEADING = re.compile(r"^ ?= [^=].* = *$")


def file_format(path: Path) -> str | None:
    """Returns '.txt', '.jsonl', ... without a compression suffix; None for an unknown format.

    '.xml' is a MediaWiki dump with its usual name, '.wet' Common Crawl's text, '.tar' (also
    OpenWebText's `_data.xz`) an archive of texts.
    """
    name = path.name.lower()
    if name.endswith("_data.xz"):
        return ".tar"
    for suffix in COMPRESSIONS:
        name = name.removesuffix(suffix)
    if _DUMP.search(name):
        return ".xml"
    return next((f for f in FORMATS if name.endswith(f) and f != ".xml"), None)


def named_format(path: Path) -> str | None:
    """Returns the format of a file that the user named; text for a language as suffix, as .de."""
    plain = path.with_suffix("") if path.suffix.lower() in COMPRESSIONS else path
    text = ".txt" if plain.suffix.removeprefix(".") in codes.CODES else None
    return file_format(path) or text


def read(path: Path, document_bytes: int = DOCUMENT_BYTES) -> Iterator[Document]:
    """Yields the documents of one file.

    Raises UserError for a file that is damaged, empty, not UTF-8 or no regular file, and where more
    than `document_bytes` (after decompression, in steps of 8 KiB) follow one another without the
    end of a document.
    """
    kinds = {".txt": _text, ".jsonl": _jsonl, ".csv": _csv, ".tsv": _tsv, ".parquet": _parquet}
    kinds |= {".arrow": _arrow, ".xml": wiki.documents, ".wet": crawl.wet, ".tar": crawl.texts}
    has_text = False
    try:
        with Bounded(opened(path), path, document_bytes) as stream:
            for item in kinds[named_format(path)](stream, path):
                has_text = True
                yield item
                stream.mark()
    except DAMAGED as error:
        raise UserError(
            f"{path} is a damaged archive ({error}); fetch or compress it again"
        ) from None
    except OSError as error:
        raise UserError(
            f"{path} cannot be read: {error.strerror or error}; check the file"
        ) from None
    if not has_text:
        raise UserError(f"{path} holds no text; expected at least one document")


def _lines(stream: Bounded, path: Path) -> Iterator[str]:
    """Yields decoded lines without their ends; only a line feed ends a line."""
    offset, head = 0, b""
    for raw in stream:
        if len(head) < 100:
            head += raw
            check_encoding(path, head)
        try:
            line = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise not_utf8(path, error, offset) from None
        if offset == 0:
            line = line.removeprefix("\ufeff")
        offset += len(raw)
        yield line.rstrip("\r\n")


def _text(stream: Bounded, path: Path) -> Iterator[Document]:
    """Documents are separated by blank lines, or by ` = Title = ` in a file that begins with such a
    WikiText heading."""
    lines, wiki = [], None
    for line in _lines(stream, path):
        blank = not line.strip()
        if wiki is None and not blank:
            wiki = bool(_HEADING.match(line))
        if (_HEADING.match(line) if wiki else blank) and lines:
            if item := document(lines):
                yield item
            lines = []
        if not blank:
            lines.append(line)
    if item := document(lines):
        yield item


def _jsonl(stream: Bounded, path: Path) -> Iterator[Document]:
    """Yields every line's text: the field with a known name, else the longest of the first
    hundred lines."""
    values, head, size = _objects(stream, path), [], 0
    for number, value, length in values:
        stream.mark()
        head, size = [*head, (number, value)], size + length
        if len(head) == 100 or size > 1 << 24:
            break
    field = _text_field([value for _, value in head])
    later = ((number, value) for number, value, _ in values)
    for number, value in itertools.chain(head, later):
        fields = [value.get(field), *value.values()] if isinstance(value, dict) else [value]
        text = next((field for field in fields if isinstance(field, str)), None)
        if text is None:
            raise UserError(
                f"{path}:{number} has no string field; expected an object with a field 'text'"
            )
        if not text.isascii():
            check_unicode(f"{path}:{number}", text)
        if item := document(text.splitlines()):
            yield item


def _objects(stream: Bounded, path: Path) -> Iterator[tuple[int, Any, int]]:
    """Yields (number, value, characters) of each line of JSON."""
    for number, line in enumerate(_lines(stream, path), 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UserError(
                f"{path}:{number} is not JSON ({error}); expected one object on each line"
            ) from None
        if isinstance(value, dict) and line.count('"text"') > 1:
            names = [name for name, _ in json.loads(line, object_pairs_hook=tuple)]
            _check_once(f"{path}:{number}", "fields", "text", names)
        yield number, value, len(line)


def _text_field(values: Sequence[Any]) -> str:
    """Returns the field of objects that holds their text."""
    sizes: collections.Counter[str] = collections.Counter()
    for value in values:
        texts = value.items() if isinstance(value, dict) else ()
        sizes.update({name: len(text) for name, text in texts if isinstance(text, str)})
    known = [name for name in TEXT_FIELDS if name in sizes]
    return known[0] if known else max(sizes, key=sizes.__getitem__, default=TEXT_FIELDS[0])


def csv_rows(
    path: Path, lines: Iterable[str], separator: str = ","
) -> Iterator[tuple[int, list[str]]]:
    """Yields (number of its first line, fields) of each row of a CSV.

    Raises UserError for a quote in a wrong place.
    """
    csv.field_size_limit(1 << 30)
    reader, start = csv.reader(lines, delimiter=separator, strict=True), 1
    try:
        for row in reader:
            if row:
                yield start, row
            start = reader.line_num + 1
    except csv.Error as error:
        reason = "a quote is never closed" if "end of data" in str(error) else error
        raise UserError(f"{path}:{start} is not CSV ({reason}); check its quotes") from None


def _csv(stream: Bounded, path: Path) -> Iterator[Document]:
    rows = csv_rows(path, (line + "\n" for line in _lines(stream, path)))
    return _rows(stream, path, rows, "quotes around a field with a comma")


def _tsv(stream: Bounded, path: Path) -> Iterator[Document]:
    rows = (
        (number, line.split("\t"))
        for number, line in enumerate(_lines(stream, path), 1)
        if line.strip()
    )
    return _rows(stream, path, rows, "blanks for tabs in a field")


def _rows(
    stream: Bounded, path: Path, rows: Iterator[tuple[int, list[str]]], advice: str
) -> Iterator[Document]:
    """Yields every row's text: the column with a known name, else the longest.
    A first row of bare words is a header."""
    head, size = [], 0
    for line, row in rows:
        stream.mark()
        head, size = [*head, (line, row)], size + sum(map(len, row))
        if len(head) == 100 or size > 1 << 24:
            break
    if not head:
        return
    names = [cell.strip().lower() for cell in head[0][1]]
    known = [names.index(name) for name in TEXT_FIELDS if name in names]
    sizes = [sum(len(row[i]) for _, row in head if i < len(row)) for i in range(len(names))]
    column = known[0] if known else sizes.index(max(sizes))
    bare = len(head) > 1 and all(re.fullmatch(r"[A-Za-z_#][\w#.-]{0,30}|", name) for name in names)
    start = 1 if known or (bare and len(names) > 1) else 0
    _check_once(f"{path}:{head[0][0]}", "columns", names[column], names if start else [])
    for line, row in itertools.chain(head[start:], rows):
        if len(row) != len(names):
            raise UserError(
                f"{path}:{line}: {len(row)} columns, the first line has {len(names)}; write "
                f"{advice}"
            )
        if item := document(row[column].splitlines()):
            yield item


def _check_once(place: str, what: str, name: str, names: list[str]) -> None:
    """Raises UserError if the text's name stands for two columns or fields."""
    if names.count(name) > 1:
        raise UserError(
            f"{place}: {names.count(name)} {what} are named {name!r}; rename the others, so that "
            "it is clear which is the text"
        )


def _parquet(stream: Bounded, path: Path) -> Iterator[Document]:
    plain = path.suffix.lower() not in COMPRESSIONS
    with parquet.reading(path):
        source = None if plain else io.BytesIO(stream.read())
        yield from _columns(lambda: parquet.opened(path, stream.limit, source), stream, path)


def _arrow(stream: Bounded, path: Path) -> Iterator[Document]:
    with parquet.reading(path, "Arrow"):
        yield from _columns(lambda: dataset_folders.ArrowFile(path), stream, path)


def _columns(opened: Callable[[], Any], stream: Bounded, path: Path) -> Iterator[Document]:
    """Yields the texts of the column with a known name, else of the longest."""
    file = opened()
    texts = parquet.texts(file)
    if not texts:
        raise UserError(
            f"{path} has no string column; its columns are {', '.join(file.schema_arrow.names)}"
        )
    column = next((name for name in TEXT_FIELDS if name in texts), None)
    if column is None:
        first = list(itertools.islice(parquet.rows(file, path, stream.limit, texts), 100))
        column = max(texts, key=lambda name: sum(len(row[name] or "") for row in first))
    _check_once(str(path), "columns", column, file.schema_arrow.names)
    for row in parquet.rows(opened(), path, stream.limit, [column]):
        if row[column] and (item := document(row[column].splitlines())):
            yield item
