"""Searches for equal and similar documents and for repeated spans (`cleaning.Duplicates`)."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import re
import unicodedata
from collections.abc import Sequence

import numpy as np

from ptm_jax.core.errors import UserError
from ptm_jax.data.text.cleaning import Duplicates, Verdict, without
from ptm_jax.data.text.documents import Document

HASHES = 128
"""Hash functions of a signature: the estimate of a similarity s has a standard error of sqrt(s (1 -
s) / 128)."""

_WORD = re.compile(r"\w+")
_GOLDEN, _MIX1, _MIX2 = (
    np.uint64(n) for n in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)


def normal(text: str) -> list[str]:
    """Returns the words of a text without case and punctuation; the text itself without words."""
    return _WORD.findall(unicodedata.normalize("NFKC", text).casefold()) or [text]


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=16).digest()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Exact(Duplicates):
    """Keeps the first of documents with the same words in the same order."""

    def claims(self, document: Document) -> list[tuple[bytes, bytes]]:
        return [(_digest(" ".join(normal(" ".join(document.sentences)))), b"")]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Spans(Duplicates):
    """Removes all but the first of every repeated span of `length` sentences.
    Raffel et al. 2020, section 2.2.

    A document that lost a span and has fewer than `sentences` left is dropped. The authors' code
    does this with lines.
    """

    length: int = 3
    sentences: int = 3

    def claims(self, document: Document) -> list[tuple[bytes, bytes]]:
        plain = [" ".join(sentence.lower().split()) for sentence in document.sentences]
        return [
            (_digest("\n".join(plain[i : i + self.length])), b"")
            for i in range(len(plain) - self.length + 1)
        ]

    def settle(self, document: Document, lost: Sequence[int]) -> Verdict:
        removed = {n for start in lost for n in range(start, start + self.length)}
        if not removed:
            return Verdict(document, {})
        if len(document.sentences) - len(removed) < self.sentences:
            return Verdict(None, {"documents: duplicate spans": 1})
        return Verdict(without(document, removed), {"sentences: duplicate spans": len(removed)})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Near(Duplicates):
    """Keeps the earliest of similar documents.
    The Jaccard similarity of their sets of `shingle`-grams of words is `similarity` or more.

    MinHash with locality-sensitive hashing (Broder 1997; Leskovec et al., Mining of Massive
    Datasets, 3.4): documents meet where a band of their signatures agrees, and are compared by the
    share of equal hashes. With b bands of r rows documents of similarity s meet with probability 1
    - (1 - s^r)^b; r is the largest power of two whose curve rises before `similarity`. Every
    document is compared with earlier ones that hold a band; chains are not closed.
    """

    dropped = "documents: near duplicate"

    similarity: float = 0.8
    shingle: int = 5

    def __post_init__(self):
        if not 0.1 <= self.similarity <= 1 or self.shingle < 1:
            raise UserError(
                f"similarity={self.similarity}, shingle={self.shingle}; expected [0.1, 1] "
                "and at least 1"
            )

    @property
    def rows(self) -> int:
        """Hashes in a band."""
        return max(
            r for r in (1, 2, 4, 8, 16) if r == 1 or (r / HASHES) ** (1 / r) <= self.similarity
        )

    def claims(self, document: Document) -> list[tuple[bytes, bytes]]:
        hashes = signature(normal(" ".join(document.sentences)), self.shingle)
        evidence, bands = hashes.tobytes(), hashes.reshape(-1, self.rows)
        keys = [
            b"%d " % n + hashlib.blake2b(band.tobytes(), digest_size=16).digest()
            for n, band in enumerate(bands)
        ]
        return [(key, evidence) for key in keys]

    def same(self, earlier: bytes, later: bytes) -> bool:
        equal = np.frombuffer(earlier, "<u4") == np.frombuffer(later, "<u4")
        return bool(equal.mean() >= self.similarity)


def signature(words: Sequence[str], shingle: int = 5) -> np.ndarray:
    """Returns [HASHES] uint32: the least value of every hash function over the shingles."""
    hashes, (factors, shifts) = shingles(words, shingle), _functions()
    least = np.full(HASHES, np.iinfo(np.uint32).max, np.uint32)
    for start in range(0, len(hashes), 4096):
        values = hashes[start : start + 4096, None] * factors + shifts
        np.minimum(least, (values >> np.uint64(32)).astype(np.uint32).min(0), out=least)
    return least.astype("<u4")


def shingles(words: Sequence[str], length: int) -> np.ndarray:
    """Returns [N] uint64: the distinct hashes of `length` consecutive words.
    A text with fewer words gives the hash of all its words."""
    length = min(length, len(words))
    ids = np.array([_word(word) for word in words], np.uint64)
    total = np.zeros(len(ids) - length + 1, np.uint64)
    for i in range(length):  # a polynomial modulo 2^64, then a finalizer that spreads it
        total = total * _GOLDEN + ids[i : len(ids) - length + 1 + i]
    total = (total ^ (total >> np.uint64(30))) * _MIX1
    total = (total ^ (total >> np.uint64(27))) * _MIX2
    return np.unique(total ^ (total >> np.uint64(31)))


@functools.lru_cache(1 << 18)
def _word(word: str) -> int:
    return int.from_bytes(
        hashlib.blake2b(word.encode("utf-8", "replace"), digest_size=8).digest(), "little"
    )


@functools.cache
def _functions() -> tuple[np.ndarray, np.ndarray]:
    """Returns odd factors and shifts; the raw stream of a bit generator is the same in every
    NumPy."""
    raw = np.random.PCG64(20201).random_raw(2 * HASHES)
    return raw[:HASHES] | np.uint64(1), raw[HASHES:]
