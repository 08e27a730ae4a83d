"""The device mesh, and the rule tables that shard parameters and activations over it.

A layer declares the logical axes of its parameters (`mesh.axes`) and of its activations
(`core.constraint`). A rule table maps logical axes to mesh axes; the first match wins.

Mesh axes: `data` (rows of the batch), `fsdp` (rows of the batch and slices of the parameters),
`seq` (positions), `model` (heads, feed-forward and vocabulary).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from ptm_jax.core.errors import UserError, unknown
from ptm_jax.core.types import Axes
from ptm_jax.mesh import slices as groups

AXES = ("data", "fsdp", "seq", "model")

MeshAxes = str | tuple[str, ...]
Table = tuple[tuple[str, MeshAxes], ...]

BATCH: Table = (("rows", ("data", "fsdp")), ("positions", ("seq",)), ("length", ("seq",)))
ACTIVATIONS = tuple(name for name, _ in BATCH)
"""Logical axes of batches and activations (`core.constraint`); parameters do not have them."""

MEGATRON: Table = (("vocab", "model"), ("words", "model"), ("heads", "model"), ("hidden", "model"))
SEQUENCE: Table = (("positions", "model"),)
FSDP: Table = (("width", "fsdp"), ("words", "fsdp"))
ZERO: Table = (("width", ("data", "fsdp")), ("words", ("data", "fsdp")))
RING: Table = (("keys", "seq"),)


def product(*tables: Table) -> Table:
    """Combines tables: a logical axis in several tables is split over the mesh axes of all."""
    names = dict.fromkeys(name for each in tables for name, _ in each)
    axes = {
        name: dict.fromkeys(axis for each in tables for axis in axes_of(each, name))
        for name in names
    }
    return tuple(
        (name, tuple(mesh_axes) if len(mesh_axes) > 1 else next(iter(mesh_axes)))
        for name, mesh_axes in axes.items()
    )


def as_axes(axes: MeshAxes | None) -> tuple[str, ...]:
    """Returns a rule's mesh axes as a tuple."""
    return () if axes is None else (axes,) if isinstance(axes, str) else tuple(axes)


def axes_of(rules: Table, name: str | None) -> tuple[str, ...]:
    """Returns the mesh axes of the first rule for a logical axis, or ()."""
    return next((as_axes(axes) for key, axes in rules if key == name), ())


PLAIN: Mapping[str, Table] = {
    "replicated": BATCH,
    "fsdp": product(FSDP, BATCH),
    "zero": product(ZERO, BATCH),
    "megatron": product(MEGATRON, BATCH),
    "megatron_fsdp": product(MEGATRON, FSDP, BATCH),
    "megatron_zero": product(MEGATRON, ZERO, BATCH),
    "megatron_sp": product(MEGATRON, BATCH, SEQUENCE),
    "megatron_sp_fsdp": product(MEGATRON, FSDP, BATCH, SEQUENCE),
    "megatron_sp_zero": product(MEGATRON, ZERO, BATCH, SEQUENCE),
}
"""fsdp      splits every parameter over `fsdp` and gathers it for use (ZeRO stage 3: Rajbhandari et
al. 2020)
zero         like fsdp, over `data` as well
megatron     splits the columns, then the rows of each pair of products, and the vocabulary, over
             `model` (Shoeybi et al. 2019, section 3)
megatron_sp  like megatron; also splits the residual stream, norms and dropout by position
             (Korthikanti et al. 2022)"""

TABLES: Mapping[str, Table] = PLAIN | {
    f"{name}_ring": product(rules, RING) for name, rules in PLAIN.items()
}
"""All tables split positions over `seq`. Attention gathers keys and values, so a device has scores
[L / n, L]. With `_ring` it uses ring attention (`kernels.ring`) and scores [L / n, L / n]."""


HALF = "_bf16"
"""Suffix of the name of a table with which devices sum the gradients of weights in bfloat16
(`mesh.layout.Layout.half`): `fsdp_bf16`."""


