"""Checkpoints that hold a low-rank change of each weight for each of several tasks: the released
files of JinaEmbeddings-v3 (Sturua et al. 2024, arXiv 2409.10173, section 3.4)."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from ptm_jax.convert.config import Config
from ptm_jax.convert.files import Tensors
from ptm_jax.core.errors import UserError, unknown

ORIGINAL = re.compile(r"\.parametrizations\.weight\.original$")
CHANGE = ".parametrizations.weight.0.lora_"


class TaskTensors(Tensors):
    """A table in which the change of task `task` is added to each weight.

    A file has `X.parametrizations.weight.original` W for the weight X, and lora_A and lora_B, one
    matrix for each task. The weight is W + scale B A of a dense layer, W + scale A B of a table.
    """

    def __init__(self, base: Tensors, task: int, scale: float):
        self.folder, self.files, self.base, self.task, self.scale = (
            base.folder,
            base.files,
            base,
            task,
            scale,
        )
        self._tables = {
            ORIGINAL.sub(".weight", name): name for name in base.names() if CHANGE not in name
        }

    def shape(self, name: str) -> tuple[int, ...]:
        return self.base.shape(self._tables[name])

    def dtype(self, name: str) -> str:
        return self.base.dtype(self._tables[name])

    def rows(self, name: str) -> int:
        return self.base.rows(self._tables[name])

    def file(self, name: str) -> Path:
        return self.base.file(self._tables[name])

    def read_slice(self, name: str, index: tuple[slice, ...], keep: bool = False) -> np.ndarray:
        source = self._tables[name]
        value = self.base.read_slice(source, index, keep)
        if not ORIGINAL.search(source):
            return value
        a, b = (self._change(source, part) for part in "AB")
        change = b @ a if b.shape[0] == self.shape(name)[0] else a @ b
        if change.shape != self.shape(name):
            raise UserError(
                f"{self.file(name)}: the change of {name} is {list(change.shape)}; its weight is "
                f"{list(self.shape(name))}"
            )
        return value + self.scale * change[index]

    def _change(self, source: str, part: str) -> np.ndarray:
        """Returns lora_A or lora_B of the task."""
        name = ORIGINAL.sub(CHANGE + part, source)
        if name not in self.base:
            raise UserError(f"{self.base.file(source)} has no tensor {name!r}, which a task needs")
        return self.base.read(name)[self.task]


def of_task(tensors: Tensors, config: Config) -> Tensors:
    """Returns the tensors of the task that a config names (`lora_task`), the weights without
    changes if it names none. Raises UserError for an unknown task."""
    task = config("lora_task", str, None)
    if task is None:
        return tensors
    tasks = config("lora_adaptations", list, None) or []
    if task not in tasks:
        raise UserError(f"{config.file}: {unknown('lora_task', task[:100], map(str, tasks))}")
    scale = config("lora_alpha", float, 1.0) / config.positive("lora_rank", 4)
    return TaskTensors(tensors, tasks.index(task), scale)
