"""Reads torch pickles (`pytorch_model.bin`) on request, by torch's restricted reader only.

A pickle is a program. `torch.load(weights_only=True)` only builds tensors and plain containers, and
refuses everything else before any call. Files written before torch 1.6 are not zip archives and
cannot be mapped; they are read as a whole.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ptm_jax.convert.formats.tensors import DTYPES, FLOATS, TYPES, Entry, box_of, bytes_of
from ptm_jax.core.reading import broken, shown, size_of


class Pickled:
    """A torch pickle of named tensors, memory-mapped if the file allows it."""

    def __init__(self, path: Path):
        self.path, self.size, self.metadata = path, size_of(path), {}
        if not self.size:
            raise broken(path, "is empty")
        self._tensors = _load(path)
        self.entries = {name: _entry(path, name, tensor) for name, tensor in self._tensors.items()}

    def read(self, name: str, index: tuple[slice, ...], keep: bool) -> np.ndarray:
        """Returns a copy of the part `index` of a tensor."""
        import torch

        entry = self.entries[name]
        part = self._tensors[name][tuple(slice(*bounds) for bounds in box_of(index, entry.shape))]
        if entry.dtype in FLOATS and not keep:
            return np.array(part.float().numpy())
        if entry.dtype == "BF16":
            return np.array(part.contiguous().view(torch.int16).numpy()).view(DTYPES["BF16"])
        return np.array(part.numpy())


def _load(path: Path) -> dict[str, Any]:
    """Returns {name: tensor} of the file, without running any code from it."""
    try:
        import torch
    except ImportError:
        raise broken(
            path,
            "is a torch pickle, and torch is not installed; pip install torch, or use safetensors",
        ) from None
    try:
        table = torch.load(
            path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path)
        )
    except Exception as error:
        text = str(error)
        if code := re.search(r"GLOBAL ([\w.]+)", text):
            raise broken(
                path,
                f"wants to run {code[1]}; torch's weights_only refused it, and nothing was run",
            ) from None
        line = next(iter(text.splitlines()), "")[:200]
        raise broken(
            path, f"cannot be read by torch with weights_only: {type(error).__name__}: {line}"
        ) from None
    if not isinstance(table, Mapping) or not all(isinstance(name, str) for name in table):
        raise broken(path, "holds no table of named tensors")
    return dict(table)


def _entry(path: Path, name: str, tensor: Any) -> Entry:
    import torch

    if not isinstance(tensor, torch.Tensor):
        raise broken(path, f"is no tensor but a {type(tensor).__name__}", name)
    dtype = TYPES.get(str(tensor.dtype).removeprefix("torch."))
    if dtype is None or tensor.layout is not torch.strided or tensor.device.type != "cpu":
        kind = (
            f"{str(tensor.dtype).removeprefix('torch.')}, "
            f"{str(tensor.layout).removeprefix('torch.')}"
        )
        raise broken(
            path, f"is of type {shown(kind)}; these are read: {', '.join(TYPES)}, dense", name
        )
    if bytes_of(dtype, tuple(tensor.shape)) is None:
        raise broken(
            path, f"has the shape {shown(list(tensor.shape))}, which no array can have", name
        )
    return Entry(dtype=dtype, stored=tuple(tensor.shape), extents=())