def default_sizes(rules: str, count: int, slices: int = 1) -> dict[str, int]:
    """Returns the default mesh of `count` devices.
    All devices of a slice are on `fsdp` if the rules are `fsdp`, else all devices on `data`."""
    if rules.removesuffix(HALF) != "fsdp":
        return {"data": count}
    return {"fsdp": count} if slices == 1 else {"data": slices, "fsdp": count // slices}


def split_axes(rules: str | Table) -> tuple[str, ...]:
    """Returns the mesh axes over which a table splits parameters."""
    rows = table(rules) if isinstance(rules, str) else rules
    split = {axis for name, axes in rows if name not in ACTIVATIONS for axis in as_axes(axes)}
    return tuple(axis for axis in AXES if axis in split)


def make_mesh(
    sizes: Mapping[str, int] | None = None,
    devices: Sequence[Any] | None = None,
    rules: str = "replicated",
    slices: int = 1,
) -> Mesh:
    """Returns the mesh with the four axes; missing axes have size 1.
    Raises UserError if the sizes do not fit the devices or their slices (`mesh.slices`).

    Without sizes it has those of `default_sizes`."""
    devices = list(jax.devices() if devices is None else devices)
    sizes = dict(sizes or default_sizes(rules, len(devices), max(slices, 1)))
    for name in sizes:
        if name not in AXES:
            raise unknown("mesh axis", name, AXES)
    shape = tuple(sizes.get(name, 1) for name in AXES)
    if int(np.prod(shape)) != len(devices):
        asked = (
            " x ".join(f"{n}={s}" for n, s in zip(AXES, shape, strict=True) if s > 1) or "1 device"
        )
        raise UserError(
            f"mesh {asked} needs {int(np.prod(shape))} devices; this process group has "
            f"{len(devices)}"
        )
    groups.check_devices(devices, slices)
    groups.check(sizes, split_axes(rules), rules, slices)
    kinds = (AxisType.Auto,) * len(AXES)
    if slices > 1:
        return Mesh(groups.arranged(shape, devices, slices), AXES, axis_types=kinds)
    try:
        return jax.make_mesh(shape, AXES, axis_types=kinds, devices=devices)
    except (
        NotImplementedError
    ):  # whole axes of the TPU torus do not make up the mesh's axes, so split them
        return Mesh(
            mesh_utils.create_device_mesh(shape, devices, allow_split_physical_axes=True),
            AXES,
            axis_types=kinds,
        )


def table(name: str) -> Table:
    """Returns the named rule table. Raises UserError, with the known names, for an unknown one."""
    plain = name.removesuffix(HALF)
    if plain not in TABLES:
        raise unknown("rule table", name, TABLES)
    return TABLES[plain]


def parts(mesh: Mesh, axes: Sequence[str]) -> int:
    """Returns the number of parts into which these mesh axes split a dimension."""
    return math.prod(mesh.shape[axis] for axis in axes)


def spec_of(
    path: str, shape: Sequence[int], names: Axes, rules: Table, mesh: Mesh
) -> PartitionSpec:
    """Returns the partition spec of a tensor with a logical axis or None for each dimension.
    Without `names` it is not split.

    Raises UserError, which names `path`, if the table uses a mesh axis twice or does not divide a
    dimension.
    """
    if not names:
        return PartitionSpec()
    axes = [axes_of(rules, name) for name in names]
    used = [axis for each in axes for axis in each]
    for dim, each in zip(shape, axes, strict=True):
        if dim == 1:  # a factored moment, summed over this axis
            continue
        for axis in each:
            if mesh.shape[axis] > 1 and used.count(axis) > 1:
                raise UserError(
                    f"the rules put mesh axis {axis!r} on two dimensions of {path} {tuple(shape)}"
                )
        if dim % parts(mesh, each):
            over = " x ".join(repr(axis) for axis in each if mesh.shape[axis] > 1)
            raise UserError(
                f"{path} {tuple(shape)}: dimension {dim} does not divide over mesh axis "
                f"{over} of {parts(mesh, each)}"
            )
    return PartitionSpec(
        *(None if dim == 1 else each for dim, each in zip(shape, axes, strict=True))
    )


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Returns the sharding of a batch: rows over `data` and `fsdp`."""
    return NamedSharding(mesh, PartitionSpec(("data", "fsdp")))


def replicated(mesh: Mesh) -> NamedSharding:
    """Returns the sharding with a full copy on every device."""
    return NamedSharding(mesh, PartitionSpec())


def check_batch(rows: int, mesh: Mesh) -> None:
    """Raises UserError if data x fsdp does not divide the rows of a batch."""
    parts = mesh.shape["data"] * mesh.shape["fsdp"]
    if rows % parts:
        raise UserError(
            f"a batch of {rows} rows does not divide over data x fsdp = {parts}; change "
            "recipe.phases"
        )


def place_batch(batch: Mapping[str, np.ndarray], mesh: Mesh) -> dict[str, jax.Array]:
    """Returns global arrays from this process's rows.
    Each process passes its own part of every batch (`share`)."""
    rows = len(next(iter(batch.values()))) * share(mesh)[1]
    check_batch(rows, mesh)
    sharding, global_shape = batch_sharding(mesh), lambda value: (rows, *value.shape[1:])
    if (
        jax.process_count() == 1
    ):  # one call for all fields: a small step takes less time than a call for each
        return jax.device_put(dict(batch), sharding)
    return {
        k: jax.make_array_from_process_local_data(sharding, v, global_shape(v))
        for k, v in batch.items()
    }


def share(mesh: Mesh) -> tuple[int, int]:
    """Returns (index, count): the part of a batch's rows that this process holds.

    Processes that share one copy of the model hold the same rows. Raises UserError if some hold
    more rows than others.
    """
    held: dict[int, set[int]] = {}
    for number, devices in enumerate(
        mesh.devices.reshape(mesh.shape["data"] * mesh.shape["fsdp"], -1)
    ):
        for device in devices:
            held.setdefault(device.process_index, set()).add(number)
    parts = sorted({tuple(sorted(rows)) for rows in held.values()})
    if len(set(map(len, parts))) > 1 or sum(map(len, parts)) > len(set().union(*parts)):
        sizes = " x ".join(f"{name}={size}" for name, size in mesh.shape.items())
        raise UserError(
            f"the mesh {sizes} gives some of the {len(held)} processes more rows than "
            "others; choose data x fsdp as a "
            "multiple or a divisor of the number of processes"
        )
    return parts.index(tuple(sorted(held[jax.process_index()]))), len(parts)
