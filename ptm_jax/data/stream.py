"""Batches of a corpus: a function of (corpus, seed), whatever the number of processes, that goes on from any point.

The global batch is served by G lanes, B / G rows each, G a power of two. A group is a few blocks of the epoch's
shuffled order, about `GROUP_ROWS` rows of tokens, joined so that packing has enough to choose from; lane g owns groups
g, g + G, ... of every epoch and hands out their rows one after the other. The random numbers of a group come from
(seed, epoch, group), so that a cursor (epoch, group, row) for every lane is all the state there is. A process reads
only the lanes that overlap its rows. Lanes end their epochs independently: no token is skipped or read twice in one.

Examples with a true `continuing` are handed out so that row b of a batch goes on from row b of the batch before it: a
lane for every row (G = B), and groups of blocks that were written one after the other. Inside a group the rows of a
lane are those that `rows` gave, in their order; where a group ends (its last row may be padded) the next one is text
from elsewhere, and nothing marks it: a memory is stale until it has been filled anew. Where there are fewer blocks than
rows of a batch, a group is the n-th part of the rows of one block. Where `epochs` end, lanes that are done give padding.

Reading and prefetching are Grain's. Work is done on groups, the fields of a row side by side in one array, and a batch
is a slice of it for every lane: Grain's cost for every element is paid once a batch.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Iterable
from typing import Any

import grain
import numpy as np

from ptm_jax.core.errors import UserError
from ptm_jax.data import store
from ptm_jax.data.examples import Examples, Fields

MAX_LANES = 64
GROUP_ROWS = 64
PREFETCH = 4


class _Layout:
    """The fields of a row side by side, as `width` int32: one copy moves a row, whatever its fields."""

    def __init__(self, spec: dict[str, tuple[tuple[int, ...], Any]], pad: int):
        sizes = [math.prod(shape) for shape, _ in spec.values()]
        self._shapes = {name: shape for name, (shape, _) in spec.items()}
        self._ends = np.cumsum(sizes).tolist()
        self.width = self._ends[-1]
        blank = {name: np.full((1, *shape), pad if name == "input_ids" else 0) for name, shape in self._shapes.items()}
        self.blank = self.join(blank)[0]

    def join(self, fields: Fields) -> np.ndarray:
        """[R, width] of fields [R, ...]."""
        return np.concatenate([fields[name].reshape(len(fields[name]), -1) for name in self._shapes], 1, dtype=np.int32)

    def split(self, rows: np.ndarray) -> Fields:
        """Fields [R, ...] of [R, width], as arrays of their own."""
        starts = [0, *self._ends]
        return {
            name: np.ascontiguousarray(rows[:, start:end]).reshape(len(rows), *shape)
            for (name, shape), start, end in zip(self._shapes.items(), starts, self._ends, strict=False)
        }


@dataclasses.dataclass(frozen=True)
class _Groups:
    """The groups of a split: `cut(epoch, group)` gives their rows.

    A group is one of `parts` equal parts of the rows of `size` blocks, which follow each other in the corpus where
    `consecutive`.
    """

    corpus: store.Corpus
    split: str
    examples: Any
    length: int
    seed: int
    size: int
    layout: _Layout
    source: Any
    words: np.ndarray | None = None
    consecutive: bool = False
    parts: int = 1
    spellings: np.ndarray | None = None
    orders: dict[int, np.ndarray] = dataclasses.field(default_factory=dict)

    def __len__(self) -> int:
        return self.parts * -(-self._blocks // self.size)

    @property
    def _blocks(self) -> int:
        return self.corpus.size(self.split)["blocks"]

    def order(self, epoch: int) -> np.ndarray:
        """The blocks in the order of an epoch; of `consecutive` ones, the runs of `size` of them."""
        if epoch not in self.orders:
            while len(self.orders) > 2:
                del self.orders[min(self.orders)]
            rng = np.random.default_rng([self.seed, epoch])
            self.orders[epoch] = rng.permutation(-(-self._blocks // self.size) if self.consecutive else self._blocks)
        return self.orders[epoch]

    def cut(self, epoch: int, group: int) -> np.ndarray:
        """All rows of a group, [R, width]."""
        run, part = divmod(group, self.parts)
        if self.consecutive:
            first = int(self.order(epoch)[run]) * self.size
            blocks = range(first, min(first + self.size, self._blocks))
        else:
            blocks = self.order(epoch)[run * self.size : (run + 1) * self.size]
        block = store.join([store.from_bytes(self.source[int(i)]) for i in blocks])
        block = dataclasses.replace(block, words=self.words, spellings=self.spellings)
        rng = np.random.default_rng([self.seed, epoch, run, 1])
        rows = self.layout.join(self.examples.rows(block, length=self.length, vocab=self.corpus.vocab, rng=rng))
        return rows[len(rows) * part // self.parts : len(rows) * (part + 1) // self.parts]


class _Lane:
    """The rows of groups g, g + G, ... of every epoch; `cursor` is (epoch, group, row) of the next one."""

    def __init__(self, groups: _Groups, number: int, lanes: int, epochs: int | None):
        self._groups, self._number, self._lanes, self._epochs = groups, number, lanes, epochs
        self.seek((0, number, 0))

    def seek(self, cursor: tuple[int, int, int]) -> None:
        """Goes on from `cursor`."""
        self.cursor, self._rows = cursor, None

    def replay(self, count: int) -> None:
        """Goes to row `count` from the start: the way to a point whose cursor is not known."""
        self.seek((0, self._number, 0))
        scratch = np.empty((256, self._groups.layout.width), np.int32)
        while count:
            count -= self.fill(scratch[: min(count, len(scratch))])

    def fill(self, out: np.ndarray) -> int:
        """Writes the next rows into out [R, width] and tells how many: fewer than R when the last epoch ends."""
        done, goal = 0, len(out)
        while done < goal:
            epoch, group, row = self.cursor
            if epoch == self._epochs:
                break
            if self._rows is None:
                self._rows = self._groups.cut(epoch, group)
            taken = min(goal - done, len(self._rows) - row)
            out[done : done + taken] = self._rows[row : row + taken]
            done += taken
            if row + taken < len(self._rows):
                self.cursor = (epoch, group, row + taken)
            else:
                self._rows, group = None, group + self._lanes
                self.cursor = (epoch, group, 0) if group < len(self._groups) else (epoch + 1, self._number, 0)
        return done


class _Batches(grain.IterDataset):
    """The batches of one process as a Grain dataset."""

    def __init__(self, make):
        super().__init__()
        self._make = make

    def __iter__(self) -> grain.DatasetIterator:
        return self._make()


class _BatchIterator(grain.DatasetIterator):
    """Batches [rows of this process, ...] from the lanes that overlap them."""

    def __init__(self, groups: _Groups, numbers: range, *, lanes: int, width: int, low: int, high: int, epochs):
        super().__init__()
        self._width, self._layout = width, groups.layout
        self._lanes = [_Lane(groups, n, lanes, epochs) for n in numbers]
        self._mine = slice(low - numbers[0] * width, high - numbers[0] * width)
        self._places = np.arange(low, high, dtype=np.int32)
        self._batches = 0

    def __next__(self) -> Fields:
        out, width, found = np.empty((len(self._lanes) * self._width, self._layout.width), np.int32), self._width, 0
        for number, lane in enumerate(self._lanes):
            rows = out[number * width : (number + 1) * width]
            count = lane.fill(rows)
            rows[count:] = self._layout.blank
            found += count
        if not found:
            raise StopIteration
        self._batches += 1
        return self._layout.split(out[self._mine]) | {"rows": self._places.copy()}

    def get_state(self) -> dict[str, Any]:
        """Arrays, not lists: Grain copies the state of every batch that it prefetches."""
        return {"batches": self._batches, "cursors": np.array([lane.cursor for lane in self._lanes], np.int64)}

    def set_state(self, state: dict[str, Any]) -> None:
        """A row of `cursors` below zero is not known: that lane is read from the start."""
        self._batches = int(state["batches"])
        for lane, cursor in zip(self._lanes, np.asarray(state["cursors"]).tolist(), strict=True):
            if cursor[0] >= 0:
                lane.seek(tuple(cursor))
            else:
                lane.replay(self._batches * self._width)


class Stream:
    """Iterator of batches {field: [B_local, ...] numpy array} of a split, with `rows` [B_local]: places in the batch.

    batch           rows of the global batch; process p of P hands out rows p * B / P to (p + 1) * B / P
    epochs          None: without end. A number: the last batches are filled with rows of padding (segment 0) and every
                    row comes exactly once an epoch; every process then reads the whole split, so that all end together.
    lanes           None: the largest power of two up to 64 that divides the batch and that the split can serve; the
                    batch where the examples are `continuing`

    Raises UserError for an empty split, a batch that the processes do not divide, examples that the vocabulary cannot
    serve, or continuing examples of a split that has less text than a batch.
    """

    def __init__(
        self,
        corpus: store.Corpus,
        split: str,
        examples: Examples,
        *,
        length: int,
        batch: int,
        seed: int,
        epochs: int | None = None,
        process_index: int = 0,
        process_count: int = 1,
        lanes: int | None = None,
    ):
        size = corpus.size(split)
        if not size["blocks"]:
            raise UserError(f"the split {split} of {corpus.dir} is empty; prepare it with a greater heldout share")
        if batch < 1 or batch % process_count or not 0 <= process_index < process_count:
            raise UserError(f"a batch of {batch} rows cannot be shared by {process_count} processes; choose a multiple")
        layout = _Layout(examples.spec(length, corpus.vocab), corpus.vocab.pad or 0)
        groups = _groups(corpus, split, examples, length, batch, seed, layout)
        if groups.consecutive:
            self._lanes = _continuing(batch, groups, epochs, lanes)
        else:
            self._lanes = _lanes(batch, len(groups), epochs, lanes)
        self._identity = {
            "corpus": corpus.manifest["digest"], "split": split, "examples": repr(examples), "length": length,
            "batch": batch, "seed": seed, "lanes": self._lanes,
        }  # fmt: skip
        low, high = process_index * batch // process_count, (process_index + 1) * batch // process_count
        width = batch // self._lanes
        # to end together, all have to know when the last lane does
        self._numbers = range(low // width, (high - 1) // width + 1) if epochs is None else range(self._lanes)
        options = {"lanes": self._lanes, "width": width, "low": low, "high": high, "epochs": epochs}
        dataset = _Batches(lambda: _BatchIterator(groups, self._numbers, **options))
        dataset = grain.experimental.ThreadPrefetchIterDataset(dataset, prefetch_buffer_size=PREFETCH)
        self._iterator = iter(dataset)

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> Fields:
        return next(self._iterator)

    def state(self) -> dict[str, Any]:
        """The position after the batches that were handed out, JSON-able: cursors of the lanes of this process.

        `merge` makes one state of those of all processes.
        """
        state = self._iterator.get_state()
        cursors = np.asarray(state["cursors"]).tolist()
        lanes = {str(n): cursor for n, cursor in zip(self._numbers, cursors, strict=True)}
        return self._identity | {"batches": int(state["batches"]), "cursors": lanes}

    def restore(self, state: dict[str, Any]) -> None:
        """Goes on from `state`, on any number of processes.

        A lane whose cursor `state` lacks (a state of another process count that was not merged) is read again from the
        start, which is slow and right. Raises UserError for a state of another stream, naming what differs.
        """
        changed = [k for k, v in self._identity.items() if state.get(k) != v]
        if changed:
            facts = "; ".join(f"{k} was {state.get(k)}, is {self._identity[k]}" for k in changed)
            raise UserError(f"the position was saved by another stream ({facts}); go on with what it had")
        cursors = [state["cursors"].get(str(n), (-1, 0, 0)) for n in self._numbers]
        self._iterator.set_state({"batches": state["batches"], "cursors": np.array(cursors, np.int64)})

    def close(self) -> None:
        """Stops prefetching; so does the last reference to the stream when it goes."""
        self._iterator.close()

    def __del__(self):
        if hasattr(self, "_iterator"):
            with contextlib.suppress(Exception):  # the interpreter may be half gone
                self._iterator.close()


def merge(states: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """The states of all processes after the same number of batches, as one. Raises UserError where they differ.

    A stream without cursors has one position for all processes; processes that read the same rows have the same.
    """
    states = list(states)
    facts = [{k: v for k, v in state.items() if k != "cursors"} for state in states]
    if any(f != facts[0] for f in facts):
        raise UserError("the processes' positions in the data belong to different steps; use an earlier checkpoint")
    cursors = {k: v for state in states for k, v in state.get("cursors", {}).items()}
    return facts[0] | ({"cursors": cursors} if "cursors" in states[0] else {})


def measure(
    corpus: store.Corpus, examples: Examples, *, length: int, batch: int, seconds: float = 2.0
) -> dict[str, float]:
    """`tokens_per_second` and `utilisation` (share of places that are not padding) of the stream of one process."""
    stream = Stream(corpus, "train", examples, length=length, batch=batch, seed=0)
    for _ in range(2 * PREFETCH):
        next(stream)
    start, real, places = time.perf_counter(), 0, 0
    while time.perf_counter() - start < seconds:
        segments = next(stream)["segment_ids"]
        real, places = real + int(np.count_nonzero(segments)), places + segments.size
    took = time.perf_counter() - start
    stream.close()
    return {"tokens_per_second": real / took, "utilisation": real / places}


def throughput(corpus: store.Corpus, examples: Examples, *, length: int = 128, batch: int = 64) -> float:
    """Tokens (padding not counted) that one process is given in a second."""
    return measure(corpus, examples, length=length, batch=batch)["tokens_per_second"]


def _groups(corpus: store.Corpus, split: str, examples: Examples, length: int, batch: int, seed: int, layout) -> _Groups:
    """Groups of about `GROUP_ROWS` rows; for continuing examples so small that there is one for every row of a batch."""
    size = corpus.size(split)
    count, parts = max(1, round(GROUP_ROWS * length * size["blocks"] / max(1, size["tokens"]))), 1
    consecutive = getattr(examples, "continuing", False)
    if consecutive:
        count, parts = max(1, min(count, size["blocks"] // batch)), max(1, -(-batch // size["blocks"]))
    words = corpus.word_starts() if getattr(examples, "needs_words", False) else None
    spellings = examples.table(corpus.tokenizer()) if hasattr(examples, "table") else None
    source = grain.sources.ArrayRecordDataSource(corpus.paths(split))
    return _Groups(corpus, split, examples, length, seed, count, layout, source, words, consecutive, parts, spellings)


def _continuing(batch: int, groups: _Groups, epochs: int | None, lanes: int | None) -> int:
    """A lane for every row. Raises UserError where an endless stream has fewer rows than lanes: some would starve."""
    if lanes not in (None, batch):
        raise UserError(f"continuing examples need a lane for every row of a batch of {batch}; leave lanes out")
    rows = groups.corpus.size(groups.split)["tokens"] // groups.length
    if epochs is None and rows < batch:
        raise UserError(
            f"the split {groups.split} has {rows} rows of {groups.length} tokens, too few for a batch of {batch} whose "
            "rows continue each other; give a smaller batch, shorter rows or more text, or set examples.continuing=False"
        )
    return batch


def _lanes(batch: int, groups: int, epochs: int | None, lanes: int | None) -> int:
    if epochs is not None:
        return 1
    if lanes is not None:
        if batch % lanes or not 1 <= lanes <= groups:
            raise UserError(f"{lanes} lanes cannot serve a batch of {batch} from {groups} groups of blocks")
        return lanes
    found = 1
    while 2 * found <= min(MAX_LANES, groups) and batch % (2 * found) == 0:
        found *= 2
    return found
