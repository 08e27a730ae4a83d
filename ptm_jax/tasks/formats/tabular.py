"""Reads labelled files: tables, JSON, and plain formats of published data, with row places.

The file itself decides how it is read (JSON objects, parquet, .csv, or tabs) unless a format is
named:

    labelled   a class, a blank, the text (SST's stsa files, TextFooler's IMDb)
    trec       COARSE:fine and the question (Li and Roth 2002)
    parallel   s1.SPLIT, s2.SPLIT and labels.SPLIT side by side (SNLI as InferSent has it)
    folders    a directory with a file of lines per class (rt-polarity.pos), or a directory per
               class (IMDb's pos/); a file is read as `labelled`
    triples    three lines: a text with $T$, the words for $T$, the polarity (SemEval 2014 task 4,
               .seg)
    semeval    class|place of the first noun|of the second|text (SemEval 2010 task 8)

A format of one's own is a function of a path and an encoding to rows, added to `FORMATS` with
`@format_of("name")`. SuperGLUE's nested formats are in `tasks.formats.unrolled`.
"""

from __future__ import annotations

import hashlib
import io
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ptm_jax.core import archives
from ptm_jax.core.errors import UserError
from ptm_jax.core.reading import broken, decoded, size_of
from ptm_jax.data.languages import translations
from ptm_jax.data.text import dataset_folders, textfiles, tfds_sources
from ptm_jax.data.text.bounded import DOCUMENT_BYTES, RATIO, Bounded
from ptm_jax.tasks.formats import spreadsheets
from ptm_jax.tasks.formats.json_text import Places, json_of, one_text, repeated

Fields = dict[str, Any]
Row = tuple[str, Fields]
"""("FILE:LINE", {column: value})."""

LARGEST = 1 << 31
"""Bytes of a file of a task at most. The training file of Amazon's reviews has 1.6 GB."""
FORMATS: dict[str, Callable[[Path, str], Iterator[Row]]] = {}
"""{name of a format: (path, encoding) -> rows}."""


def format_of(name: str) -> Callable:
    """Registers a reader under the name of its format."""

    def register(reader):
        if FORMATS.setdefault(name, reader) is not reader:
            raise ValueError(f"the format {name!r} has a reader already; choose another name")
        return reader

    return register


class Source(NamedTuple):
    """A file, directory or `tfds:name/config#split` of examples.

    `held`: True for the tenth of it that is held out, False for the rest, None for all.
    """

    path: str
    held: bool | None = None

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rsplit("/", 1)[-1]


QQP = frozenset(("qid1", "qid2", "question1", "question2", "is_duplicate"))
"""Columns of the published file of QQP, in which some rows are broken into two lines."""


def rows(
    path: str | Path, format: str = "", columns: Sequence[str] = (),
    needed: Sequence[Sequence[str]] = (),
    encoding: str = "utf-8-sig", *, broken_row: Callable[[str], None] | None = None,
    spreadsheet: bool = False,
) -> Iterator[Row]:  # fmt: skip
    """The rows of a source.

    needed       groups of names: a table must have a column of each group
    columns      names for a table whose first line has none of these names
    broken_row   called with the place of each broken row of a published file that has such rows,
                 which are left out
    spreadsheet  whether a table is read as a spreadsheet or pandas writes it, with the separator
                 that its first rows show
    Raises UserError with file and line.
    """
    if str(path).startswith(tfds_sources.START):
        yield from _tfds(str(path))
        return
    path = Path(path)
    if not format and path.name.startswith("s1.") and path.with_name("s2" + path.suffix).is_file():
        format = "parallel"
    if format:
        yield from FORMATS[format](path, encoding)
        return
    kind = textfiles.file_format(path) or path.suffix
    if kind == ".parquet" or dataset_folders.is_split(path):
        yield from dataset_folders.rows(path)
        return
    text = text_of(path, encoding)
    if text.lstrip()[:1] in ("{", "["):
        yield from _json(path, text)
        return
    if spreadsheet:
        lines = spreadsheets.rows(path, text, kind)
    elif kind == ".csv":
        lines = textfiles.csv_rows(path, io.StringIO(text, newline=""))
    else:
        lines = spreadsheets.of_tabs(text.split("\n"))
    yield from _table(path, lines, columns, needed, broken_row=broken_row)


def need(place: str, record: Any, *names: str) -> Any:
    """The first of the named fields that a JSON object has.
    Raises UserError where it has none, or a null."""
    fields = record if isinstance(record, dict) else {}
    for name in names:
        if name in fields:
            if fields[name] is None:
                raise UserError(
                    f"{place}: the field {name} is null; correct the line, or remove it"
                )
            return fields[name]
    raise UserError(
        f"{place} has no field {' or '.join(names)}; it has: "
        f"{', '.join(filter(None, fields)) or 'nothing'}"
    )


def needed_text(place: str, record: Mapping[str, Any], *names: str) -> str:
    """`need` of a field that is a text. Raises UserError for a list or an object."""
    value = need(place, record, *names)
    return one_text(place, next(name for name in names if name in record), value)


