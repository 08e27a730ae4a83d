"""Size and speed of a model: layers, parameters, operations, bytes on disk, texts per second.

found = facts(load("small"), load("teacher"), "small", task, ["SST-2"], length=32)
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from ptm_jax.adapt.parameters import levels
from ptm_jax.core.errors import UserError
from ptm_jax.core.towers import Tower
from ptm_jax.inference.pretrained import Pretrained
from ptm_jax.inference.text import exits
from ptm_jax.kernels import integers
from ptm_jax.tasks import evaluating
from ptm_jax.tasks.formats import taskrows
from ptm_jax.tasks.formats.taskdata import Remarks
from ptm_jax.tasks.kinds.base import kind_of, rows_of
from ptm_jax.training.steps.flops import flops

if TYPE_CHECKING:
    from ptm_jax.core.types import Params
    from ptm_jax.tasks.catalogue import Task


BATCHES = (1, 32)
COLUMNS = (
    "layers", "nonzero", "gflops", "megabytes", *(f"texts_{n}" for n in BATCHES),
    *(f"times_{n}" for n in BATCHES), "peak_mb"
)  # fmt: skip
Rows = Mapping[str, np.ndarray]


def facts(
    model: Pretrained, beside: Pretrained, folder: str | os.PathLike, task: Task, data: Any, *,
    length: int,
    speed: float | None = None, rounds: int = 9,
) -> dict[str, Any]:  # fmt: skip
    """Returns `COLUMNS` and "parameters" of a model that reads rows of `length` tokens.

    layers      of the encoder; None where it declares no levels (`slots.Encoder.level_of`)
    nonzero     parameters that are not 0
    gflops      10^9 operations of the products of a row; with `speed`, the mean share of the layers
                that texts passed
    megabytes   10^6 bytes of the parameters' files in `folder`
    texts_B     texts of the task's held-out data a second in batches of B rows of `length`, the
                median of `rounds`
    times_B     how many times as fast as `beside`, which takes turns with it: the median of the
                rounds
    peak_mb     10^6 bytes that the program of 32 rows holds at once: parameters, inputs, results
                and temporaries
    speed       threshold at which a text leaves a layer (`inference.text.exits`); None: no text
                does

    Raises UserError for a model without the head of the task.
    """
    first, second = (
        _Timed(model, task, data, length, speed),
        _Timed(beside, task, data, length, None),
    )
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(model.params[model.tower])]
    figures: dict[str, Any] = {
        "layers": _layers(model),
        "parameters": sum(leaf.size for leaf in leaves),
        "nonzero": sum(int(np.count_nonzero(leaf)) for leaf in leaves),
        "gflops": first.operations() / 1e9,
        "megabytes": _bytes(Path(folder)) / 1e6,
        "peak_mb": first.memory() / 1e6,
    }
    for rows in BATCHES:
        pairs = np.array([(first.seconds(rows), second.seconds(rows)) for _ in range(1 + rounds)])[
            1:
        ]
        figures[f"texts_{rows}"] = float(1 / np.median(pairs[:, 0]))
        figures[f"times_{rows}"] = float(np.median(pairs[:, 1] / pairs[:, 0]))
    return figures


class _Timed:
    """A model's program on held-out texts."""

    def __init__(self, model: Pretrained, task: Task, data: Any, length: int, speed: float | None):
        self.model, self.speed, self.length = model, speed, min(length, model.limit or length)
        spec = evaluating.task_for(model, task).examples
        self.head = kind_of(spec).head
        if self.head not in model.module.heads:
            raise UserError(
                f"{model.system.name} has no head {self.head!r} for {task.name}; fine-tune "
                "it on the task"
            )
        examples = spec.examples(evaluating.heldout_of(task, data), Remarks(), True)[: max(BATCHES)]
        groups, _ = rows_of(model, spec, examples, self.length)
        every = [group[0] for group in groups]
        padded = taskrows.padded(
            [every[i % len(every)] for i in range(max(BATCHES))], spec, model.vocab, self.length, 32
        )
        self._rows = {name: np.asarray(value) for name, value in padded.items()}
        self._params = jax.tree.map(jax.numpy.asarray, model.weights)
        self._programs: dict[int, Callable[..., Any]] = {}

    def _part(self, rows: int, number: int = 0) -> Rows:
        part = {
            name: value[number * rows : (number + 1) * rows] for name, value in self._rows.items()
        }
        return part | {"rows": np.arange(rows, dtype=np.int32)}

    def _call(self, params: Params, batch: Rows) -> Any:
        tower = Tower(self.model.module, params)
        return tower.read(self.head, tower(batch), batch)

    def _program(self, rows: int) -> Any:
        if rows not in self._programs:
            self._programs[rows] = (
                jax.jit(self._call).lower(self._params, self._part(rows)).compile()
            )
        return self._programs[rows]

    def operations(self) -> float:
        """Operations of the products of one row."""
        with integers.portable():
            operations = flops(self._call, self._params, self._part(1))
        if self.speed is None:
            return operations
        passed = exits.classify(self.model, self._part(max(BATCHES)), self.speed).layers
        return operations * float(np.mean(passed)) / self.model.module.encoder.stack.layers

    def memory(self) -> int:
        """Bytes that the program of the largest batch holds at once."""
        analysis = self._program(max(BATCHES)).memory_analysis()
        return (
            analysis.argument_size_in_bytes
            + analysis.output_size_in_bytes
            + analysis.temp_size_in_bytes
        )

    def seconds(self, rows: int) -> float:
        """Seconds of a text in batches of `rows`, over several batches."""
        parts = [self._part(rows, number) for number in range(min(8, max(BATCHES) // rows))]
        start = time.perf_counter()
        for part in parts:
            if self.speed is None:
                jax.block_until_ready(self._program(rows)(self._params, part))
            else:
                exits.classify(self.model, part, self.speed)
        return (time.perf_counter() - start) / (rows * len(parts))


def _layers(model: Pretrained) -> int | None:
    places = levels.parameter_paths(
        {model.tower: model.params[model.tower]}, {model.tower: model.module}
    )
    known = [place for place in places.values() if place.known is not None]
    return known[0].top - 1 if known else None


def _bytes(folder: Path) -> int:
    return sum(
        file.stat().st_size for file in (folder / "checkpoints").rglob("*") if file.is_file()
    )
