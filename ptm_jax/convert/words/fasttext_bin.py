"""fastText's own model files, `.bin` and `.ftz`: unsupervised and supervised, dense and quantised.

The layout is that of fastText's source (fasttext.cc saveModel, version 12): arguments, dictionary,
input matrix, output matrix, all little-endian. Files of version 11, and those before there was a
version, are read too.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ptm_jax.convert.words import quantised
from ptm_jax.convert.words.cursor import Cursor
from ptm_jax.convert.words.wordtable import Classes, Subwords, WordTable, decoded, encoded
from ptm_jax.core.errors import UserError
from ptm_jax.core.reading import shown

MAGIC, VERSION = 793712314, 12
ARGUMENTS = (
    "width", "window", "epoch", "min_count", "negatives", "word_ngrams", "loss", "model", "buckets",
    "shortest", "longest",
    "rate_every",
)  # fmt: skip
LOSSES = {1: "hs", 2: "ns", 3: "softmax", 4: "ova"}
MODELS = {1: "cbow", 2: "skipgram", 3: "supervised"}
DEFAULTS = dict(
    window=5, epoch=5, min_count=1, negatives=5, word_ngrams=1, loss=2, model=2, buckets=0,
    shortest=0, longest=0,
    rate_every=100, sample=1e-4,
)  # fmt: skip
"""fastText's defaults, for tables that come without arguments; without n-grams."""
WIDEST = 100_000


def is_fasttext(head: bytes) -> bool:
    """Whether the first 56 bytes begin a fastText model.

    Its magic number, or plausible arguments (older files).
    """
    if head[:4] == struct.pack("<i", MAGIC):
        return True
    if len(head) < 56:
        return False
    arguments = dict(zip(ARGUMENTS, struct.unpack("<12i", head[:48]), strict=True))
    small = (
        0 < arguments["width"] <= WIDEST
        and 0 < arguments["window"] < 10_000
        and 0 <= arguments["shortest"] <= arguments["longest"] < 1000
    )
    return (
        small
        and arguments["loss"] in LOSSES
        and arguments["model"] in MODELS
        and arguments["epoch"] > 0
    )


def read(path: Path) -> WordTable:
    """Reads a model; matrices stay memory-mapped. Raises UserError with the file and the byte."""
    cursor = Cursor(path)
    version = None
    if cursor.take("i", "its first number")[0] == MAGIC:
        (version,) = cursor.take("i", "its version")
        if version not in (11, VERSION):
            raise cursor.fail(f"fastText's version {version}; 11 and {VERSION} are read")
    else:
        cursor.at = 0
    args: dict[str, Any] = dict(zip(ARGUMENTS, cursor.take("12i", "its arguments"), strict=True))
    (args["sample"],) = cursor.take("d", "its arguments")
    _check(cursor, args)
    if version == 11 and args["model"] == 3:
        args["longest"] = 0  # supervised models of version 11 have no n-grams of characters
    words, counts, labels, args["tokens"], buckets = _dictionary(cursor, version is not None)
    compressed = version is not None and cursor.take("?", "the kind of its input matrix")[0]
    rows = _matrix(cursor, compressed, args["width"], "the input matrix")
    alike = version is not None and cursor.take("?", "the kind of its output matrix")[0]
    output = _matrix(cursor, compressed and alike, args["width"], "the output matrix")
    cursor.end()
    args["of_end"] = version is None
    return _table(cursor, args, (words, counts, labels, buckets), rows, output)


def _check(cursor: Cursor, args: dict[str, Any]) -> None:
    known = args["loss"] in LOSSES and args["model"] in MODELS
    if (
        not known
        or not 0 < args["width"] <= WIDEST
        or args["buckets"] < 0
        or not 0 <= args["shortest"]
        or args["longest"] > 1000
    ):
        arguments = ", ".join(
            f"{name} {args[name]}"
            for name in ("width", "loss", "model", "buckets", "shortest", "longest")
        )
        raise cursor.fail(
            f"arguments that no fastText model has ({arguments}); the file is damaged, or of "
            "another format"
        )


def _dictionary(cursor: Cursor, numbered: bool) -> tuple:
    """Returns (words, counts [V], {label: count}, tokens, {bucket: row} or None)."""
    size, words, labels, tokens = cursor.take("3iq", "its dictionary")
    pruned = cursor.take("q", "its dictionary")[0] if numbered else -1
    if min(size, words, labels) < 0 or words + labels != size:
        raise cursor.fail(
            f"a dictionary of {size:,} entries with {words:,} words and {labels:,} classes; "
            "the file is damaged"
        )
    cursor.room(size, 10, f"a dictionary of {size:,} entries")
    tables: list[tuple[list[str], list[int]]] = [([], []), ([], [])]
    for number in range(size):
        word = decoded(cursor.text(b"\0", f"entry {number + 1:,} of the dictionary"))
        count, kind = cursor.take("qb", f"the entry {shown(word)} of the dictionary")
        if kind != (number >= words):
            raise cursor.fail(
                f"the entry {shown(word)} is of the kind {kind}; words come first, then classes"
            )
        tables[kind][0].append(word)
        tables[kind][1].append(count)
    (names, counts), (classes, totals) = tables
    buckets = None
    if pruned >= 0:
        pairs = (
            cursor.matrix(pruned, 2, "the n-grams that pruning kept", "<i4")
            if pruned
            else np.zeros((0, 2), np.int32)
        )
        buckets = dict(pairs.tolist())
    return (
        names,
        np.array(counts, np.int64),
        dict(zip(classes, totals, strict=True)),
        tokens,
        buckets,
    )


