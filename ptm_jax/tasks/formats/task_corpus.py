"""A corpus of the examples of a downstream task: its records, and how training reads them."""

from __future__ import annotations

import dataclasses
import functools
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ptm_jax.core import slots
from ptm_jax.core.errors import UserError
from ptm_jax.data.corpora import store
from ptm_jax.tasks.formats.taskrows import Record, TaskStream

FORMAT = "labelled-2"


def save_records(path: Path, records: Sequence[Record]) -> None:
    """Writes two arrays per field: the concatenated values, and their lengths.
    The length is -1 where a record lacks the field."""
    arrays = {}
    for name in dict.fromkeys(name for record in records for name in record):
        parts = [np.atleast_1d(record[name]) for record in records if name in record]
        arrays[name] = np.concatenate(parts)
        arrays[f"{name}.lengths"] = np.array(
            [len(np.atleast_1d(r[name])) if name in r else -1 for r in records], np.int32
        )
    np.savez(path, **arrays)


def load_records(path: Path) -> list[Record]:
    """The records that `save_records` wrote. Raises UserError."""
    try:
        with np.load(path) as file:
            arrays = dict(file)
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        raise UserError(
            f"{path} is missing or damaged; delete {path.parent} and run again"
        ) from None
    names = [name for name in arrays if not name.endswith(".lengths")]
    records: list[dict[str, np.ndarray]] = [{} for _ in range(len(arrays[f"{names[0]}.lengths"]))]
    for name in names:
        lengths = arrays[f"{name}.lengths"]
        parts = np.split(arrays[name], np.cumsum(np.maximum(lengths, 0))[:-1])
        for record, part, length in zip(records, parts, lengths, strict=True):
            if length >= 0:
                record[name] = part
    return records


@dataclasses.dataclass(frozen=True)
class TaskCorpus(store.Corpus):
    """A prepared directory of a task's examples.
    Its baseline predicts the frequency of each class."""

    baseline = "class frequencies"

    @functools.cached_property
    def _records(self) -> dict[str, list[Record]]:
        return {split: load_records(self.dir / f"{split}.npz") for split in store.SPLITS}

    def records(self, split: str = "train") -> list[Record]:
        """The encoded examples of a split."""
        return self._records[self._split(split)]

    @property
    def uncounted(self) -> tuple[int, ...]:
        """The entries of `counts` that the baseline leaves out.
        None, or the only entry if there are no classes."""
        return () if self.size("train")["counts"] else (0,)

    def counts(self, split: str = "train") -> np.ndarray:
        """[C] int64: the number of examples of each class; [1] without classes: of all examples."""
        facts = self.size(split)
        return np.array(facts["counts"] or [facts["examples"]], np.int64)

    def stream(self, split: str, examples: slots.Examples, **options: Any) -> TaskStream:
        """Batches of a split."""
        return TaskStream(self, split, examples, **options)
