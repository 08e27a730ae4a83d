"""Co-occurrences of words, weighted by 1 / distance: GloVe's training data.

Pennington et al. 2014, section 4.2. A cell is a pair of words in the order of their ids, because
the matrix of a symmetric window is symmetric. Weights are integer multiples of
1 / lcm(1 .. window), so sums do not depend on their order. Cells are sorted by a pseudo-random
bijection of (row, column). Sorted runs can therefore be merged, and the merged table is already
shuffled. Stanford's code shuffles in a separate pass.
"""

from __future__ import annotations

import collections
import concurrent.futures
import dataclasses
import functools
import math
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ptm_jax.core.errors import UserError
from ptm_jax.core.facts import CorpusFact

if TYPE_CHECKING:
    from ptm_jax.core.types import Vocab


WINDOW = 22
"""The largest window: sums of multiples of 1 / lcm(1 .. 22) fit 64 bits for 10^10 pairs."""
MEMORY = 1 << 30
"""Bytes of sums that are held before they are written to disk; merging takes three times as much
for a moment."""
FRESH = 1 << 22
"""Pairs that are sorted at a time."""
DISTANCE = 5
"""Bits of a distance, below the bits of the cell."""

PAIR = np.dtype([("row", "<i4"), ("column", "<i4"), ("weight", "<f8")])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cooccurrences(CorpusFact):
    """Co-occurrences of the train split, [N] of (row, column, weight), row <= column (`PAIR`).

    window      words to either side
    """

    window: int = 10

    def read(self, corpus: Any) -> np.ndarray:
        return corpus.cooccurrence(self.window)

    def stand_in(self, vocab: Vocab) -> np.ndarray:
        return np.zeros(vocab.size, PAIR)


def check(window: int | None) -> None:
    """Raises UserError for a window that cannot be counted."""
    if window is not None and not 1 <= window <= WINDOW:
        raise UserError(f"the window of co-occurrences is {window}; expected 1 to {WINDOW} words")


