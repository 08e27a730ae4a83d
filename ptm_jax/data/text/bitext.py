"""Parallel text: two files, line by line translations of each other, as documents of two sentences.

A source `parallel:DIR/train.de-en` names the files DIR/train.de and DIR/train.en, and
`DIR/train.de-en.align` where it is there: alignments of words in Pharaoh's format, `0-0 1-2 ...` a
line, first language first, counted from 0. Words are separated as `words_of` does, in lower case,
and carry their language, `de:haus`: the languages have vocabularies of their own (tokenizer kind
"spaced"). A third sentence `@0 @0 @1 @2 ...` holds given alignments.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from ptm_jax.core.errors import UserError
from ptm_jax.core.reading import broken, decoded, reading, shown, size_of
from ptm_jax.data.text.documents import Document

START = "parallel:"
LONGEST = 100
"""Words of a sentence at most; longer pairs are left out, as bivec leaves sentences of more than
1,000 out."""
_WORD = re.compile(r"[^\W_]+|[^\s\w]|_")
_PAIR = re.compile(r"(\d+)-(\d+)")


def words_of(line: str) -> list[str]:
    """Returns the words of a line in lower case; a punctuation mark is a word."""
    return _WORD.findall(line.lower())


def parts_of(source: str) -> tuple[tuple[str, Path], tuple[str, Path], Path | None]:
    """Returns ((language, file), (language, file), file of alignments or None) of a source.
    Raises UserError."""
    path = Path(source.removeprefix(START)).expanduser()
    languages = path.suffix.removeprefix(".").split("-")
    if len(languages) != 2 or not all(languages) or languages[0] == languages[1]:
        raise UserError(
            f"{source} names no two languages; write parallel:DIR/train.de-en for train.de "
            "and train.en"
        )
    files = [path.with_suffix(f".{language}") for language in languages]
    for file in files:
        if not file.is_file():
            raise UserError(
                f"{source} needs the file {file}, which is not there; give the name without "
                "its language"
            )
        size_of(file)
    align = path.with_name(path.name + ".align")
    return (languages[0], files[0]), (languages[1], files[1]), align if align.is_file() else None


def fingerprint(source: str) -> str:
    """Returns the hash of the files of a source."""
    first, second, align = parts_of(source)
    digest = hashlib.sha256(f"{first[0]} {second[0]}".encode())
    for file in (first[1], second[1], *([align] if align else [])):
        with reading(file), file.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()


def documents(source: str) -> Iterator[Document]:
    """Yields a document for every pair of lines that both have words.
    Raises UserError with file and line."""
    (one, first), (two, second), align = parts_of(source)
    sides = _lines(first), _lines(second), _lines(align) if align else None
    counts = [len(side) for side in sides if side is not None]
    if len({*counts}) > 1:
        raise broken(
            second,
            f"has {counts[1]:,} lines; {first.name} has {counts[0]:,}: they are no "
            "translations line by line",
        )
    for number, (a, b) in enumerate(zip(*sides[:2], strict=True)):
        sentences = words_of(a), words_of(b)
        pairs = (
            []
            if align is None
            else _pairs(align, number + 1, sides[2][number], tuple(map(len, sentences)))
        )
        if all(0 < len(words) <= LONGEST for words in sentences):
            texts = [
                " ".join(f"{language}:{word}" for word in words)
                for language, words in zip((one, two), sentences, strict=True)
            ]
            yield Document((*texts, *([" ".join(f"@{i} @{j}" for i, j in pairs)] if pairs else [])))


def _lines(path: Path) -> Sequence[str]:
    with reading(path):
        return decoded(path, path.read_bytes()).splitlines()


def _pairs(path: Path, number: int, line: str, lengths: tuple[int, int]) -> list[tuple[int, int]]:
    matches = [_PAIR.fullmatch(cell) for cell in line.split()]
    pairs = [(int(match[1]), int(match[2])) if match else (-1, -1) for match in matches]
    if any(not (0 <= i < lengths[0] and 0 <= j < lengths[1]) for i, j in pairs):
        raise broken(
            path,
            f"line {number:,} is {shown(line)}; expected pairs as 0-0 1-2 inside "
            f"{lengths[0]} and {lengths[1]} words",
        )
    return pairs