def _matrix(cursor: Cursor, compressed: bool, width: int, what: str) -> Any:
    if compressed:
        matrix = quantised.read(cursor, what)
        if matrix.shape[1] != width:
            raise cursor.fail(
                f"{what} has rows of {matrix.shape[1]:,} numbers; the arguments say {width:,}"
            )
        return matrix
    rows, columns = cursor.take("qq", what)
    if columns != width:
        raise cursor.fail(
            f"{what} has rows of {columns:,} numbers; the arguments say {width:,}: the file "
            "is damaged"
        )
    return cursor.matrix(rows, columns, what)


class MatrixPart:
    """Rows `start` to `stop` of a matrix that is indexed by arrays."""

    def __init__(self, matrix: Any, start: int, stop: int):
        self.matrix, self.start, self.shape = matrix, start, (stop - start, matrix.shape[1])

    def __getitem__(self, ids: np.ndarray) -> np.ndarray:
        return self.matrix[np.asarray(ids) + self.start]


def _table(
    cursor: Cursor, args: dict[str, Any], dictionary: tuple, rows: Any, output: Any
) -> WordTable:
    words, counts, labels, buckets = dictionary
    total = rows.shape[0]
    expected = len(words) + (args["buckets"] if buckets is None else len(buckets))
    if total < len(words) or (args["longest"] > 0 or args["word_ngrams"] > 1) and total < expected:
        raise cursor.fail(
            f"an input matrix of {total:,} rows for {len(words):,} words and their n-grams "
            f"({expected:,} rows)"
        )
    if buckets is not None and any(not 0 <= row < total - len(words) for row in buckets.values()):
        raise cursor.fail(
            "n-grams that pruning kept have rows that the input matrix has not; the file is damaged"
        )
    supervised = args["model"] == 3
    if supervised and (output.shape[0] != len(labels) or not labels):
        raise cursor.fail(
            f"an output matrix of {output.shape[0]:,} rows for {len(labels):,} classes; the "
            "file is damaged"
        )

    def part(start, stop):
        return rows[start:stop] if isinstance(rows, np.ndarray) else MatrixPart(rows, start, stop)

    subwords, classes = None, None
    if args["buckets"] and (args["longest"] > 0 or args["word_ngrams"] > 1):
        sizes = dict(shortest=args["shortest"], longest=args["longest"], buckets=args["buckets"])
        subwords = Subwords(
            rows=part(len(words), total), bucket_rows=buckets, of_end=args["of_end"], **sizes
        )
    if supervised:
        classes = Classes(
            names=list(labels), counts=np.array(list(labels.values()), np.int64), rows=output,
            loss=LOSSES[args["loss"]], word_ngrams=args["word_ngrams"],
        )  # fmt: skip
    settings = {**args, "output": output, "file": cursor.path}
    return WordTable(
        words=words, rows=part(0, len(words)), counts=counts, subwords=subwords, classes=classes,
        format="fasttext-bin", settings=settings,
    )  # fmt: skip


def write(file: BinaryIO, table: WordTable) -> None:
    """Writes a model of version 12 with dense matrices; a quantised one is decoded.
    A table without fastText's arguments gets the defaults without n-grams, and an output matrix of
    zeros."""
    args = {
        **DEFAULTS,
        **{
            name: value
            for name, value in table.settings.items()
            if name in (*ARGUMENTS, "sample", "tokens")
        },
    }
    args["width"], buckets = table.width, table.subwords.bucket_rows if table.subwords else None
    counts = (
        np.ones(len(table.words), np.int64) if table.counts is None else table.counts
    )  # gensim drops words with 0
    entries = [(word, count, 0) for word, count in zip(table.words, counts.tolist(), strict=True)]
    if table.classes is not None:
        entries += [
            (name, n, 1)
            for name, n in zip(table.classes.names, table.classes.counts.tolist(), strict=True)
        ]
    file.write(struct.pack("<2i", MAGIC, VERSION))
    file.write(struct.pack("<12id", *(args[name] for name in ARGUMENTS), args["sample"]))
    if buckets is not None:
        raise UserError(
            "this fastText model was pruned; only its own format .ftz holds that: write its "
            "words as text or binary"
        )
    sizes = len(entries), len(table.words), len(entries) - len(table.words)
    file.write(struct.pack("<3iqq", *sizes, args.get("tokens", int(counts.sum())), -1))
    for word, count, kind in entries:
        file.write(encoded(word) + b"\0" + struct.pack("<qb", count, kind))
    parts = [table.rows] + ([] if table.subwords is None else [table.subwords.rows])
    _write_matrix(file, parts, table.width)
    output = table.settings.get("output")
    _write_matrix(
        file, [Zeros((len(table.words), table.width)) if output is None else output], table.width
    )


class Zeros:
    """A matrix of zeros that is indexed by arrays."""

    def __init__(self, shape: tuple[int, int]):
        self.shape = shape

    def __getitem__(self, ids: np.ndarray) -> np.ndarray:
        return np.zeros((len(ids), self.shape[1]), np.float32)


def _write_matrix(file: BinaryIO, parts: list[Any], width: int) -> None:
    file.write(struct.pack("<?qq", False, sum(part.shape[0] for part in parts), width))
    for block in blocks(parts):
        file.write(block.tobytes())


def blocks(parts: list[Any], size: int = 4096) -> Iterator[np.ndarray]:
    """Yields the rows of matrices [?, D] float32, some at a time."""
    for part in parts:
        for start in range(0, part.shape[0], size):
            yield np.asarray(part[np.arange(start, min(start + size, part.shape[0]))], "<f4")
