"""Files of word vectors, in and out: the format is found in the file's first bytes, and named to
write one."""

from __future__ import annotations

import dataclasses
import functools
import os
import shutil
import sys
from pathlib import Path

import numpy as np

from ptm_jax.convert.words import fasttext_bin, interleaved, keyed, static_folder, textual
from ptm_jax.convert.words.wordtable import WordTable, decoded, encoded
from ptm_jax.core.errors import UserError, unknown
from ptm_jax.core.reading import broken, reading, shown, size_of

FORMATS = {
    "word2vec": "word2vec's text, also fastText's .vec",
    "word2vec-binary": "word2vec's binary",
    "glove": "GloVe's text, without a first line",
    "fasttext-bin": "fastText's model, with its n-grams and classes",
    "keyed-vectors": "gensim's KeyedVectors, a pickle with .npy files",
    "folder": "vectors.npy and words.txt: a word, a tab and its count per line; with n-grams or "
    "classes fasttext.bin",
}
ENDINGS = {".txt": "word2vec", ".vec": "word2vec", ".kv": "keyed-vectors", "": "folder"}
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
    """Reads a file or folder of vectors. Of a word on several lines the first vector is kept, with
    a line on stderr. Raises UserError with the file and the place of what is wrong."""
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
    if path.is_dir():
        return fasttext_bin.read(path / MODEL) if (path / MODEL).is_file() else _folder(path)
    size_of(path)
    with reading(path), path.open("rb") as file:
        head = file.read(4096)
    if not head:
        raise broken(path, "is empty")
    if head[:2] in (b"\x1f\x8b", b"PK", b"BZ", b"\xfd7"):
        raise broken(path, "is compressed; unpack it first (gunzip, unzip, bunzip2 or unxz)")
    if keyed.is_pickle(head):
        return keyed.read(path, allow_pickle)
    if textual.header_of(head) is not None:
        # A line of text is a word and numbers only; bytes of float32 numbers are not.
        _, width = textual.header_of(head)
        skip = head.find(b"\n") + 1
        written = textual.is_text(path, skip) or textual.is_written(path, skip, width)
        return textual.read(path, True) if written else interleaved.read(path)
    if fasttext_bin.is_fasttext(head):
        return fasttext_bin.read(path)
    if textual.is_text(path, 0):
        return textual.read(path, False)
    raise broken(
        path,
        f"is no file of word vectors; it begins with {shown(head[:40])}. Formats: "
        f"{', '.join(FORMATS)}",
    )


def _folder(path: Path) -> WordTable:
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


def write(path: str | os.PathLike, table: WordTable, format: str | None = None) -> list[Path]:
    """Writes a table and returns the files. `format` is a name of `FORMATS`; default: that of the
    file's ending (.txt, .vec, .kv, none: a folder; .bin: fastText's where the table has n-grams,
    else word2vec's). Raises UserError.
    """
    path = Path(path)
    if format is None:
        binary = (
            "fasttext-bin"
            if table.subwords is not None or table.classes is not None
            else "word2vec-binary"
        )
        format = {**ENDINGS, ".bin": binary}.get(path.suffix)
    if format not in FORMATS:
        raise unknown("format of word vectors", str(format), FORMATS)
    path.parent.mkdir(parents=True, exist_ok=True)
    if format == "folder":
        path.mkdir(exist_ok=True)
        if "file" in table.settings:  # a compressed model has no other form
            shutil.copyfile(table.settings["file"], path / MODEL)
            return [path / MODEL]
        if table.subwords is not None or table.classes is not None:
            return write(path / MODEL, table)
        np.save(path / ROWS, table.whole())
        counts = [None] * len(table.words) if table.counts is None else table.counts.tolist()
        if bad := next((word for word in table.words if "\t" in word or "\n" in word), None):
            raise UserError(
                f"the word {shown(bad)} holds a tab or a line break; this format ends words "
                "there: rename it"
            )
        lines = (
            encoded(w) + (b"" if n is None else b"\t%d" % n) + b"\n"
            for w, n in zip(table.words, counts, strict=True)
        )
        (path / NAMES).write_bytes(b"".join(lines))
        return [path / ROWS, path / NAMES]
    if format == "keyed-vectors":
        return keyed.write(path, table)
    writers = {
        "word2vec": functools.partial(textual.write, headed=True),
        "glove": functools.partial(textual.write, headed=False),
        "word2vec-binary": interleaved.write,
        "fasttext-bin": fasttext_bin.write,
    }
    draft = path.with_name(path.name + ".draft")
    try:
        with draft.open("wb") as file:
            writers[format](file, table)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    return [path]
