"""Word vectors as text, a word and its numbers per line.
word2vec and fastText `.vec` (line `V D` first), GloVe (without).

The last D fields of a line are its numbers, so that a word may hold blanks, as ". . ." in GloVe's
840B. Numbers are read as Python reads them and kept as float32. Files are read in blocks of whole
lines. A byte order mark is skipped.
"""

from __future__ import annotations

import collections
import re
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np

from ptm_jax.convert.words.fasttext_bin import blocks
from ptm_jax.convert.words.wordtable import LONGEST_WORD, WordTable, decoded, encoded
from ptm_jax.core.errors import UserError
from ptm_jax.core.reading import broken, reading, shown, size_of

HEADER = re.compile(rb"([0-9]{1,20})[ \t]+([0-9]{1,20})[ \t]*\r?\n")
MARK = b"\xef\xbb\xbf"
"""The byte order mark of UTF-8, which some editors write."""
LONGEST_LINE = 1 << 24
LINES = 1 << 23
"""Bytes of lines that are parsed at a time."""
_FIELD = re.compile(rb"[^ \t\r\n\v\f]+")
_NUMBER = re.compile(
    rb"[-+]?([0-9]+(\.[0-9]*)?|\.[0-9]+|nan|inf(inity)?)([eE][-+]?[0-9]+)?", re.IGNORECASE
)


MANY = 100
"""Lines that tell how many numbers a line has."""
OFF = 100_000
"""A header may count one word too many among this number of words."""


def header_of(head: bytes) -> tuple[int, int] | None:
    """Returns (V, D) of a first line `V D`, or None."""
    match = HEADER.match(head)
    return None if match is None else (int(match[1]), int(match[2]))


def is_text(path: Path, skip: int, width: int | None = None) -> bool:
    """Whether a line begins at byte `skip` with a word and numbers only.
    If the `width` is known, the word may hold blanks."""
    with reading(path), path.open("rb") as file:
        file.seek(skip)
        line = file.readline(LONGEST_LINE)
    fields = line.split()
    numbers = fields[1:] if width is None else fields[-width:] if width > 0 else ()
    return bool(numbers) and all(map(_NUMBER.fullmatch, numbers))


def _width_of(lines: list[bytes]) -> int:
    """Returns the number of numbers that most of the first lines end with; of two that are as
    frequent the one that comes first."""
    counts = collections.Counter(map(_numbers_at_end, lines[:MANY]))
    return counts.most_common(1)[0][0]


def _numbers_at_end(line: bytes) -> int:
    fields = line.split()[1:]
    words = [at for at, field in enumerate(fields, 1) if not _NUMBER.fullmatch(field)]
    return len(fields) - (words[-1] if words else 0)


def is_written(path: Path, skip: int, width: int) -> bool:
    """Whether the line at byte `skip` is a word and `width` values of printable characters.

    The values may be no numbers (decimal commas).
    """
    with reading(path), path.open("rb") as file:
        file.seek(skip)
        values = file.readline(LONGEST_LINE).split()[1:]
    return (
        len(values) == width
        and all(value.isascii() for value in values)
        and (b"".join(values).decode("ascii").isprintable())
    )


def check_header(path: Path, count: int, width: int, each: int, spare: int = 0) -> None:
    """Checks `V D` against the size of the file.

    A number has at least `each` bytes, and `spare` words may be missing. Raises UserError.
    """
    size = size_of(path)
    if width < 1 or (count - spare) * (width * each + 1) > size:
        raise broken(
            path,
            f"line 1 gives {count:,} words of {width:,} numbers, the file has {size:,} "
            "bytes: truncated, or a wrong header",
        )


def read(path: Path, headed: bool) -> WordTable:
    """Reads a file of text, with or without the line `V D`.
    Raises UserError with the file and the line."""
    words: list[str] = []
    parts: list[np.ndarray] = []
    count = width = None
    with reading(path), path.open("rb") as file:
        if file.read(len(MARK)) != MARK:
            file.seek(0)
        if headed:
            count, width = header_of(file.readline(100))
            check_header(path, count, width, 2, _spare(count))
        for number, lines in _blocks(path, file, 2 if headed else 1):
            width = width or _width_of(lines)
            names, _, rests = zip(*(line.partition(b" ") for line in lines), strict=True)
            if not all(names) or any(line.count(b" ") != width for line in lines):
                names, rests = zip(*(_divided(line, width) for line in lines), strict=True)
            parts.append(_numbers(path, number, names, rests, width))
            words += map(decoded, names)
    _check_count(path, len(words), count)
    rows = parts[0] if len(parts) == 1 else np.concatenate(parts)
    return WordTable(words=words, rows=rows, format="word2vec" if headed else "glove")


def _divided(line: bytes, width: int) -> tuple[bytes, bytes]:
    """Returns (word, numbers) of a line. A word that holds blanks ends before the last `width`
    numbers, if none of its fields but the first is a number."""
    word, _, numbers = line.partition(b" ")
    if word and len(numbers.split()) == width:
        return word, numbers
    starts = [match.start() for match in _FIELD.finditer(line)]
    if len(starts) < width or (len(starts) == width and starts[0] < 2):
        return word, numbers
    start = starts[-width]
    inner = line[:start].split()[1:]
    if any(map(_NUMBER.fullmatch, inner)):
        return word, numbers
    return line[:start].rstrip(b" \t") or line[: start - 1], line[start:]