def needs(place: str, record: Any, *names: str) -> list[Any]:
    """All of the named fields. Raises UserError like `need`."""
    return [need(place, record, name) for name in names]


def text_of(path: Path, encoding: str = "utf-8-sig") -> str:
    """The text of a file, which may be compressed.
    Raises UserError, also for more than `_most` bytes."""
    try:
        with Bounded(
            archives.opened(path), path, _most(path), "more than {} bytes; divide it"
        ) as file:
            return decoded(path, file.read(), encoding)
    except archives.DAMAGED as error:
        raise UserError(
            f"{path} is a damaged archive ({error}); fetch or compress it again"
        ) from None
    except OSError as error:
        raise UserError(
            f"{path} cannot be read: {error.strerror or error}; check the path"
        ) from None


def _most(path: Path) -> int:
    """Returns the bytes that are read of a file at most."""
    return min(LARGEST, max(DOCUMENT_BYTES, RATIO * size_of(path)))


def lines_of(path: Path, encoding: str = "utf-8-sig") -> Iterator[tuple[int, str]]:
    """(number, line) of a file. Only a line feed ends a line; an empty last line does not count."""
    lines = text_of(path, encoding).split("\n")
    yield from (
        (number, line.rstrip("\r"))
        for number, line in enumerate(lines, 1)
        if line or number < len(lines)
    )


def digest(path: str) -> str:
    """sha256 of the content of a source."""
    if path.startswith(tfds_sources.START):
        return tfds_sources.fingerprint(path.partition("#")[0])
    if translations.is_source(path):
        return translations.fingerprint(path)
    state, folder = hashlib.sha256(), Path(path).is_dir()
    if Path(path).is_file() and size_of(Path(path)) > LARGEST:
        raise broken(
            Path(path),
            f"has {size_of(Path(path)):,} bytes; a file of a task has at most {LARGEST:,}; "
            "divide it",
        )
    every = dataset_folders.files_of(path) if dataset_folders.is_split(path) else [Path(path)]
    for file in sorted(Path(path).rglob("*")) if folder else every:
        if file.is_file():
            with file.open("rb") as stream:
                while piece := stream.read(1 << 20):
                    state.update(piece)
    return state.hexdigest()


def _table(
    path: Path, rows: Iterator[tuple[int, list[str]]], columns: Sequence[str],
    needed: Sequence[Sequence[str]], *, broken_row: Callable[[str], None] | None = None,
) -> Iterator[Row]:  # fmt: skip
    """The rows of a table, given (number, fields) of its lines."""
    line, first = next(rows, (0, []))
    named = not columns or any(name in first for group in needed for name in group)
    names = [name.strip() for name in first] if named else columns
    if (twice := repeated(name for name in names if name)) is not None:
        raise UserError(
            f"{path}:{line}: two columns are named {twice!r}; rename one of them, or remove it"
        )
    for group in needed:
        if not set(group) & set(names):
            listed = ", ".join(names) or "nothing"
            raise UserError(
                f"{path} has no column {' or '.join(group)}; its first line has: {listed}"
            )
    misfits: list[tuple[int, int]] = []
    for number, row in rows if named else itertools.chain([(line, first)], rows):
        if len(row) < len(names) or (named and len(row) > len(names)):
            if broken_row is not None and QQP.issubset(names):
                broken_row(f"{path}:{number}")
                continue
            misfits.append((number, len(row)))
            continue
        fields = dict(zip(names, row, strict=False))
        fields.pop("", None)  # the numbers that pandas writes before the first column
        yield f"{path}:{number}", fields
    if misfits:
        line, size = misfits[0]
        what = "the first line has" if named else f"expected {', '.join(names)}, which are"
        others = [str(number) for number, _ in misfits[:10]]
        more = ", ..." if len(misfits) > 10 else ""
        rows_of = f" ({len(misfits):,} such rows: lines {', '.join(others)}{more})"
        raise UserError(
            f"{path}:{line}: {size} columns; {what} {len(names)}{rows_of * (len(misfits) > 1)}"
        )


def _json(path: Path, text: str) -> Iterator[Row]:
    """An object per line, or a list of objects."""
    if text.lstrip().startswith("["):
        records = (
            (f"{path}: entry {number}", item) for number, item in enumerate(json_of(path, text), 1)
        )
    else:
        lines = ((n, line) for n, line in enumerate(text.split("\n"), 1) if line.strip())
        records = ((f"{path}:{n}", json_of(path, line, n)) for n, line in lines)
    for place, item in records:
        if not isinstance(item, dict):
            raise UserError(f"{place} is no JSON object; expected fields with names")
        yield place, item


def json_data(path: Path, encoding: str, expected: str) -> tuple[list, Places]:
    """(the list `data` of a JSON object, `Places` in its text).
    Raises UserError where there is none."""
    text = text_of(path, encoding)
    content = json_of(path, text)
    if not isinstance(content, dict) or not isinstance(content.get("data"), list):
        raise UserError(f"{path}:1: no field data with a list of {expected}")
    return content["data"], Places(path, text)


