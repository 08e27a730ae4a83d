"""Reads a torch file of any Python values, such as Flair's models, without torch.
Nothing in the file is run.

`formats.torch_pickle` reads tables of tensors with torch's weights_only, which refuses the pickles
of protocol 4 that Flair writes. Here a class of the file becomes a `Record` with the attributes,
and a tensor a numpy array. Both layouts are read: torch's zip archive, and the row of pickles that
torch wrote before 1.6.
"""

from __future__ import annotations

import collections
import io
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ptm_jax.core.reading import broken, read_bytes

LARGEST = 1 << 32
TYPES = {
    "FloatStorage": "<f4",
    "DoubleStorage": "<f8",
    "HalfStorage": "<f2",
    "LongStorage": "<i8",
    "IntStorage": "<i4",
}
MAGIC = 0x1950A86A20F9469CFC6C
"""The first value of a file of torch before 1.6."""


class Record:
    """Stands for an object of any class: its attributes, and nothing that runs."""

    def __init__(self, *arguments: Any, **named: Any):
        pass

    def __setstate__(self, state: Any) -> None:
        if isinstance(state, dict):
            self.__dict__.update(state)

    def __setitem__(self, key: Any, value: Any) -> None:
        pass

    def append(self, value: Any) -> None:
        pass


def _tensor(
    storage: tuple[list[np.ndarray], str], offset: int, shape: tuple, strides: tuple, *ignored: Any
) -> Callable:
    """Returns a function that makes the array once the storages are read."""

    def array() -> np.ndarray:
        flat = storage[0][0]
        if len(shape) != len(strides) or offset < 0 or any(size < 0 for size in (*shape, *strides)):
            raise ValueError("a tensor with an odd shape")
        if offset + sum(
            (size - 1) * step for size, step in zip(shape, strides, strict=True)
        ) >= max(1, len(flat)):
            raise ValueError("a tensor larger than its numbers")
        steps = tuple(step * flat.itemsize for step in strides)
        return np.array(np.lib.stride_tricks.as_strided(flat[offset:], shape, steps))

    return array


class _Reader(pickle._Unpickler):
    """Python's own unpickler, which finds no class but those of tensors and plain containers."""

    storages: dict[str, tuple[list[np.ndarray], str]]

    def find_class(self, module: str, name: str) -> Any:
        if module == "torch" and name in TYPES:
            return TYPES[name]
        known = {
            ("torch._utils", "_rebuild_tensor_v2"): _tensor,
            ("collections", "OrderedDict"): collections.OrderedDict,
        }
        return known.get((module, name), Record)

    def persistent_load(self, pid: Any) -> Any:
        _, dtype, key, *_ = pid
        return self.storages.setdefault(str(key), ([], str(dtype)))


def read(path: Path) -> dict[str, Any]:
    """Returns the table that a torch file holds; arrays of tables of tensors are numpy's.
    Raises UserError."""
    raw = read_bytes(path, LARGEST)
    try:
        table = _archive(raw) if zipfile.is_zipfile(io.BytesIO(raw)) else _row(io.BytesIO(raw))
        return {name: _made(value) for name, value in table.items()}
    except (KeyboardInterrupt, SystemExit):
        raise
    except Exception as error:  # a damaged pickle may end in any of Python's errors
        raise broken(
            path, f"is no torch file of named values ({type(error).__name__}); save it again"
        ) from None


def _made(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _made(part) for name, part in value.items()}
    return value() if callable(value) and not isinstance(value, Record) else value


def _archive(raw: bytes) -> Any:
    with zipfile.ZipFile(io.BytesIO(raw)) as file:
        place = next(name for name in file.namelist() if name.endswith("/data.pkl")).removesuffix(
            "data.pkl"
        )
        reader = _Reader(io.BytesIO(file.read(f"{place}data.pkl")), encoding="utf-8")
        reader.storages = {}
        table = reader.load()
        for key, (numbers, dtype) in reader.storages.items():
            numbers.append(np.frombuffer(file.read(f"{place}data/{key}"), dtype))
    return table


def _row(file: io.BytesIO) -> Any:
    storages: dict[str, Any] = {}

    def value() -> Any:
        reader = _Reader(file, encoding="utf-8")
        reader.storages = storages
        return reader.load()

    if value() != MAGIC:
        raise ValueError("another file")
    value(), value()  # the protocol and the sizes of integers
    table = value()
    for key in value():
        numbers, dtype = storages[str(key)]
        count = int.from_bytes(file.read(8), "little")
        numbers.append(np.frombuffer(file.read(count * np.dtype(dtype).itemsize), dtype))
    return table