class Sums:
    """Sums of units by key.

    With a folder they are written to disk in sorted runs of about `memory` bytes.
    """

    def __init__(self, folder: Path | None = None, memory: int = MEMORY):
        self._folder, self._limit = folder, memory // 16
        self._whole, self._pending, self._held, self.runs = np.zeros((2, 0), np.int64), [], 0, []

    def add(self, sums: np.ndarray) -> None:
        """Adds [2, N] of distinct ascending keys and units.

        They are merged when they outnumber the merged ones, so each is moved seldom.
        """
        self._pending.append(sums)
        self._held += sums.shape[1]
        if self._folder is not None and self._held > self._limit:
            path = self._folder / f"run-{len(self.runs)}.npy"
            np.save(path, self.sums())
            self.runs.append(np.load(path, mmap_mode="r"))
            self._whole, self._held = self._whole[:, :0], 0
        elif self._held > 2 * self._whole.shape[1] + FRESH:
            self.sums()

    def sums(self) -> np.ndarray:
        """Returns the sums held in memory, [2, N] int64: ascending keys, and units."""
        if self._pending:
            self._whole = _summed(np.concatenate([self._whole, *self._pending], axis=1))
            self._pending, self._held = [], self._whole.shape[1]
        return self._whole

    def parts(self, end: int) -> Iterator[np.ndarray]:
        """Yields [2, n] of all keys below `end` once, ascending, in parts that fit the memory if
        keys are spread evenly."""
        runs = [*self.runs, self.sums()]
        count = -(-sum(run.shape[1] for run in runs) // max(1, self._limit))
        bounds = [end * n // max(1, count) for n in range(max(1, count) + 1)]
        cuts = [np.searchsorted(run[0], bounds) for run in runs]
        for n in range(len(bounds) - 1):
            pieces = [
                np.asarray(run[:, cut[n] : cut[n + 1]]) for run, cut in zip(runs, cuts, strict=True)
            ]
            yield _summed(np.concatenate(pieces, axis=1))


def _summed(pairs: np.ndarray) -> np.ndarray:
    """Returns keys and units with each key once. Sorted runs are merged fast by a stable sort."""
    if not pairs.shape[1]:
        return pairs
    order = np.argsort(pairs[0], kind="stable")
    keys = pairs[0][order]
    starts = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
    return np.stack([keys[starts], np.add.reduceat(pairs[1][order], starts)])


class Cells:
    """The cells of a vocabulary as pseudo-random numbers of `bits` bits.

    The bijection has two rounds. Each multiplies by an odd number and applies an exclusive or with
    the upper half; both can be inverted.
    """

    ODD = 0x9E3779B97F4A7C15, 0xD6E8FEB86659FD93

    def __init__(self, vocab: int):
        self._half = max(4, (vocab - 1).bit_length())
        self.bits = 2 * self._half
        if self.bits + DISTANCE > 63:
            raise UserError(
                f"the vocabulary has {vocab:,} words; co-occurrences are counted for at most "
                f"{1 << 29:,}"
            )
        self._mask = np.uint64((1 << self.bits) - 1)

    def number(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """Returns the numbers [N] uint64 of the cells of ids a and b, uint64."""
        x = (np.minimum(a, b) << np.uint64(self._half)) | np.maximum(a, b)
        for odd in self.ODD:
            x *= np.uint64(odd)
            x &= self._mask
            x ^= x >> np.uint64(self._half)
        return x

    def ids(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the lower and the higher id of cells."""
        x = numbers.astype(np.uint64)
        for odd in reversed(self.ODD):
            x ^= x >> np.uint64(self._half)
            x *= np.uint64(pow(odd, -1, 1 << self.bits))
            x &= self._mask
        return x >> np.uint64(self._half), x & np.uint64((1 << self._half) - 1)


def count(
    blocks: Iterable[Any], vocab: Vocab, window: int, path: Path, memory: int = MEMORY
) -> None:
    """Writes [N] of PAIR, row <= column.

    The co-occurrences at most `window` words apart in the documents of `block_records.Block`s.
    Unknown words are left out before windows are formed, as in Stanford's code.
    """
    check(window)
    cells, unit = Cells(vocab.size), math.lcm(*range(1, window + 1))
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".pairs-") as folder:
        sums = Sums(Path(folder), memory)
        work = functools.partial(_counted, window=window, cells=cells, unit=unit)
        for counted in _each(work, _grouped(_texts(blocks, vocab.unk, window), window)):
            sums.add(counted)
        draft = Path(folder) / "rows"
        with draft.open("wb") as file:
            total = (
                sum(file.write(_rows(part, cells, unit)) for part in sums.parts(1 << cells.bits))
                // PAIR.itemsize
            )
        with path.open("wb") as file, draft.open("rb") as rows:
            np.lib.format.write_array_header_1_0(
                file, {"descr": PAIR.descr, "fortran_order": False, "shape": (total,)}
            )
            while piece := rows.read(1 << 24):
                file.write(piece)


Text = tuple[np.ndarray, np.ndarray, int]
"""Known words [T] uint64, their documents [T], and how many of them are of the block before,
counted there."""


def _texts(blocks: Iterable[Any], unk: int | None, window: int) -> Iterator[Text]:
    tail = np.zeros(0, np.uint64)
    for block in blocks:
        if not (len(block.continued) and block.continued[0]):
            tail = tail[:0]
        known = block.tokens != (-1 if unk is None else unk)
        number = np.repeat(np.arange(len(block.documents)), np.diff(block.document_tokens))[known]
        tokens = np.concatenate([tail, block.tokens[known].astype(np.uint64)])
        document = np.concatenate([np.zeros(len(tail), int), number])
        yield tokens, document, len(tail)
        last = tokens[document == len(block.documents) - 1] if len(block.documents) else tokens
        tail = last[len(last) - min(len(last), window) :]


def _grouped(texts: Iterable[Text], window: int) -> Iterator[list[Text]]:
    """Yields texts of about `FRESH` pairs."""
    held, size = [], 0
    for text in texts:
        held.append(text)
        size += len(text[0]) * window
        if size >= FRESH:
            yield held
            held, size = [], 0
    if held:
        yield held


def _each(
    work: Callable[[list[Text]], np.ndarray], groups: Iterable[list[Text]]
) -> Iterator[np.ndarray]:
    """Yields the results in order, computed by as many threads as there are cores: NumPy sorts
    without Python's lock."""
    cores = len(os.sched_getaffinity(0))
    with concurrent.futures.ThreadPoolExecutor(cores) as pool:
        pending = collections.deque()
        for group in groups:
            pending.append(pool.submit(work, group))
            if len(pending) > cores:
                yield pending.popleft().result()
        yield from (each.result() for each in pending)


def _counted(texts: list[Text], window: int, cells: Cells, unit: int) -> np.ndarray:
    """Returns [2, N] of the cells of texts, ascending, and their units."""
    parts = []
    for tokens, document, before in texts:
        for distance in range(1, window + 1):
            first = max(before, distance)
            left, right = (
                slice(first - distance, max(0, len(tokens) - distance)),
                slice(first, None),
            )
            near = document[left] == document[right]
            numbers = cells.number(tokens[left][near], tokens[right][near])
            parts.append(numbers << np.uint64(DISTANCE) | np.uint64(distance))
    numbers = np.concatenate(parts)
    if not len(numbers):
        return np.zeros((2, 0), np.int64)
    numbers.sort()
    keys = numbers >> np.uint64(DISTANCE)
    starts = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
    units = unit // (numbers & np.uint64((1 << DISTANCE) - 1)).astype(np.int64)
    return np.stack([keys[starts].astype(np.int64), np.add.reduceat(units, starts)])


def _rows(sums: np.ndarray, cells: Cells, unit: int) -> bytes:
    """Returns the rows of cells. A pair of equal words counts from both sides."""
    rows = np.zeros(sums.shape[1], PAIR)
    rows["row"], rows["column"] = cells.ids(sums[0])
    rows["weight"] = sums[1] * (1 + (rows["row"] == rows["column"])) / unit
    return rows.tobytes()


def both(cells: np.ndarray) -> np.ndarray:
    """Returns the cells and their mirror images, [M] of PAIR."""
    mirrored = cells[cells["row"] != cells["column"]]
    mirrored["row"], mirrored["column"] = mirrored["column"].copy(), mirrored["row"].copy()
    return np.concatenate([cells, mirrored])
