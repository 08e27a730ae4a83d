"""Word vectors as text, a word and its numbers per line.
word2vec and fastText `.vec` (line `V D` first), GloVe (without).

Words hold no blank. Numbers are read as Python reads them and kept as float32. Files are read in
blocks of whole lines.
"""

from __future__ import annotations

import re
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
LONGEST_LINE = 1 << 24
LINES = 1 << 23
"""Bytes of lines that are parsed at a time."""
_NUMBER = re.compile(
    rb"[-+]?([0-9]+(\.[0-9]*)?|\.[0-9]+|nan|inf(inity)?)([eE][-+]?[0-9]+)?", re.IGNORECASE
)


def header_of(head: bytes) -> tuple[int, int] | None:
    """Returns (V, D) of a first line `V D`, or None."""
    match = HEADER.match(head)
    return None if match is None else (int(match[1]), int(match[2]))


def is_text(path: Path, skip: int) -> bool:
    """Whether a line begins at byte `skip` with a word and numbers only."""
    with reading(path), path.open("rb") as file:
        file.seek(skip)
        line = file.readline(LONGEST_LINE)
    fields = line.split()
    return len(fields) > 1 and all(map(_NUMBER.fullmatch, fields[1:]))


def is_written(path: Path, skip: int, width: int) -> bool:
    """Whether the line at byte `skip` is a word and `width` values of printable characters, which
    may be no numbers (decimal commas)."""
    with reading(path), path.open("rb") as file:
        file.seek(skip)
        values = file.readline(LONGEST_LINE).split()[1:]
    return (
        len(values) == width
        and all(value.isascii() for value in values)
        and (b"".join(values).decode("ascii").isprintable())
    )


def check_header(path: Path, count: int, width: int, each: int) -> None:
    """Checks `V D` against the size of the file: a number has at least `each` bytes.
    Raises UserError."""
    size = size_of(path)
    if width < 1 or count * (width * each + 1) > size:
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
        if headed:
            count, width = header_of(file.readline(100))
            check_header(path, count, width, 2)
        for number, lines in _blocks(path, file, 2 if headed else 1):
            width = width or len(lines[0].split()) - 1
            names, rests = zip(
                *(line.split(b" ", 1) if b" " in line else (line, b"") for line in lines),
                strict=True,
            )
            parts.append(_numbers(path, number, names, rests, width))
            words += map(decoded, names)
    if not words or (count is not None and len(words) != count):
        expected = "at least one" if count is None else f"line 1 gives {count:,}"
        raise broken(
            path,
            f"holds {len(words):,} words; {expected}: the file is truncated, or its header "
            "is wrong",
        )
    rows = parts[0] if len(parts) == 1 else np.concatenate(parts)
    return WordTable(words=words, rows=rows, format="word2vec" if headed else "glove")


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
        expected = "a word holds no blank" if len(values) > width else f"expected {width:,} numbers"
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
            "truncated, a word holds a blank, or the header is wrong",
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
