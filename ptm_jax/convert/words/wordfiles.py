"""Files of word vectors, in and out.
The first bytes tell the format of a file; a name chooses it for writing."""

from __future__ import annotations

import dataclasses
import functools
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import numpy as np

from ptm_jax.convert.words import fasttext_bin, interleaved, keyed, static_folder, textual
from ptm_jax.convert.words.wordtable import WordTable, decoded, encoded
from ptm_jax.core.errors import UserError, unknown
from ptm_jax.core.reading import broken, check_encoding, reading, shown, size_of


@dataclasses.dataclass(frozen=True, kw_only=True)
class Format:
    """A format of word vectors.

    help     one line
    detect   (path, first bytes of a file) -> whether it is this format
    read     (path, allow_pickle) -> the table. Raises UserError
    write    (path, table) -> the files
    endings  of files that are written in it by default
    fits     table -> whether it is the default for its endings
    """

    help: str
    detect: Callable[[Path, bytes], bool]
    read: Callable[[Path, bool], WordTable]
    write: Callable[[Path, WordTable], list[Path]]
    endings: tuple[str, ...] = ()
    fits: Callable[[WordTable], bool] = lambda table: True


ROWS, NAMES, MODEL = "vectors.npy", "words.txt", "fasttext.bin"


def is_words(path: str | os.PathLike) -> bool:
    """Whether a path is a file, or a folder that `write` or `static_folder.write` wrote."""
    path = Path(path)
    return (
        path.is_file()
        or any((path / name).is_file() for name in (ROWS, MODEL))
        or static_folder.is_static(path)
    )


def read(path: str | os.PathLike, allow_pickle: bool = False) -> WordTable:
    """Reads a file or folder of vectors.
    Of a word on several lines the first vector is kept, with a line on stderr. Raises UserError
    with the file and the place of the error."""
    table = _read(Path(path), allow_pickle)
    if table.subwords is not None or table.classes is not None or "output" in table.settings:
        return table  # fastText's model: its parts are numbered together
    first = dict(zip(reversed(table.words), range(len(table.words) - 1, -1, -1), strict=True))
    if len(first) == len(table.words):
        return table
    rows = np.array(sorted(first.values()), np.int64)
    twice = table.words[np.setdiff1d(np.arange(len(table.words)), rows)[0]]
    print(
        f"{path}: {len(table.words) - len(rows):,} words stand there twice, as {shown(twice)}; "
        "the first vector of each is kept",
        file=sys.stderr,
    )
    counts = None if table.counts is None else table.counts[rows]
    words = [table.words[row] for row in rows]
    return dataclasses.replace(table, words=words, rows=table.rows[rows], counts=counts)


def _read(path: Path, allow_pickle: bool) -> WordTable:
    head = b"" if path.is_dir() else _head(path)
    for form in FORMATS.values():
        if form.detect(path, head):
            return form.read(path, allow_pickle)
    raise broken(
        path,
        f"is no file of word vectors; it begins with {shown(head[:40])}. Formats: "
        f"{', '.join(FORMATS)}",
    )


def write(path: str | os.PathLike, table: WordTable, format: str | None = None) -> list[Path]:
    """Writes a table and returns the files.
    `format` is a name of `FORMATS`; by default the ending of the file chooses it (.txt, .vec, .kv,
    none: a folder; .bin: fastText's where the table has n-grams or classes, else word2vec's).
    Raises UserError.
    """
    path = Path(path)
    if format is None:
        fitting = (n for n, f in FORMATS.items() if path.suffix in f.endings and f.fits(table))
        format = next(fitting, None)
    if format not in FORMATS:
        raise unknown("format of word vectors", str(format), FORMATS)
    path.parent.mkdir(parents=True, exist_ok=True)
    return FORMATS[format].write(path, table)


def _head(path: Path) -> bytes:
    """Returns the first bytes of a file. Raises UserError if it is empty or compressed."""
    size_of(path)
    with reading(path), path.open("rb") as file:
        head = file.read(4096)
    if not head:
        raise broken(path, "is empty")
    check_encoding(path, head)
    if head[:2] in (b"\x1f\x8b", b"PK", b"BZ", b"\xfd7"):
        raise broken(path, "is compressed; unpack it first (gunzip, unzip, bunzip2 or unxz)")
    return head


