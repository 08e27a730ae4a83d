"""Batches of task examples: truncated, sorted by length, padded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ptm_jax.core.errors import UserError
from ptm_jax.inference.text.pair_scores import cut_to

if TYPE_CHECKING:
    from ptm_jax.core.types import Vocab
    from ptm_jax.data.corpora.store import Corpus


SHORTEST = 16  # rows are padded to powers of two from here to the length
POOL = 50  # number of batches that are sorted by length together
ALONG = ("input_ids", "segment_ids", "positions", "token_type_ids")

Record = Mapping[str, np.ndarray]
"""The fields of an example, or of a row."""


class TaskStream:
    """Iterator of batches {field: [B_local, ...]} of rows of similar length: of the longer side,
    where a row has a source and a target. Rows are padded to a power of two of at most `length`.

    Each example occurs once per epoch. The last batch of an epoch is padded with rows of zero
    weight. `cut` counts truncated texts, `remarks` other effects of the length. The position is the
    number of batches.
    """

    def __init__(
        self, corpus: Corpus, split: str, examples: Any, *, length: int, batch: int, seed: int,
        epochs: int | None = None, process_index: int = 0, process_count: int = 1,
    ):  # fmt: skip
        each = examples.readings
        if batch < 1 or batch % (process_count * each):
            asked = f"questions of {each} readings" if each > 1 else "rows"
            raise UserError(
                f"a batch of {batch} rows cannot be shared by {process_count} processes in "
                f"{asked}; choose a multiple of "
                f"{process_count * each}"
            )
        self._vocab, self._examples, self._batch, self._seed, self._epochs = (
            corpus.vocab,
            examples,
            batch,
            seed,
            epochs,
        )
        self._groups, self.remarks = examples.features(
            corpus.tokenizer(), corpus.records(split), length
        )
        self.cut = self.remarks.pop("cut", 0)
        self._draw = examples.drawing(corpus.tokenizer(), length) if split == "train" else None
        self._spellings = None if examples.alphabet is None else examples.table(corpus.tokenizer())
        self._longest = np.array(
            [
                max(np.size(value) for row in group for value in row.values())
                for group in self._groups
            ]
        )
        share = batch // process_count
        self._length, self._part = length, (process_index * share, (process_index + 1) * share)
        self._identity = {
            "corpus": corpus.manifest["digest"], "split": split, "length": length, "batch": batch,
            "seed": seed,
        }  # fmt: skip
        self._done, self._order = 0, (-1, [])

    @property
    def _each(self) -> int:
        """Examples of a batch."""
        return self._batch // self._examples.readings

    @property
    def per_epoch(self) -> int:
        """Batches of an epoch."""
        return -(-len(self._groups) // self._each)

    def __iter__(self) -> TaskStream:
        return self

    def __next__(self) -> dict[str, np.ndarray]:
        epoch, number = divmod(self._done, self.per_epoch)
        if self._epochs is not None and epoch >= self._epochs:
            raise StopIteration
        if self._order[0] != epoch:
            self._order = epoch, self._shuffled(epoch)
        self._done += 1
        return self._made(self._order[1][number], (self._seed, epoch, number))

    def state(self) -> dict[str, Any]:
        """The position after the batches so far; the same on every process."""
        return self._identity | {"batches": self._done}

    def restore(self, state: dict[str, Any]) -> None:
        """Continues from `state`, on any number of processes.
        Raises UserError for a state of another stream."""
        if changed := [k for k, v in self._identity.items() if state.get(k) != v]:
            facts = "; ".join(f"{k} was {state.get(k)}, is {self._identity[k]}" for k in changed)
            raise UserError(
                f"the position was saved by another stream ({facts}); continue with those values"
            )
        self._done = int(state["batches"])

    def close(self) -> None:
        """Does nothing: no other thread is used."""

    def _shuffled(self, epoch: int) -> list[np.ndarray]:
        """Indices of the examples of each batch: shuffled, sorted by length within pools, batches
        shuffled again."""
        rng = np.random.default_rng((self._seed, epoch))
        rows, size = rng.permutation(len(self._groups)), self._each * POOL
        batches = []
        for start in range(0, len(rows), size):
            pool = rows[start : start + size]
            pool = pool[np.argsort(self._longest[pool], kind="stable")]
            made = [pool[i : i + self._each] for i in range(0, len(pool), self._each)]
            batches += [made[i] for i in rng.permutation(len(made))]
        return batches

    def _made(self, numbers: np.ndarray, seed: tuple[int, ...]) -> dict[str, np.ndarray]:
        rows = [row for number in numbers for row in self._groups[number]]
        longest = int(self._longest[numbers].max())
        if self._draw is not None:
            rows = self._draw(rows, np.random.default_rng(seed))
            longest = max(np.size(value) for row in rows for value in row.values())
        longest = max(SHORTEST, longest)
        width = min(1 << (longest - 1).bit_length(), self._length)
        batch = padded(rows, self._examples, self._vocab, width, self._batch)
        batch["rows"] = np.arange(self._batch, dtype=np.int32)
        if self._spellings is not None:
            batch["characters"] = self._spellings[batch["input_ids"]].astype(np.int32)
        return {name: value[slice(*self._part)] for name, value in batch.items()}


def padded(
    rows: Sequence[Record], examples: Any, vocab: Vocab, width: int, count: int
) -> dict[str, np.ndarray]:
    """`count` rows of `width` tokens {field: [count, ...]}, empty ones after `rows`."""
    batch = {}
    for name, (shape, dtype) in examples.spec(width, vocab).items():
        blank = (vocab.pad or 0) if name.endswith("input_ids") else examples.fill.get(name, 0)
        batch[name] = made = np.full((count, *shape), blank, dtype)
        values = [row[name] for row in rows]
        if shape and rows:
            sizes = np.array([len(value) for value in values])
            made[: len(rows)][np.arange(shape[0]) < sizes[:, None]] = np.concatenate(values)
        else:
            made[: len(rows)] = values
    if "positions" in batch:
        batch["positions"][:] = np.arange(width)
    return batch


def spec_of(
    length: int, along: Sequence[str] = (), one: Sequence[str] = ()
) -> dict[str, tuple[tuple[int, ...], type]]:
    """{field: (shape of one row, dtype)} of int32 fields.
    `ALONG` and `along` have shape [L], `one` has shape []."""
    return {name: ((length,), np.int32) for name in (*ALONG, *along)} | {
        name: ((), np.int32) for name in one
    }


def row_of(ids: np.ndarray, types: np.ndarray, **fields: Any) -> dict[str, Any]:
    """A row: the fields of all texts, and others."""
    real, places = np.ones(len(ids), np.int32), np.arange(len(ids), dtype=np.int32)
    return {
        "input_ids": ids,
        "token_type_ids": types,
        "segment_ids": real,
        "positions": places,
        **fields,
    }


def tokens_of(record: Record, begin: int, end: int, among: Any = True) -> np.ndarray:
    """[2] int32: the first and the last of these tokens from character `begin` to `end`.
    -1 without any."""
    inside = np.flatnonzero((record["starts"] < end) & (record["ends"] > begin) & among)
    return np.array(inside[[0, -1]] if len(inside) else (-1, -1), np.int32)


def shortened(
    first: np.ndarray, second: np.ndarray | None, size: int
) -> tuple[np.ndarray, np.ndarray | None]:
    """Truncates texts at their ends to fit `size` tokens.
    The longer text of a pair is cut first."""
    return (first[:size], None) if second is None else cut_to(first, second, size)
