"""Bilingual dictionaries: lines of two words, FreeDict's files, and catalogues of gettext."""

from __future__ import annotations

import dataclasses
import gzip
import io
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ptm_jax.core.archives import DAMAGED
from ptm_jax.core.errors import UserError
from ptm_jax.core.reading import broken, decoded, read_bytes, shown
from ptm_jax.knowledge.mentions import Lexicon

if TYPE_CHECKING:
    from ptm_jax.core.types import Vocab

_HEADWORD = re.compile(r"(\w[^/<]*?) /[^/]+/")
_REMARKS = re.compile(r"\[[^]]*\]|\([^)]*\)|<[^>]*>|\{[^}]*\}")
_NOTES = "see:", "Syn", "Note"
LARGEST = 1 << 30
"""Bytes of a decompressed dictionary at most; German to English has 100 million."""


def pairs_of(path: str | Path) -> list[tuple[str, str]]:
    """Returns the pairs (word, translation) of a dictionary, in the order of the file.

    FILE.dict, FILE.dict.dz   FreeDict: a headword before its pronunciation, translations below it
    FILE.mo                   a compiled catalogue of gettext, as iso-codes has them: names of
                              countries and languages
    others                    two words a line with a tab or a blank between (MUSE)

    Raises UserError.
    """
    path = Path(path)
    raw = read_bytes(path)
    if path.suffix == ".mo":
        return _catalogue(path, raw)
    if path.name.endswith(".dict.dz"):
        try:
            raw = gzip.GzipFile(fileobj=io.BytesIO(raw)).read(LARGEST + 1)
        except (OSError, *DAMAGED) as error:
            raise broken(path, f"is damaged ({error})") from None
        if len(raw) > LARGEST:
            raise broken(path, f"has more than {LARGEST:,} bytes when it is decompressed")
    lines = decoded(path, raw).split("\n")
    if path.name.endswith((".dict", ".dict.dz")):
        return [*_freedict(lines)]
    return _two_words(path, lines)


def _two_words(path: Path, lines: Sequence[str]) -> list[tuple[str, str]]:
    pairs = []
    for number, line in enumerate(lines, 1):
        words = line.strip().split("\t") if "\t" in line else line.split()
        if line.strip() and (len(words) != 2 or not all(words)):
            raise broken(
                path,
                f"line {number:,} is {shown(line)}; expected two words with a tab or a blank "
                "between",
            )
        pairs += [(words[0], words[1])] if words else []
    return pairs


def _freedict(lines: Sequence[str]) -> Iterator[tuple[str, str]]:
    heads: list[str] = []
    for line in lines:
        if match := _HEADWORD.match(line):
            heads = [head.strip() for head in re.split(r"[;,]", match[1])]
        elif heads and line.strip() and not line.lstrip().startswith(_NOTES):
            words = [word.strip() for word in _REMARKS.sub("", line).split(",")]
            yield from (
                (head, word.removeprefix("to ")) for head in heads for word in words if word
            )
            heads = []


def _catalogue(path: Path, raw: bytes) -> list[tuple[str, str]]:
    """Returns the messages of one form and no context."""
    try:
        order = {b"\xde\x12\x04\x95": "<", b"\x95\x04\x12\xde": ">"}[raw[:4]]
        count, *tables = struct.unpack(f"{order}3I", raw[8:20])
        columns = [[_message(raw, order, at + 8 * n) for n in range(count)] for at in tables]
    except (KeyError, struct.error, UnicodeDecodeError):
        raise broken(path, "is no compiled catalogue of gettext in UTF-8") from None
    pairs = zip(*columns, strict=True)
    plain = [(a.strip(), b.strip()) for a, b in pairs if not {"\0", "\4"} & {*a, *b}]
    return [(a, b) for a, b in plain if a and b]


def _message(raw: bytes, order: str, at: int) -> str:
    size, start = struct.unpack_from(f"{order}2I", raw, at)
    return raw[start : start + size].decode()


@dataclasses.dataclass(frozen=True, kw_only=True)
class BilingualDictionary(Lexicon):
    """Words with the tokens of their translation: the one of fewest tokens, at most `width` and no
    unknown one, the first of these in the file (`pairs_of`).

    The integers of a word are the number of tokens and their ids, with 0 at the end.
    """

    width: int = 6

    def __post_init__(self):
        if self.width < 1:
            raise ValueError(f"width is {self.width}; it must be at least 1")

    def entries(self, tokenizer: Any) -> Mapping[str, Sequence[int]]:
        if self.file is None:
            raise UserError(
                "there is no dictionary; set its `file` to lines of word and translation, a "
                ".dict.dz of FreeDict or a .mo of iso-codes"
            )
        pairs, names = pairs_of(self.path), {}
        rows = tokenizer.encode_batch([f" {other}" for _, other in pairs])
        for (word, _), row in zip(pairs, rows, strict=True):
            shortest = names[word][0] if word in names else self.width + 1
            if 0 < len(row) < shortest and tokenizer.vocab.unk not in row:
                names[word] = self._integers(row.tolist())
        return names

    def example(self, number: int, vocab: Vocab) -> Sequence[int]:
        first = next(i for i in range(vocab.size // 8, vocab.size) if i not in vocab.specials)
        return self._integers([first] * (1 + number % self.width))

    def _integers(self, ids: Sequence[int]) -> list[int]:
        return [len(ids), *ids, *[0] * (self.width - len(ids))]
