"""Shared parts of the checkpoint formats: a tensor's place in a file, and partial reads.

Files are not trusted. Code that creates an `Entry` must check that its extents lie in the file and
match its shape. Every error is a one-line `UserError` that names the file and the tensor.
"""

from __future__ import annotations

import dataclasses
import math
import mmap
import os
import sys
import threading
from pathlib import Path

import ml_dtypes
import numpy as np

from ptm_jax.core.reading import broken, reading

# Supported element types, by their safetensors names. All files are little-endian.
DTYPES = {
    "BOOL": np.dtype("?"),
    "U8": np.dtype("u1"),
    "I8": np.dtype("i1"),
    "I16": np.dtype("<i2"),
    "U16": np.dtype("<u2"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "I32": np.dtype("<i4"),
    "U32": np.dtype("<u4"),
    "F32": np.dtype("<f4"),
    "F64": np.dtype("<f8"),
    "I64": np.dtype("<i8"),
    "U64": np.dtype("<u8"),
}
FLOATS = frozenset({"F16", "BF16", "F32", "F64"})
TYPES = {dtype.name: name for name, dtype in DTYPES.items()}
"""Maps the types' names in numpy, torch and Flax to those of safetensors."""

_MAPPED = 1 << 22  # bytes; larger arrays are allocated with mmap
_PIECE = (
    1 << 22
)  # bytes read at a time if they must be converted or sliced; a piece stays in the cache
ALIGN = 64  # bytes; XLA on a CPU uses an aligned array without a copy

Box = tuple[tuple[int, int], ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Entry:
    """Location of a tensor in its file.

    dtype    element type, one of `DTYPES`
    stored   shape in the file, row-major
    extents  (offset, length) of the byte ranges that together form the array
    axes     permutation of the stored axes to torch's layout; None if they are equal
    """

    dtype: str
    stored: tuple[int, ...]
    extents: tuple[tuple[int, int], ...]
    axes: tuple[int, ...] | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape in torch's layout."""
        return self.stored if self.axes is None else tuple(self.stored[axis] for axis in self.axes)


def bytes_of(dtype: str, shape: tuple[int, ...]) -> int | None:
    """Returns the size of an array in bytes.
    None if no array can have that shape, not even an empty one."""
    if (
        len(shape) > 32
        or math.prod(max(dim, 1) for dim in shape) * DTYPES[dtype].itemsize >= 1 << 62
    ):
        return None
    return math.prod(shape) * DTYPES[dtype].itemsize


def aligned(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Returns an uninitialised array, aligned to 64 bytes."""
    return _within(_memory(math.prod(shape) * dtype.itemsize + ALIGN), shape, dtype)


def _memory(length: int) -> np.ndarray:
    """Allocates `length` bytes.

    numpy requests huge pages. If memory is full of cached files, the system must first move other
    pages to make room: the first touch of 2 GB took 3 s with huge pages and 0.8 s with small pages
    (Linux 6, a virtual machine). MAP_POPULATE allocates all pages in one call and saves the page
    faults.
    """
    if length < _MAPPED:
        return np.empty(length, np.uint8)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_POPULATE", 0)
    try:
        return np.frombuffer(mmap.mmap(-1, length, flags=flags), np.uint8)
    except OSError:
        raise MemoryError(f"{length:,} bytes for a tensor") from None


def _within(memory: np.ndarray, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    start = -memory.ctypes.data % ALIGN
    return memory[start : start + math.prod(shape) * dtype.itemsize].view(dtype).reshape(shape)


class Room:
    """Reusable memory for arrays that are needed one at a time.
    Memory is reused once no array refers to it.

    New pages cost more time than reading into them, and all layers of a stack have the same size.
    Memory is reused only for exactly the same size: otherwise a small array that is kept would hold
    the memory of a large one.
    """

    def __init__(self) -> None:
        self._memory, self._lock = np.empty(0, np.uint8), threading.Lock()

    def take(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """Returns an uninitialised array, as `aligned` does."""
        length = math.prod(shape) * dtype.itemsize + ALIGN
        with self._lock:
            # Views count as references. Two references are our own: the attribute and the argument.
            if self._memory.size != length or sys.getrefcount(self._memory) > 2:
                self._memory = np.empty(0, np.uint8)
                self._memory = _memory(length)
            return _within(self._memory, shape, dtype)


def box_of(index: tuple[slice, ...], shape: tuple[int, ...]) -> Box:
    """Returns (start, stop) along every axis for an index of slices without steps.
    Trailing axes may be omitted."""
    if len(index) > len(shape) or not all(
        isinstance(part, slice) and part.step in (None, 1) for part in index
    ):
        raise ValueError(f"{index} is not an index of slices without steps into shape {shape}")
    full = (*index, *[slice(None)] * (len(shape) - len(index)))
    bounds = (part.indices(dim)[:2] for part, dim in zip(full, shape, strict=True))
    return tuple((start, max(start, stop)) for start, stop in bounds)


@dataclasses.dataclass(frozen=True, eq=False)
class Stored:
    """A file of raw row-major arrays. It is opened for each read.

    path      the file
    size      its size in bytes when its table was read
    entries   {torch name: location}
    metadata  the metadata in the file
    room      memory for the arrays that are read, shared by all files of a checkpoint
    """

    path: Path
    size: int
    entries: dict[str, Entry]
    metadata: dict[str, str] = dataclasses.field(default_factory=dict)
    room: Room = dataclasses.field(default_factory=Room, repr=False)

    def read(self, name: str, index: tuple[slice, ...], keep: bool) -> np.ndarray:
        """Returns the part `index` of a tensor; a transposed view if the file stores the axes in
        another order."""
        entry = self.entries[name]
        kind = DTYPES[entry.dtype]
        target = np.dtype(np.float32) if entry.dtype in FLOATS and not keep else kind
        box = box_of(index, entry.shape)
        if entry.axes is not None:
            box = tuple(box[entry.axes.index(axis)] for axis in range(len(box)))
        out = self.room.take(tuple(stop - start for start, stop in box), target)
        if out.size:
            with reading(self.path), self.path.open("rb", buffering=0) as file:
                if os.fstat(file.fileno()).st_size != self.size:
                    raise broken(self.path, "has changed its size since it was opened")
                _Filler(self.path, file.fileno(), name, entry, kind).fill(out, 0, entry.stored, box)
        return out if entry.axes is None else out.transpose(entry.axes)


class _Filler:
    """Reads parts of one tensor. Offsets count elements from the start of the tensor."""

    def __init__(self, path: Path, descriptor: int, name: str, entry: Entry, kind: np.dtype):
        self.path, self.descriptor, self.name, self.entry, self.kind = (
            path,
            descriptor,
            name,
            entry,
            kind,
        )
        self.scratch = np.empty(0, np.uint8)

    def fill(self, out: np.ndarray, offset: int, shape: tuple[int, ...], box: Box) -> None:
        """Reads into `out` the `box` of the array of the given shape that starts at `offset`."""
        inner = math.prod(shape[1:])
        if all(bounds == (0, dim) for bounds, dim in zip(box[1:], shape[1:], strict=True)):
            self.run(out.reshape(-1), offset + (box[0][0] * inner if box else 0))
            return
        (start, stop), rows = box[0], max(1, _PIECE // (inner * self.kind.itemsize))
        if rows == 1:
            for i in range(start, stop):
                self.fill(out[i - start], offset + i * inner, shape[1:], box[1:])
            return
        cut = tuple(slice(*bounds) for bounds in box[1:])
        for i in range(start, stop, rows):
            n = min(rows, stop - i)
            raw = self.borrow(n * inner)
            self.bytes(raw, (offset + i * inner) * self.kind.itemsize)
            block = raw.view(self.kind).reshape(n, *shape[1:])
            convert(block[(slice(None), *cut)], out[i - start : i - start + n])

    def run(self, out: np.ndarray, offset: int) -> None:
        """Reads consecutive elements from `offset` into a flat array."""
        if out.dtype == self.kind and self.kind != np.bool_:
            self.bytes(out.view(np.uint8), offset * self.kind.itemsize)
            return
        step = _PIECE // self.kind.itemsize
        for i in range(0, out.size, step):
            part = out[i : i + step]
            raw = self.borrow(part.size)
            self.bytes(raw, (offset + i) * self.kind.itemsize)
            convert(raw.view(self.kind), part)

    def borrow(self, elements: int) -> np.ndarray:
        """Returns scratch bytes for `elements`, valid until the next call."""
        length = elements * self.kind.itemsize
        if self.scratch.size < length:
            self.scratch = aligned((length,), np.dtype(np.uint8))
        return self.scratch[:length]

    def bytes(self, into: np.ndarray, start: int) -> None:
        """Reads bytes of the tensor from `start`, across extents."""
        view, done = memoryview(into), 0
        for offset, length in self.entry.extents:
            if start >= length:
                start -= length
                continue
            while start < length and done < len(view):
                got = os.preadv(
                    self.descriptor, [view[done : done + length - start]], offset + start
                )
                if got <= 0:
                    raise broken(self.path, "ends within its data", self.name)
                done, start = done + got, start + got
            if done == len(view):
                return
            start = 0
        raise broken(self.path, "ends within its data", self.name)


def convert(source: np.ndarray, out: np.ndarray) -> None:
    """Computes `out[...] = source`, exactly also for bfloat16 NaN.

    Any nonzero byte of a boolean is True.
    """
    if source.dtype == DTYPES["BF16"] and out.dtype == np.float32:
        # numpy's cast calls a function pointer for each element
        np.left_shift(source.view(np.uint16), 16, out=out.view(np.uint32), dtype=np.uint32)
    elif source.dtype == np.bool_:
        np.not_equal(source.view(np.uint8), 0, out=out)
    else:
        with np.errstate(over="ignore", invalid="ignore"):
            np.copyto(out, source, casting="unsafe")