@format_of("labelled")
def _labelled(path: Path, encoding: str) -> Iterator[Row]:
    for number, line in lines_of(path, encoding):
        label, blank, text = line.partition(" ")
        if line and not blank:
            raise UserError(
                f"{path}:{number}: expected a class, a blank and the text; given {line[:40]!r}"
            )
        if line:
            yield f"{path}:{number}", {"label": label, "text": text}


@format_of("trec")
def _trec(path: Path, encoding: str) -> Iterator[Row]:
    for place, fields in _labelled(path, encoding):
        coarse, colon, _ = fields["label"].partition(":")
        if not colon:
            raise UserError(
                f"{place}: expected COARSE:fine before the question; given {fields['label']!r}"
            )
        yield place, {**fields, "coarse": coarse}


@format_of("parallel")
def _parallel(path: Path, encoding: str) -> Iterator[Row]:
    names = {"sentence1": "s1", "sentence2": "s2", "label": "labels"}
    files = {field: path.with_name(name + path.suffix) for field, name in names.items()} | {
        "sentence1": path
    }
    yield from side_by_side(
        {field: file for field, file in files.items() if field != "label" or file.is_file()},
        encoding,
    )


def side_by_side(files: dict[str, Path], encoding: str) -> Iterator[Row]:
    """Rows of one line of each file {field: file}.
    Raises UserError where the files differ in length."""
    first = next(iter(files.values()))
    lines = [[line for _, line in lines_of(file, encoding)] for file in files.values()]
    for file, other in zip(files.values(), lines, strict=True):
        if len(other) != len(lines[0]):
            sizes = f"{file} has {len(other)} lines and {first} has {len(lines[0])}"
            raise UserError(f"{sizes}; both must have as many")
    for number, texts in enumerate(zip(*lines, strict=True), 1):
        yield f"{first}:{number}", dict(zip(files, texts, strict=True))


@format_of("folders")
def _folders(path: Path, encoding: str) -> Iterator[Row]:
    if not path.is_dir():
        yield from _labelled(path, encoding)
        return
    entries = sorted(path.iterdir())
    if any(
        entry.is_dir() for entry in entries
    ):  # IMDb also has lists of addresses and counts of words
        entries = [entry for entry in entries if entry.is_dir()]
    for entry in entries:
        if entry.is_dir():
            for file in sorted(entry.glob("*.txt")):
                yield (
                    f"{file}:1",
                    {"label": entry.name, "text": " ".join(text_of(file, encoding).split())},
                )
        elif entry.suffix:
            for number, line in lines_of(entry, encoding):
                if line.strip():
                    yield f"{entry}:{number}", {"label": entry.suffix[1:], "text": line}


@format_of("triples")
def _triples(path: Path, encoding: str) -> Iterator[Row]:
    lines = [line for _, line in lines_of(path, encoding)]
    if len(lines) % 3:
        raise UserError(
            f"{path} has {len(lines)} lines; expected three for every example: text, aspect, "
            "polarity"
        )
    for number in range(0, len(lines), 3):
        text, aspect, label = (line.strip() for line in lines[number : number + 3])
        yield (
            f"{path}:{number + 1}",
            {"text": text.replace("$T$", aspect), "aspect": aspect, "label": label},
        )


@format_of("semeval")
def _semeval(path: Path, encoding: str) -> Iterator[Row]:
    """The nouns between [E1] [/E1] and [E2] [/E2], as Baldini Soares et al. (2019) mark them."""
    for number, line in lines_of(path, encoding):
        label, *places, text = line.split("|", 3) if line.count("|") >= 3 else [""] * 4
        words = text.split()
        if not all(place.isdigit() for place in places):
            raise UserError(
                f"{path}:{number}: expected class|place|place|text; given {line[:40]!r}"
            )
        outside = [place for place in places if int(place) >= len(words)]
        for name, place in zip(("E1", "E2"), places, strict=True):
            if int(place) < len(words):
                words[int(place)] = f"[{name}] {words[int(place)]} [/{name}]"
        remark = "places of nouns outside the text, left unmarked" if outside else ""
        yield f"{path}:{number}", {"label": label, "text": " ".join(words), "": remark}


def _tfds(source: str) -> Iterator[Row]:
    name, _, split = source.partition("#")
    builder = tfds_sources.builder_of(name)
    if split not in builder.info.splits:
        raise UserError(f"{name} has no split {split!r}; it has {', '.join(builder.info.splits)}")
    features = builder.info.features
    with tfds_sources.errors(name):
        rows = builder.as_data_source(split=split)
    for number, row in enumerate(rows, 1):
        yield (
            f"{source}:{number}",
            {key: _plain(value, features.get(key)) for key, value in row.items()},
        )


def _plain(value: Any, feature: Any) -> Any:
    """A tfds value as a Python value, a class by its name."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, dict):
        return {key: _plain(part, None) for key, part in value.items()}
    value = value.tolist() if isinstance(value, np.ndarray | np.generic) else value
    if isinstance(value, list):
        return [_plain(part, getattr(feature, "feature", None)) for part in value]
    if isinstance(value, int) and (names := getattr(feature, "names", None)):
        return names[value] if value >= 0 else "-"
    return value
