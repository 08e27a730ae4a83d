"""Reads torch pickles of named tensors (`pytorch_model.bin`) on request, without torch.

A pickle is a program. `torch_records` builds tensors and plain containers only, and refuses every
other name before any call. Numbers are mapped from the file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ptm_jax.convert.formats import torch_records
from ptm_jax.convert.formats.tensors import DTYPES, FLOATS, TYPES, Entry, box_of
from ptm_jax.core.reading import broken, shown, size_of


class Pickled:
    """A torch pickle of named tensors, memory-mapped."""

    def __init__(self, path: Path):
        self.path, self.size, self.metadata = path, size_of(path), {}
        if not self.size:
            raise broken(path, "is empty")
        self._tensors = _load(path)
        self.entries = {name: _entry(path, name, tensor) for name, tensor in self._tensors.items()}

    def read(self, name: str, index: tuple[slice, ...], keep: bool) -> np.ndarray:
        """Returns a copy of the part `index` of a tensor."""
        entry = self.entries[name]
        array = self._tensors[name].array(self.path)
        part = array[tuple(slice(*bounds) for bounds in box_of(index, entry.shape))]
        convert = entry.dtype in FLOATS and not keep
        return np.array(part, np.float32 if convert else DTYPES[entry.dtype], order="C")


def _load(path: Path) -> dict[str, Any]:
    """Returns {name: value} of the file, without running any code from it."""
    try:
        table = torch_records.table(path, strict=True)
    except (KeyboardInterrupt, SystemExit):
        raise
    except torch_records.Foreign as error:
        raise broken(
            path, f"wants to run {error}; tensors alone are read, and nothing was run"
        ) from None
    except Exception as error:  # a damaged pickle may end in any of Python's errors
        line = next(iter(str(error).splitlines()), "")[:200]
        raise broken(
            path, f"cannot be read as a torch file: {type(error).__name__}: {line}"
        ) from None
    if not isinstance(table, dict) or not all(isinstance(name, str) for name in table):
        raise broken(path, "holds no table of named tensors")
    return table


def _entry(path: Path, name: str, tensor: object) -> Entry:
    dense = isinstance(tensor, torch_records.Tensor)
    if not dense and not isinstance(tensor, torch_records.Sparse):
        raise broken(path, f"is no tensor but a {type(tensor).__name__}", name)
    if not dense or tensor.dtype not in DTYPES:
        kind = tensor.dtype if dense else "sparse"
        raise broken(
            path, f"is of type {shown(kind)}; these are read: {', '.join(TYPES)}, dense", name
        )
    return Entry(dtype=tensor.dtype, stored=tensor.shape, extents=())