def _read_folder(path: Path, allow_pickle: bool) -> WordTable:
    if (path / MODEL).is_file():
        return fasttext_bin.read(path / MODEL)
    rows, names = path / ROWS, path / NAMES
    size_of(rows), size_of(names)
    try:
        vectors = np.load(rows, mmap_mode="r", allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise broken(
            rows, f"is no array of numpy ({str(error)[:100]}); copy the folder again"
        ) from None
    if vectors.ndim != 2 or vectors.dtype != np.float32 or not vectors.shape[1]:
        raise broken(rows, f"holds {vectors.dtype} {list(vectors.shape)}; expected float32 [V, D]")
    words, counts = [], []
    with reading(names), names.open("rb") as file:
        lines = file.read().removesuffix(b"\n").split(b"\n")
    for number, line in enumerate(lines, 1):
        word, tab, count = line.partition(b"\t")
        if tab and not count.isdigit():
            raise broken(
                names,
                f"line {number:,}: {shown(decoded(count))} is no count; expected a word, a "
                "tab and its count",
            )
        words.append(decoded(word))
        counts += [int(count)] if tab else []
    if len(words) != len(vectors):
        raise broken(
            names,
            f"has {len(words):,} words, and {ROWS} {len(vectors):,} vectors; copy the folder again",
        )
    if not np.isfinite(vectors.sum()) and not (fine := np.isfinite(vectors).all(1)).all():
        raise broken(rows, f"row {int(fine.argmin()) + 1:,} holds NaN or infinity")
    known = np.array(counts, np.int64) if len(counts) == len(words) else None
    return WordTable(words=words, rows=vectors, counts=known, format="folder")


def _write_folder(path: Path, table: WordTable) -> list[Path]:
    path.mkdir(exist_ok=True)
    if "file" in table.settings:  # a compressed model has no other form
        shutil.copyfile(table.settings["file"], path / MODEL)
        return [path / MODEL]
    if _has_model(table):
        return write(path / MODEL, table)
    np.save(path / ROWS, table.whole())
    counts = [None] * len(table.words) if table.counts is None else table.counts.tolist()
    if bad := next((word for word in table.words if "\t" in word or "\n" in word), None):
        raise UserError(
            f"the word {shown(bad)} holds a tab or a line break; this format ends words "
            "there: rename it"
        )
    lines = (
        encoded(word) + (b"" if count is None else b"\t%d" % count) + b"\n"
        for word, count in zip(table.words, counts, strict=True)
    )
    (path / NAMES).write_bytes(b"".join(lines))
    return [path / ROWS, path / NAMES]


def _has_model(table: WordTable) -> bool:
    """Whether a table has n-grams or classes, which only fastText's model holds."""
    return table.subwords is not None or table.classes is not None


def _drafted(
    write: Callable[[BinaryIO, WordTable], object],
) -> Callable[[Path, WordTable], list[Path]]:
    """Returns a writer of a path, where the file appears only when complete."""

    def to_path(path: Path, table: WordTable) -> list[Path]:
        draft = path.with_name(path.name + ".draft")
        try:
            with draft.open("wb") as file:
                write(file, table)
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)
        return [path]

    return to_path


def _is_headed_text(path: Path, head: bytes) -> bool:
    """Whether a line of counts and lines of a word and numbers follow.
    Bytes of float32 numbers are no such lines."""
    header, start = textual.header_of(head.removeprefix(textual.MARK)), head.find(b"\n") + 1
    if header is None:
        return False
    return textual.is_text(path, start, header[1]) or textual.is_written(path, start, header[1])


def _is_glove(path: Path, head: bytes) -> bool:
    """Whether one of the first two lines is a word and numbers."""
    start = len(textual.MARK) if head.startswith(textual.MARK) else 0
    return textual.is_text(path, start) or textual.is_text(path, head.find(b"\n") + 1)


FORMATS = {
    "folder": Format(
        help="vectors.npy and words.txt: a word, a tab and its count per line; with n-grams or "
        "classes fasttext.bin",
        detect=lambda path, head: path.is_dir(),
        read=_read_folder,
        write=_write_folder,
        endings=("",),
    ),
    "keyed-vectors": Format(
        help="gensim's KeyedVectors, a pickle with .npy files",
        detect=lambda path, head: keyed.is_pickle(head),
        read=keyed.read,
        write=keyed.write,
        endings=(".kv",),
    ),
    "fasttext-bin": Format(
        help="fastText's model, with its n-grams and classes",
        detect=lambda path, head: fasttext_bin.is_fasttext(head),
        read=lambda path, allow_pickle: fasttext_bin.read(path),
        write=_drafted(fasttext_bin.write),
        endings=(".bin",),
        fits=_has_model,
    ),
    "word2vec": Format(
        help="word2vec's text, also fastText's .vec",
        detect=_is_headed_text,
        read=lambda path, allow_pickle: textual.read(path, True),
        write=_drafted(functools.partial(textual.write, headed=True)),
        endings=(".txt", ".vec"),
    ),
    "word2vec-binary": Format(
        help="word2vec's binary",
        detect=lambda path, head: textual.header_of(head) is not None,
        read=lambda path, allow_pickle: interleaved.read(path),
        write=_drafted(interleaved.write),
        endings=(".bin",),
    ),
    "glove": Format(
        help="GloVe's text, without a first line",
        detect=_is_glove,
        read=lambda path, allow_pickle: textual.read(path, False),
        write=_drafted(functools.partial(textual.write, headed=False)),
    ),
}
"""The formats by name. The first that detects a file reads it, the first that fits an ending is its
default."""
