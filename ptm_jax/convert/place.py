"""Tensors straight into their shards: what is in memory is the shards, and one tensor of the file beside them."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np

from ptm_jax.convert.formats import ALIGN, Box, aligned, box_of

Index = tuple[slice, ...]

_LARGE = 1 << 16  # elements; a smaller array is in the cache anyway
_STRIP = 16


def place(
    shape: Sequence[int],
    dtype: Any,
    sharding: jax.sharding.Sharding,
    read: Callable[[Index], np.ndarray],
    *,
    lead: int = 0,
) -> jax.Array:
    """The array of that shape under `sharding`, with the values of `read(index)`.

    read  gives the part at an index of slices, one per axis; it is asked for each part once, whatever the number of
          devices that hold it, and only for what the devices of this process hold
    lead  how many of the first axes stack tensors that lie apart in the file: then `read` is asked for one of them at
          a time, and no more than one is in memory beside the shards
    """
    shape, kind = tuple(shape), np.dtype(dtype)
    wanted = {box_of(index, shape) for index in sharding.addressable_devices_indices_map(shape).values()}
    shards = _shards(shape, kind, wanted, read, lead)
    return jax.make_array_from_callback(shape, sharding, lambda index: shards[box_of(index, shape)], dtype=kind)


def _shards(
    shape: tuple[int, ...], kind: np.dtype, wanted: set[Box], read: Callable[[Index], np.ndarray], lead: int
) -> dict[Box, np.ndarray]:
    """{bounds: values} of all shards, filled one tensor after the other."""
    if len(wanted) == 1 and not lead:
        box = next(iter(wanted))
        return {box: _aligned(_checked(read(_slices(box)), box), kind)}
    shards = {box: aligned(tuple(stop - start for start, stop in box), kind) for box in wanted}
    hull = tuple((min(b[0] for b in bounds), max(b[1] for b in bounds)) for bounds in zip(*wanted, strict=True))
    with ThreadPoolExecutor(min(len(wanted) or 1, os.cpu_count() or 1)) as pool:
        for count in itertools.product(*(range(*bounds) for bounds in hull[:lead])):
            takers = [box for box in wanted if all(a <= i < b for i, (a, b) in zip(count, box, strict=False))]
            if not takers:
                continue
            one = (*((i, i + 1) for i in count), *hull[lead:])
            value = _checked(read(_slices(one)), one)

            def take(box: Box, count=count, value=value) -> None:
                into = tuple(slice(i - start, i - start + 1) for i, (start, _) in zip(count, box, strict=False))
                inner = zip(box[lead:], hull[lead:], strict=True)
                taken = tuple(slice(start - low, stop - low) for (start, stop), (low, _) in inner)
                copy(shards[box][into], value[(slice(None),) * lead + taken])

            # Most of the time goes into the shards' fresh pages, which several threads get sooner.
            list(map(take, takers) if value.size < _LARGE else pool.map(take, takers))
            del value, take
    return shards


def _aligned(value: np.ndarray, kind: np.dtype) -> np.ndarray:
    """`value` as a device of the host takes it over without copying."""
    if value.dtype == kind and value.flags.c_contiguous and value.ctypes.data % ALIGN == 0:
        return value
    out = aligned(value.shape, kind)
    copy(out, value)
    return out


def copy(out: np.ndarray, value: np.ndarray) -> None:
    """`out[...] = value`, also quick where the last axis of `value` is not the one that is consecutive in memory.

    numpy goes along the order of one of the two and misses the cache at every element of the other; strips of one
    cache line (16 float32) do not.
    """
    steps = [abs(step) for step, size in zip(value.strides, value.shape, strict=True) if size > 1]
    if value.size < _LARGE or abs(value.strides[-1]) <= min(steps):
        out[...] = value
        return
    for i in range(0, value.shape[-1], _STRIP):
        out[..., i : i + _STRIP] = value[..., i : i + _STRIP]


def _slices(box: Box) -> Index:
    return tuple(slice(*bounds) for bounds in box)


def _checked(value: np.ndarray, box: Box) -> np.ndarray:
    """`value`, if it is what was asked for."""
    expected = tuple(stop - start for start, stop in box)
    if value.shape != expected:
        raise ValueError(f"read gave shape {value.shape} for an index of shape {expected}")
    return value