def _spare(count: int) -> int:
    """Returns by how many words a header of `count` may be wrong."""
    return max(1, count // OFF)


def _check_count(path: Path, words: int, count: int | None) -> None:
    """Checks the number of words against the header's. Raises UserError.

    More words than that are no loss, and one less is a header that is wrong (fastText's wiki-news),
    if the last line is complete: both give a line on stderr."""
    if words and count in (None, words):
        return
    with reading(path), path.open("rb") as file:
        file.seek(-1, 2)
        complete = file.read(1) == b"\n"
    if words and complete and words >= count - _spare(count):
        print(
            f"{path}: line 1 gives {count:,} words, and the file has {words:,}; all of these "
            "are read",
            file=sys.stderr,
        )
        return
    expected = "at least one" if count is None else f"line 1 gives {count:,}"
    raise broken(
        path,
        f"holds {words:,} words; {expected}: the file is truncated, or its header is wrong",
    )


def _blocks(path: Path, file: BinaryIO, number: int) -> Iterator[tuple[int, list[bytes]]]:
    """Yields (number of the first line, lines without blanks at their ends)."""
    while block := file.read(LINES):
        remainder = b"" if block.endswith(b"\n") else file.readline(LONGEST_LINE)
        if len(remainder) == LONGEST_LINE:
            raise broken(
                path,
                f"has a line of more than {LONGEST_LINE:,} bytes from line {number:,} on; it "
                "is no file of vectors",
            )
        lines = (block + remainder).removesuffix(b"\n").split(b"\n")
        yield number, [line.rstrip(b" \t\r") for line in lines]
        number += len(lines)


def _numbers(path: Path, number: int, names: tuple, rests: tuple, width: int) -> np.ndarray:
    """Returns the numbers [n, D] float32 of lines from `number` on.
    Raises UserError with the first bad line."""
    numbers = None
    if (
        all(fields.count(b" ") == width - 1 for fields in rests)
        and max(map(len, names)) <= LONGEST_WORD
    ):
        with warnings.catch_warnings():
            warnings.simplefilter("error", DeprecationWarning)
            try:
                numbers = np.fromstring(b" ".join(rests).decode("ascii"), np.float64, sep=" ")
            except (DeprecationWarning, ValueError):
                pass
    if numbers is None or len(numbers) != len(rests) * width:
        for at, (name, fields) in enumerate(zip(names, rests, strict=True), number):
            _check_line(path, at, name, fields.split(), width)
        numbers = np.array([float(value) for fields in rests for value in fields.split()])
    with np.errstate(over="ignore"):
        rows = numbers.astype(np.float32).reshape(len(rests), width)
    if not (fine := np.isfinite(rows).all(1)).all():
        at = int(fine.argmin())
        word = shown(decoded(names[at]))
        raise broken(
            path,
            f"line {number + at:,}: the vector of {word} holds NaN or infinity; remove the "
            "line, or train again",
        )
    return rows


def _check_line(path: Path, number: int, name: bytes, values: list[bytes], width: int) -> None:
    if not name or len(name) > LONGEST_WORD:
        raise broken(
            path,
            f"line {number:,}: a word of {len(name):,} bytes; expected a word and {width:,} "
            "numbers",
        )
    bad = next((value for value in values if not _NUMBER.fullmatch(value)), None)
    if bad is not None:
        expected = f"expected {width:,} numbers"
        if b"," in bad and _NUMBER.fullmatch(bad.replace(b",", b".", 1)):
            expected = "write a point in the place of the comma"
        where = (
            f"line {number:,}: {shown(decoded(bad))} after the word "
            f"{shown(decoded(name))} is no number"
        )
        raise broken(path, f"{where}; {expected}")
    if len(values) != width:
        raise broken(
            path,
            f"line {number:,}: the word {shown(decoded(name))} has {len(values):,} numbers, "
            f"expected {width:,}: the file is "
            "truncated, or its header is wrong",
        )


def check_names(words: list[str]) -> None:
    """Raises UserError for a word that a format whose words end at a blank cannot hold."""
    bad = next((word for word in words if not word or any(sign in word for sign in " \n\0")), None)
    if bad is not None:
        raise UserError(
            f"the word {shown(bad)} is empty or holds a blank; this format ends words at "
            "blanks: rename it"
        )


def write(file: BinaryIO, table: WordTable, headed: bool) -> None:
    """Writes text: each number is the shortest that gives the same float32.
    Raises UserError for a word with a blank."""
    check_names(table.words)
    if headed:
        file.write(b"%d %d\n" % (len(table.words), table.width))
    at = 0
    for block in blocks([table.whole()]):
        for row in block:
            file.write(encoded(table.words[at]) + b" " + " ".join(map(str, row)).encode() + b"\n")
            at += 1
