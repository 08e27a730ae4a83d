"""The text of a corpus in one file, with the order and split of its documents.
It is the first stage of `prepare`.

The file has one sentence on a line; an index has the offset of every document. A document longer
than `LONGEST` bytes or a fiftieth of the corpus is divided at sentence ends, because holding out
and shuffling need several documents. Documents are ordered by a hash of (seed, document). The
held-out documents have the smallest hash of the document alone, so they do not depend on the seed.
"""

from __future__ import annotations

import array
import dataclasses
import hashlib
import itertools
import mmap
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np

from ptm_jax.data.corpora.splits import held_out
from ptm_jax.data.text.documents import Document

LONGEST = 262_144
SHORTEST = 2_048
"""Bytes below which a document is never divided."""


@dataclasses.dataclass(frozen=True)
class Spool:
    """Documents in the file `path`: offsets [N + 1], order [N] and share [N].
    The order is a hash with the seed, the share a hash without it."""

    path: Path
    offsets: np.ndarray
    order: np.ndarray
    share: np.ndarray

    def split(self, heldout: float) -> dict[str, np.ndarray]:
        """Returns the shuffled documents of each split; `heldout` is a share of the bytes."""
        held = held_out(self.share, np.diff(self.offsets), heldout)
        shuffled = np.argsort(self.order, kind="stable")
        return {"train": shuffled[~held[shuffled]], "heldout": shuffled[held[shuffled]]}

    def chunks(self, documents: np.ndarray, size: int) -> Iterator[list[bytes]]:
        """Yields the documents' bytes in lists of about `size` bytes."""
        with (
            self.path.open("rb") as stream,
            mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as text,
        ):
            yield from chunks(
                (text[self.offsets[i] : self.offsets[i + 1]] for i in documents), size
            )

    def sizes(self, documents: np.ndarray) -> np.ndarray:
        """Returns the bytes of the documents."""
        return np.diff(self.offsets)[documents]


def write(
    documents: Iterator[Document], folder: Path, seed: int, progress: Callable | None = None
) -> Spool:
    """Writes the documents into `folder`, unless an earlier run finished this stage."""
    folder.mkdir(parents=True, exist_ok=True)
    text, index = folder / "text", folder / "index.npy"
    if not index.exists():
        ends, position = array.array("Q", [0]), 0
        with text.open("wb") as stream:
            for number, item in enumerate(documents, 1):
                position += stream.write(to_bytes(item))
                ends.append(position)
                if progress and number % 1000 == 0:
                    progress("reading", number, 0)
            stream.flush()
            os.fsync(stream.fileno())
        facts = _index(text, ends, seed)
        partial = folder / "index.partial.npy"
        np.save(partial, facts)
        partial.rename(index)
    facts = np.load(index)
    return Spool(text, facts[0].astype(np.int64), facts[1, :-1], facts[2, :-1])


def _index(text: Path, ends: array.array, seed: int) -> np.ndarray:
    """Returns [3, N + 1] uint64: offsets, and the two hashes of every document (0 at the end)."""
    longest = longest_part(ends[-1])
    offsets, order, share = array.array("Q", [0]), array.array("Q"), array.array("Q")
    with text.open("rb") as stream:
        for start, end in itertools.pairwise(ends):
            for part in parts(stream.read(end - start), longest):
                offsets.append(offsets[-1] + len(part))
                for column, value in zip((order, share), hashes(part, seed), strict=True):
                    column.append(value)
    order.append(0), share.append(0)
    return np.stack([np.frombuffer(column, np.uint64) for column in (offsets, order, share)])


def chunks(texts: Iterable[bytes], size: int) -> Iterator[list[bytes]]:
    """Yields the texts in lists of about `size` bytes."""
    chunk, room = [], size
    for raw in texts:
        chunk.append(raw)
        room -= len(raw)
        if room <= 0:
            yield chunk
            chunk, room = [], size
    if chunk:
        yield chunk


def to_bytes(item: Document) -> bytes:
    """Returns a document with one sentence on every line."""
    return ("\n".join(item.sentences) + "\n").encode("utf-8", "replace")


def from_bytes(raw: bytes) -> list[str]:
    """Returns the sentences of a document: the inverse of `to_bytes`."""
    return raw.decode("utf-8").rstrip("\n").split("\n")


def longest_part(total: int) -> int:
    """Returns the bytes above which a document is divided in a corpus of `total` bytes."""
    return min(LONGEST, max(SHORTEST, total // 50))


def parts(raw: bytes, longest: int) -> Iterator[bytes]:
    """Yields a document in equal parts of whole sentences, not much longer than `longest`."""
    count = -(-len(raw) // longest)
    goal, start = len(raw) / count, 0
    for i in range(1, count):
        end = raw.find(b"\n", max(start, int(i * goal) - 1)) + 1
        if start < end < len(raw):
            yield raw[start:end]
            start = end
    yield raw[start:]


def hashes(part: bytes, seed: int) -> tuple[int, int]:
    """Returns (order, share) of a document: the hashes with and without the seed."""
    return _hash(b"%d\n" % seed + part), _hash(part)


def _hash(data: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")
