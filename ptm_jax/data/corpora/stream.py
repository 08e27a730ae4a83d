"""Batches of a corpus as a function of (corpus, seed), with exact resumption.
They do not depend on the number of processes.

The global batch is divided into G lanes of B / G rows, G the largest power of two up to 64 that
divides B and does not exceed the number of groups. A group is a few blocks of the epoch's shuffled
order, of about 64 rows of tokens, joined so that packing can choose among them. Lane g has
groups g, g + G, ... of every epoch and yields their rows in order. The random numbers of a group
come from (seed, epoch, group), so the cursors (epoch, group, row) of the lanes are the whole state.
A process reads only the lanes that overlap its rows. Lanes end their epochs independently; in an
epoch no token is skipped or read twice.

`continuing` examples have a lane for every row (G = B) and groups of blocks that are adjacent in
the corpus, so that row b of a batch continues row b of the previous batch. At the end of a group
(its last row may be padded) the lane continues with other text without a mark, so a memory is stale
until it is filled again. If there are fewer blocks than rows of a batch, a group is a part of the
rows of one block. After the last epoch, finished lanes yield padding.

Grain reads and prefetches. A row is one element of a structured array, so a batch is one copy for
every lane.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from ptm_jax.core import fields
from ptm_jax.core.errors import UserError
from ptm_jax.core.slots import Examples
from ptm_jax.data.corpora import store
from ptm_jax.data.corpora.groups import Groups, Lane, MixedGroups, groups_of
from ptm_jax.data.languages import mix
from ptm_jax.data.rows.examples import Fields

MAX_LANES = 64
PREFETCH = 4


class _Batches:
    """Yields batches [rows of this process, ...] from the lanes that overlap them."""

    def __init__(
        self,
        groups: Groups | MixedGroups,
        numbers: range,
        *,
        lanes: int,
        width: int,
        low: int,
        high: int,
        epochs,
    ):
        self._width = width
        self._blank = np.zeros((), groups.row)
        self._blank["input_ids"] = groups.corpus.vocab.pad or 0
        self._lanes = [Lane(groups, n, lanes, epochs) for n in numbers]
        self._mine = slice(low - numbers[0] * width, high - numbers[0] * width)
        self._places = np.arange(low, high, dtype=np.int32)
        self._batches = 0

    def __next__(self) -> Fields:
        width, rows_read = self._width, 0
        out = np.empty(len(self._lanes) * width, self._blank.dtype)
        for number, lane in enumerate(self._lanes):
            rows = out[number * width : (number + 1) * width]
            count = lane.fill(rows)
            rows[count:] = self._blank
            rows_read += count
        if not rows_read:
            raise StopIteration
        self._batches += 1
        mine = out[self._mine]
        return {name: np.ascontiguousarray(mine[name]) for name in mine.dtype.names} | {
            "rows": self._places.copy()
        }

    def get_state(self) -> dict[str, Any]:
        """Returns the state in arrays, because Grain copies it for every prefetched batch."""
        return {
            "batches": self._batches,
            "cursors": np.array([lane.cursor for lane in self._lanes], np.int64),
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Restores the state. A lane whose cursor is negative is read from the start."""
        self._batches = int(state["batches"])
        for lane, cursor in zip(self._lanes, np.asarray(state["cursors"]).tolist(), strict=True):
            if cursor[0] >= 0:
                lane.seek(tuple(cursor))
            else:
                lane.replay(self._batches * self._width)


