"""Slices: groups of devices with fast links inside, and the data-centre network between them.

    mesh data=4,fsdp=64 on 2 slices     each slice holds data=2,fsdp=64

Only the axis `data` crosses slices: its outer part numbers the slices, so that the gradients alone
go over the slow network. A TPU device has the number of its slice. Other devices are divided in the
order of their processes: two processes, or eight devices that one CPU pretends to have, stand for
two slices.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import jax
import numpy as np
from jax.experimental import mesh_utils

from ptm_jax.core.errors import UserError


def count(devices: Sequence[jax.Device]) -> int:
    """Returns the number of slices of TPU devices; 1 for other devices.

    The devices of a topology of one slice have no number of it."""
    try:
        return len({device.slice_index for device in devices if device.platform == "tpu"}) or 1
    except AttributeError:
        return 1


def arranged(shape: Sequence[int], devices: Sequence[jax.Device], slices: int) -> np.ndarray:
    """Returns the devices as an array of a mesh's shape, whose first axis crosses the slices.

    Raises UserError if the devices are in another number of slices, or do not divide into them."""
    if devices[0].platform == "tpu":
        inner = (shape[0] // slices, *shape[1:])
        outer = (slices,) + (1,) * len(inner[1:])
        return mesh_utils.create_hybrid_device_mesh(
            inner, outer, devices, allow_split_physical_axes=True
        )
    processes = len({device.process_index for device in devices})
    if processes % slices and slices % processes:
        raise UserError(
            f"{processes} processes do not divide into {slices} slices; write --slices {processes}"
        )
    ordered = sorted(devices, key=lambda device: (device.process_index, device.id))
    return np.array(ordered).reshape(shape)


def check_devices(devices: Sequence[jax.Device], slices: int) -> None:
    """Raises UserError unless the devices are in so many slices, or can be divided into them."""
    number = count(devices)
    if devices[0].platform == "tpu" and number != slices:
        raise UserError(
            f"the {len(devices)} devices are in {number} slice{'s' * (number > 1)}, not {slices}; "
            f"write --slices {number}"
        )


def check(sizes: Mapping[str, int], split: Sequence[str], rules: str, slices: int) -> None:
    """Raises UserError unless a mesh of these sizes can lie on so many slices.

    split    mesh axes over which the rules split parameters
    rules    name of the rules, for the message
    """
    if slices < 1:
        raise UserError(f"slices is {slices}; it must be at least 1")
    if slices == 1:
        return
    total = math.prod(sizes.values())
    if total % slices:
        raise UserError(
            f"{total} devices do not divide into {slices} slices; write another --slices, or a "
            f"--mesh of a multiple of {slices} devices"
        )
    mesh = _advised(sizes, split, slices)
    if "data" in split:
        raise UserError(
            f"the rules {rules} split parameters over data, which crosses the {slices} slices, and "
            "would gather them over the slow network; "
            f"write --rules {rules.replace('zero', 'fsdp')} --mesh {mesh}"
        )
    if sizes.get("data", 1) % slices:
        raise UserError(
            f"the mesh axis data, the only one that crosses slices, has size {sizes.get('data', 1)}"
            f", which {slices} slices do not divide; write --mesh {mesh}"
        )


def _advised(sizes: Mapping[str, int], split: Sequence[str], slices: int) -> str:
    """Returns --mesh of as many devices, of which `data` alone crosses the slices."""
    left = math.prod(sizes.values()) // slices
    inside = {}
    for axis in ("seq", "model"):
        inside[axis] = math.gcd(sizes.get(axis, 1), left)
        left //= inside[axis]
    sliced = {"data", "fsdp"} & set(split) or sizes.get("fsdp", 1) > 1
    outer = {"data": slices, "fsdp": left} if sliced else {"data": slices * left}
    return ",".join(f"{axis}={size}" for axis, size in (outer | inside).items() if size > 1)
