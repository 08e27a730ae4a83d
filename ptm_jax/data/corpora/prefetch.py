"""Grain's threads around an iterator of batches.
Importing Grain takes half a second, so only an opened stream does it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grain


class _Iterator(grain.DatasetIterator):
    """An iterator with `get_state` and `set_state` as Grain's."""

    def __init__(self, batches: Any):
        super().__init__()
        self._batches = batches

    def __next__(self) -> Any:
        return next(self._batches)

    def get_state(self) -> dict[str, Any]:
        return self._batches.get_state()

    def set_state(self, state: dict[str, Any]) -> None:
        self._batches.set_state(state)


class _Batches(grain.IterDataset):
    """The batches of one process as a Grain dataset."""

    def __init__(self, make: Callable[[], Any]):
        super().__init__()
        self._make = make

    def __iter__(self) -> grain.DatasetIterator:
        return _Iterator(self._make())


def prefetched(make: Callable[[], Any], size: int) -> grain.DatasetIterator:
    """Returns an iterator over the batches of `make()` and their states, `size` batches ahead."""
    return iter(
        grain.experimental.ThreadPrefetchIterDataset(_Batches(make), prefetch_buffer_size=size)
    )