class Stream:
    """Iterator of batches {field: [B_local, ...] NumPy array} of a split.
    `rows` [B_local] are places in the global batch.

    batch           rows of the global batch; process p of P yields rows p * B / P to (p + 1) * B /
                    P
    epochs          None: endless. A number: every row comes exactly once an epoch, and the last
                    batches are filled with rows of padding (segment 0); every process then reads
                    the whole split, so that all end together
    common          a divisor of the batches of all streams that follow one another (`follow`): it
                    decides the lanes in place of `batch`

    Raises UserError for an empty split, a batch that the processes do not divide, examples that do
    not fit the vocabulary, or continuing examples of a split with less text than a batch.
    """

    cut = 0
    remarks: Mapping[str, int] = MappingProxyType({})

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
        common: int | None = None,
    ):
        if batch < 1 or batch % process_count or not 0 <= process_index < process_count:
            raise UserError(
                f"a batch of {batch} rows cannot be shared by {process_count} processes; "
                "choose a multiple"
            )
        spec = examples.spec(length, corpus.vocab)
        if wrong := [name for name in fields.moving(spec) if spec[name][0][:1] != (length,)]:
            raise UserError(
                f"the field {wrong[0]} moves with tokens, but is not [{length}, ...] in a "
                "row; see core.fields"
            )
        row = fields.row_type(spec)
        groups = groups_of(
            corpus, split, examples, length=length, batch=batch, seed=seed, row=row,
            sampled=epochs is None,
        )  # fmt: skip
        if common is not None and groups.consecutive:
            raise UserError(
                "rows that continue each other need batches of one size; set continues to False "
                "in the phases"
            )
        self._lanes = _lanes(common or batch, groups, epochs)
        self._identity = {
            "corpus": corpus.manifest["digest"], "split": split, "examples": repr(examples),
            "length": length,
            "batch": batch, "seed": seed, "lanes": self._lanes,
        }  # fmt: skip
        low, high = (
            process_index * batch // process_count,
            (process_index + 1) * batch // process_count,
        )
        width = batch // self._lanes
        # to end together, every process must know when the last lane ends
        self._numbers = (
            range(low // width, (high - 1) // width + 1) if epochs is None else range(self._lanes)
        )
        options = {"lanes": self._lanes, "width": width, "low": low, "high": high, "epochs": epochs}
        from ptm_jax.data.corpora.prefetch import prefetched

        self._iterator = prefetched(lambda: _Batches(groups, self._numbers, **options), PREFETCH)

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> Fields:
        return next(self._iterator)

    def state(self) -> dict[str, Any]:
        """Returns the position after the batches so far, in JSON types.
        It has the cursors of this process's lanes.

        `merge` combines the states of all processes.
        """
        state = self._iterator.get_state()
        cursors = np.asarray(state["cursors"]).tolist()
        lanes = {str(n): cursor for n, cursor in zip(self._numbers, cursors, strict=True)}
        return self._identity | {"batches": int(state["batches"]), "cursors": lanes}

    def restore(self, state: dict[str, Any]) -> None:
        """Continues from `state`, on any number of processes.

        A lane without a cursor in `state` (an unmerged state of another process count) is read
        again from the start, which is slow but exact. Raises UserError for a state of another
        stream, naming the difference.
        """
        changed = [k for k, v in self._identity.items() if state.get(k) != v]
        if changed:
            facts = "; ".join(f"{k} was {state.get(k)}, is {self._identity[k]}" for k in changed)
            raise UserError(
                f"the position was saved by another stream ({facts}); restore those settings"
            )
        cursors = [state["cursors"].get(str(n), (-1, 0, 0)) for n in self._numbers]
        self._iterator.set_state(
            {"batches": state["batches"], "cursors": np.array(cursors, np.int64)}
        )

    def follow(self, state: dict[str, Any]) -> None:
        """Continues from `state` of a stream with another batch, with its next rows."""
        self.restore(state | {"batch": self._identity["batch"], "batches": 0})

    def close(self) -> None:
        """Stops prefetching; deleting the stream does too."""
        self._iterator.close()

    def __del__(self):
        with contextlib.suppress(
            Exception
        ):  # it may not be complete, or the interpreter be shutting down
            self._iterator.close()


def merge(states: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Returns the states of all processes after the same number of batches as one.
    Raises UserError where they differ.

    A stream without cursors has one position for all processes. One of several streams has theirs.
    """
    states = list(states)
    several = {
        name: merge(s["streams"][name] for s in states) for name in states[0].get("streams", {})
    }
    facts = [
        {k: v for k, v in state.items() if k not in ("cursors", "streams")} for state in states
    ]
    if any(f != facts[0] for f in facts):
        raise UserError(
            "the processes' positions in the data belong to different steps; use an earlier "
            "checkpoint"
        )
    cursors = {k: v for state in states for k, v in state.get("cursors", {}).items()}
    cursors = {"cursors": cursors} if "cursors" in states[0] else {}
    return facts[0] | cursors | ({"streams": several} if several else {})


def rows_per_epoch(
    corpus: store.Corpus, examples: Examples, *, length: int, batch: int, sample: int = 8
) -> int:
    """Returns the rows of an epoch of the training text.
    They are counted in up to `sample` groups, and estimated from these if there are more. An epoch
    of a mixture reads the text of `Mixture.paced` once."""
    if isinstance(examples, mix.Mixture):
        parts, share = examples.paced(examples.parts(corpus, "train"))
        sizes = {"length": length, "batch": batch, "sample": sample}
        rows = [rows_per_epoch(part.corpus, part.examples, **sizes) for part in parts]
        return round(sum(rows) / share)
    groups = groups_of(
        corpus,
        "train",
        examples,
        length=length,
        batch=batch,
        seed=0,
        row=fields.row_type(examples.spec(length, corpus.vocab)),
    )
    chosen = np.linspace(0, len(groups) - 1, min(sample, len(groups))).astype(int)
    return round(np.mean([len(groups.cut(0, int(number))) for number in chosen]) * len(groups))


def measure(
    corpus: store.Corpus, examples: Examples, *, length: int, batch: int, seconds: float = 2.0
) -> dict[str, float]:
    """Returns `tokens_per_second` and `utilisation` of one process's stream.
    Utilisation is the share of places that are not padding."""
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


def _lanes(batch: int, groups: Groups | MixedGroups, epochs: int | None) -> int:
    """Returns the number of lanes.
    Raises UserError where an endless stream of continuing examples has fewer rows."""
    if groups.consecutive:
        rows = groups.source.tokens // groups.length
        if epochs is None and rows < batch:
            raise UserError(
                f"the split {groups.split} has {rows} rows of {groups.length} tokens, too "
                f"few for a batch of {batch} whose "
                "rows continue each other; give a smaller batch, shorter rows or more text, "
                "or set examples.continuing=False"
            )
        return batch
    lanes = 1
    while epochs is None and 2 * lanes <= min(MAX_LANES, len(groups)) and batch % (2 * lanes) == 0:
        lanes *= 2
    return lanes
