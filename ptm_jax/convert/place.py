"""Reads tensors directly into shards.
Memory holds the shards and one tensor, or a few blocks of its rows."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np

from ptm_jax.convert.formats.tensors import ALIGN, Box, aligned, box_of

Index = tuple[slice, ...]

_LARGE = 1 << 16  # elements; a smaller array fits in the cache
_LINE, _STRIP = 16, 64  # elements: of a cache line, of a strip of `copy`
_THREADS = min(8, os.cpu_count() or 1)  # each holds one block
_BLOCK = 1 << 21  # bytes that a thread reads and distributes at a time; a block stays in the cache


def place(
    shape: Sequence[int],
    dtype: Any,
    sharding: jax.sharding.Sharding,
    read: Callable[[Index], np.ndarray],
    *,
    lead: int = 0,
    rows: int | None = None,
) -> jax.Array:
    """Returns the array of the given shape under `sharding`, with the values of `read(index)`.

    read  returns the part at an index of slices, one per axis. It is called once per part, even if
          several devices hold the part, and only for parts that the devices of this process hold
    lead  the number of leading axes that stack separate tensors of the file. `read` is called for
          one of these tensors at a time, and at most one is in memory besides the shards
    rows  the axis that corresponds to the rows of the file, if it may be cut. Several threads call
          `read` for blocks of rows, and only these few megabytes are in memory besides the shards
    """
    shape, kind = tuple(shape), np.dtype(dtype)
    wanted = {
        box_of(index, shape) for index in sharding.addressable_devices_indices_map(shape).values()
    }
    shards = _shards(shape, kind, wanted, read, lead, rows=rows)
    return jax.make_array_from_callback(
        shape, sharding, lambda index: shards[box_of(index, shape)], dtype=kind
    )


def _shards(
    shape: tuple[int, ...],
    kind: np.dtype,
    wanted: set[Box],
    read: Callable[[Index], np.ndarray],
    lead: int,
    *,
    rows: int | None = None,
) -> dict[Box, np.ndarray]:
    """Returns {bounds: values} of all shards, filled by one tensor or a few blocks of rows at a
    time."""
    if not wanted:
        return {}
    if len(wanted) == 1 and not lead and not rows:
        box = next(iter(wanted))
        return {box: _aligned(_checked(read(_slices(box)), box), kind)}
    hull = _hull(wanted)

    def take(box: Box, part: Box, value: np.ndarray) -> None:
        both = [(max(a, c), min(b, d)) for (a, b), (c, d) in zip(box, part, strict=True)]
        into, taken = (
            tuple(slice(a - c, b - c) for (a, b), (c, _) in zip(both, of, strict=True))
            for of in (box, part)
        )
        copy(shards[box][into], value[taken])

    def fill(part: Box, over: Callable = map) -> None:
        takers = [
            b
            for b in wanted
            if all(a < d and c < e for (a, e), (c, d) in zip(b, part, strict=True))
        ]
        if takers:
            value = _checked(read(_slices(part)), part)
            value = value if rows is None else _spaced(value)
            list(
                (over if value.size >= _LARGE else map)(lambda box: take(box, part, value), takers)
            )

    # Most of the time goes into page faults of the new shards; several threads allocate them
    # faster.
    with ThreadPoolExecutor(_THREADS) as pool:
        shards = dict(zip(wanted, pool.map(lambda box: _fresh(box, kind), wanted), strict=True))
        parts = _parts(hull, lead, rows, kind.itemsize)
        if rows is None:
            for part in parts:
                fill(part, pool.map)
        else:
            list(pool.map(fill, parts))
    return shards


def held(shape: Sequence[int], sharding: jax.sharding.Sharding) -> Index | None:
    """Returns the smallest index that covers the shards of this process; None if it has none."""
    wanted = {
        box_of(index, tuple(shape))
        for index in sharding.addressable_devices_indices_map(tuple(shape)).values()
    }
    return _slices(_hull(wanted)) if wanted else None


def _hull(wanted: set[Box]) -> Box:
    return tuple(
        (min(b[0] for b in bounds), max(b[1] for b in bounds))
        for bounds in zip(*wanted, strict=True)
    )


def _fresh(box: Box, kind: np.dtype) -> np.ndarray:
    return aligned(tuple(stop - start for start, stop in box), kind)


def _parts(hull: Box, lead: int, rows: int | None, itemsize: int) -> Iterator[Box]:
    """Yields the parts to read one at a time: single tensors, cut into blocks along `rows`."""
    cuts = [[(i, i + 1) for i in range(*bounds)] for bounds in hull[:lead]] + [
        [bounds] for bounds in hull[lead:]
    ]
    if rows is not None:
        start, stop = hull[rows]
        others = [b - a for axis, (a, b) in enumerate(hull) if axis >= lead and axis != rows]
        step = max(1, _BLOCK // max(1, math.prod(others) * itemsize))
        step -= step % _LINE if step > _LINE else 0
        cuts[rows] = [(i, min(i + step, stop)) for i in range(start, stop, step)]
    return itertools.product(*cuts)


def _aligned(value: np.ndarray, kind: np.dtype) -> np.ndarray:
    """Returns `value` aligned and contiguous, so that a CPU device uses it without a copy."""
    if value.dtype == kind and value.flags.c_contiguous and value.ctypes.data % ALIGN == 0:
        return value
    out = aligned(value.shape, kind)
    copy(out, value)
    return out


def copy(out: np.ndarray, value: np.ndarray) -> None:
    """Computes `out[...] = value`, quickly also if the last axis of `value` is not contiguous.

    numpy follows the memory order of one array and misses the cache at every element of the other;
    narrow strips avoid this. If the elements of a strip are a multiple of 1024 bytes apart, they
    map to the same few cache sets, and only one cache line of them stays cached; the strip is then
    one line wide.
    """
    steps = [abs(step) for step, size in zip(value.strides, value.shape, strict=True) if size > 1]
    if value.size < _LARGE or abs(value.strides[-1]) <= min(steps):
        out[...] = value
        return
    strip = _STRIP if value.strides[-1] % 1024 else _LINE
    for i in range(0, value.shape[-1], strip):
        out[..., i : i + strip] = value[..., i : i + strip]


def _spaced(value: np.ndarray) -> np.ndarray:
    """Returns a block of file rows with padding after each row if `copy` must transpose it: halves
    the time of `copy`."""
    order = sorted(range(value.ndim), key=lambda axis: -value.strides[axis])
    if value.size < _LARGE or order[-1] == value.ndim - 1:
        return value
    rows = value.transpose(order)
    out = np.empty((*rows.shape[:-1], rows.shape[-1] + _LINE), value.dtype)[..., : rows.shape[-1]]
    out[...] = rows
    return out.transpose(np.argsort(order))


def _slices(box: Box) -> Index:
    return tuple(slice(*bounds) for bounds in box)


def _checked(value: np.ndarray, box: Box) -> np.ndarray:
    """Returns `value`. Raises ValueError if its shape is not that of `box`."""
    expected = tuple(stop - start for start, stop in box)
    if value.shape != expected:
        raise ValueError(f"read gave shape {value.shape} for an index of shape {expected}")
    return value
