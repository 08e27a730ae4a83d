"""A corruption for each task of the rows of a batch."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp

from ptm_jax.core import slots
from ptm_jax.core.streams import named
from ptm_jax.core.types import Array, Batch


@dataclasses.dataclass(frozen=True, kw_only=True)
class ByTask(slots.Composition):
    """Applies `parts[n]` to the rows of task n, None for none; each has its own random stream.

    `task` [B] int32 is the number of a row's task; a batch without it is of task 0
    (`data.rows.languages.pair_tasks`). A field that a part does not write is 0 in the rows of
    its task; shorter rows of fields are padded with 0.
    """

    parts: tuple

    def __call__(self, key: Array, batch: Batch) -> Batch:
        tasks = batch.get("task", jnp.zeros(len(batch["input_ids"]), jnp.int32))
        results = [
            batch if part is None else part(named(key, f"part{number}"), batch)
            for number, part in enumerate(self.parts)
        ]
        names = dict.fromkeys(name for result in results for name in result)
        return {name: _of_rows(tasks, [one.get(name) for one in results]) for name in names}

    def refusal(self, system) -> str | None:
        """Returns the first refusal of a part, or None."""
        return next(filter(None, (part.refusal(system) for part in slots.parts_of(self))), None)


def _of_rows(tasks: Array, values: list[Array | None]) -> Array:
    """Returns the field whose row b is that of value tasks[b]."""
    first = next(value for value in values if value is not None)
    if all(value is first for value in values):
        return first
    shapes = [value.shape for value in values if value is not None]
    shape = tuple(map(max, zip(*shapes, strict=True)))
    chosen = jnp.zeros(shape, first.dtype)
    for number, value in enumerate(values):
        if value is not None:
            more = [(0, size - n) for size, n in zip(shape, value.shape, strict=True)]
            wide = jnp.pad(value, more)
            mine = (tasks == number).reshape(-1, *[1] * (len(shape) - 1))
            chosen = jnp.where(mine, wide, chosen)
    return chosen
