"""Tensors straight into their shards: what is in memory is the shards, and one tensor or some blocks of its rows."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np

from ptm_jax.convert.formats import ALIGN, Box, aligned, box_of

Index = tuple[slice, ...]

_LARGE = 1 << 16  # elements; a smaller array is in the cache anyway
_LINE, _STRIP = 16, 64  # elements; of a cache line
_THREADS = min(8, os.cpu_count() or 1)  # each holds a block
_BLOCK = 1 << 21  # bytes that a thread reads and hands out before the next; they stay in the cache


def place(
    shape: Sequence[int],
    dtype: Any,
    sharding: jax.sharding.Sharding,
    read: Callable[[Index], np.ndarray],
    *,
    lead: int = 0,
    rows: int | None = None,
) -> jax.Array:
    """The array of that shape under `sharding`, with the values of `read(index)`.

    read  gives the part at an index of slices, one per axis; it is asked for each part once, whatever the number of
          devices that hold it, and only for what the devices of this process hold
    lead  how many of the first axes stack tensors that lie apart in the file: then `read` is asked for one of them at
          a time, and no more than one is in memory beside the shards
    rows  the axis that runs along the file's rows, where it may be cut: then `read` is asked for blocks of rows, by
          several threads, and no more than these few megabytes are in memory beside the shards
    """
    shape, kind = tuple(shape), np.dtype(dtype)
    wanted = {box_of(index, shape) for index in sharding.addressable_devices_indices_map(shape).values()}
    shards = _shards(shape, kind, wanted, read, lead, rows)
    return jax.make_array_from_callback(shape, sharding, lambda index: shards[box_of(index, shape)], dtype=kind)


def _shards(
    shape: tuple[int, ...],
    kind: np.dtype,
    wanted: set[Box],
    read: Callable[[Index], np.ndarray],
    lead: int,
    rows: int | None = None,
) -> dict[Box, np.ndarray]:
    """{bounds: values} of all shards, filled one tensor, or a few blocks of rows, after the other."""
    if not wanted:
        return {}
    if len(wanted) == 1 and not lead and not rows:
        box = next(iter(wanted))
        return {box: _aligned(_checked(read(_slices(box)), box), kind)}
    hull = _hull(wanted)

    def take(box: Box, part: Box, value: np.ndarray) -> None:
        both = [(max(a, c), min(b, d)) for (a, b), (c, d) in zip(box, part, strict=True)]
        into, taken = (tuple(slice(a - c, b - c) for (a, b), (c, _) in zip(both, of, strict=True)) for of in (box, part))
        copy(shards[box][into], value[taken])

    def fill(part: Box, over: Callable = map) -> None:
        takers = [b for b in wanted if all(a < d and c < e for (a, e), (c, d) in zip(b, part, strict=True))]
        if takers:
            value = _checked(read(_slices(part)), part)
            value = value if rows is None else _spaced(value)
            list((over if value.size >= _LARGE else map)(lambda box: take(box, part, value), takers))

    # Most of the time goes into the shards' fresh pages, which several threads get sooner.
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
    """The smallest index that covers what the devices of this process hold; None where they hold nothing."""
    wanted = {box_of(index, tuple(shape)) for index in sharding.addressable_devices_indices_map(tuple(shape)).values()}
    return _slices(_hull(wanted)) if wanted else None


def _hull(wanted: set[Box]) -> Box:
    return tuple((min(b[0] for b in bounds), max(b[1] for b in bounds)) for bounds in zip(*wanted, strict=True))


def _fresh(box: Box, kind: np.dtype) -> np.ndarray:
    return aligned(tuple(stop - start for start, stop in box), kind)


def _parts(hull: Box, lead: int, rows: int | None, itemsize: int) -> Iterator[Box]:
    """What is read at a time: single tensors, cut into blocks along `rows`."""
    cuts = [[(i, i + 1) for i in range(*bounds)] for bounds in hull[:lead]] + [[bounds] for bounds in hull[lead:]]
    if rows is not None:
        start, stop = hull[rows]
        others = [b - a for axis, (a, b) in enumerate(hull) if axis >= lead and axis != rows]
        step = max(1, _BLOCK // max(1, math.prod(others) * itemsize))
        step -= step % _LINE if step > _LINE else 0
        cuts[rows] = [(i, min(i + step, stop)) for i in range(start, stop, step)]
    return itertools.product(*cuts)


def _aligned(value: np.ndarray, kind: np.dtype) -> np.ndarray:
    """`value` as a device of the host takes it over without copying."""
    if value.dtype == kind and value.flags.c_contiguous and value.ctypes.data % ALIGN == 0:
        return value
    out = aligned(value.shape, kind)
    copy(out, value)
    return out


def copy(out: np.ndarray, value: np.ndarray) -> None:
    """`out[...] = value`, also quick where the last axis of `value` is not the one that is consecutive in memory.

    numpy goes along the order of one of the two and misses the cache at every element of the other; narrow strips do
    not. Where the elements of a strip lie a multiple of 1024 bytes apart, they fall into the same few places of the
    cache, and no more than one line of them stays there.
    """
    steps = [abs(step) for step, size in zip(value.strides, value.shape, strict=True) if size > 1]
    if value.size < _LARGE or abs(value.strides[-1]) <= min(steps):
        out[...] = value
        return
    strip = _STRIP if value.strides[-1] % 1024 else _LINE
    for i in range(0, value.shape[-1], strip):
        out[..., i : i + strip] = value[..., i : i + strip]


def _spaced(value: np.ndarray) -> np.ndarray:
    """A block of the file's rows with a gap behind each, if it is to be turned: halves the time of `copy`."""
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
    """`value`, if it is what was asked for."""
    expected = tuple(stop - start for start, stop in box)
    if value.shape != expected:
        raise ValueError(f"read gave shape {value.shape} for an index of shape {expected}")
    return value
