"""The split and shard of every document, as a function of the index of documents alone."""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Iterator

import numpy as np

Place = tuple[int, int]
"""(order, copy): the hash of a text with the seed, and the number of the copy among equal texts."""


def held_out(share: np.ndarray, sizes: np.ndarray, heldout: float) -> np.ndarray:
    """Returns [N] bool: whether a document is held out.
    These are the documents with the least share, `heldout` of the bytes, at least one and never
    all."""
    held = np.zeros(len(share), bool)
    if heldout > 0 and len(share) > 1:
        by_share = np.argsort(share, kind="stable")
        ends = np.cumsum(sizes[by_share])
        count = int(np.searchsorted(ends, heldout * ends[-1])) + 1
        held[by_share[: min(count, len(share) - 1)]] = True
    return held


def cuts(sizes: np.ndarray, shard_bytes: int) -> np.ndarray:
    """Returns the starts of shards of about equal bytes, without the first.
    The documents have `sizes`; no shard is empty."""
    if not len(sizes):
        return np.zeros(0, np.int64)
    ends = np.cumsum(sizes)
    count = max(1, round(int(ends[-1]) / shard_bytes))
    starts = np.unique(np.searchsorted(ends, ends[-1] * np.arange(1, count) / count))
    return starts[(starts > 0) & (starts < len(sizes))]


def training(sizes: np.ndarray, train_bytes: int) -> int:
    """Returns the number of documents of `sizes` that train the tokenizer."""
    return int(np.searchsorted(np.cumsum(sizes), train_bytes)) + 1


@dataclasses.dataclass(frozen=True)
class Layout:
    """Split and shard of documents as a few bounds, for workers that see one document at a time.

    held      copies below this (share, copy) are held out
    starts    for each split, the places at which its shards begin, without the first
    trained   train documents below this place train the tokenizer; None: all
    """

    held: Place
    starts: dict[str, tuple[Place, ...]]
    trained: Place | None

    def of(self, order: int, share: int, copies: int) -> Iterator[tuple[str, int, bool]]:
        """Yields (split, shard, whether it trains the tokenizer) of each copy of a text."""
        bound, inside = self.held
        heldout_copies = copies if share < bound else inside if share == bound else 0
        for copy in range(copies):
            split, place = (
                ("heldout", (order, copy))
                if copy < heldout_copies
                else ("train", (order, copy - heldout_copies))
            )
            trains = split == "train" and (self.trained is None or place < self.trained)
            yield split, bisect.bisect_right(self.starts[split], place), trains

    def shards(self, split: str) -> int:
        """Returns the number of shards of a split that has documents."""
        return len(self.starts[split]) + 1


def layout(index: np.ndarray, heldout: float, shard_bytes: int, train_bytes: int) -> Layout:
    """Returns the layout of texts; index [4, N] uint64: order, share, size and copies of each."""
    order, share, sizes = (np.repeat(column, index[3].astype(np.int64)) for column in index[:3])
    sizes = sizes.astype(np.int64)
    held = held_out(share, sizes, heldout)
    bound = int(share[held].max()) if held.any() else 0
    starts, trained = {}, None
    for split, chosen in (("train", ~held), ("heldout", held)):
        by_order = np.argsort(order[chosen], kind="stable")
        places, extents = order[chosen][by_order], sizes[chosen][by_order]

        def place(i, places=places):
            return (int(places[i]), int(i - np.searchsorted(places, places[i])))

        starts[split] = tuple(place(i) for i in cuts(extents, shard_bytes))
        if split == "train" and (count := training(extents, train_bytes)) < len(places):
            trained = place(count)
    return Layout((bound, int((share[held] == bound).sum())), starts, trained)
