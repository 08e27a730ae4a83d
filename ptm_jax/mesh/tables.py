"""The device mesh, and the two ordered tables that lay parameters over it.

`LOGICAL` names the axes of every parameter by a pattern on its path, once for all systems; a rule table maps those
names to mesh axes. Optimizer state repeats the path of its parameter, so the same tables place it. First match wins.

Mesh axes: `data` (rows of the batch), `fsdp` (rows of the batch and slices of the parameters), `seq` (positions),
`model` (heads, feed-forward and vocabulary: Shoeybi et al. 2019, section 3).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from ptm_jax.core.errors import UserError, unknown
from ptm_jax.core.paths import first_match, map_with_path

AXES = ("data", "fsdp", "seq", "model")

LOGICAL: tuple[tuple[str, tuple[str, ...]], ...] = (
    (r"/token$", ("vocab", "width")),
    (r"heads_\w+/bias$", ("vocab",)),
    (r"/(query|key|value)/kernel$", ("width", "heads", "head")),
    (r"/(query|key|value)/bias$", ("heads", "head")),
    (r"attention/out/kernel$", ("heads", "head", "width")),
    (r"/up/kernel$", ("width", "hidden")),
    (r"/up/bias$", ("hidden",)),
    (r"/down/kernel$", ("hidden", "width")),
    (r"/dense/kernel$", ("width", "features")),
)

Axes = str | tuple[str, ...]
Table = tuple[tuple[str, Axes], ...]

BATCH: Table = (("rows", ("data", "fsdp")), ("positions", ("seq",)), ("length", ("seq",)))
ACTIVATIONS = tuple(name for name, _ in BATCH)
"""Names that no parameter has: how a batch and what becomes of it lie (`core.layout`)."""

MEGATRON: Table = (("vocab", "model"), ("heads", "model"), ("hidden", "model"), *BATCH)
SEQUENCE: Table = (("positions", ("seq", "model")),)
FSDP: Table = (("width", "fsdp"),)
ZERO: Table = (("width", ("data", "fsdp")),)
RING: Table = (("keys", ("seq",)),)
PLAIN: Mapping[str, Table] = {
    "replicated": BATCH,
    "fsdp": FSDP + BATCH,
    "zero": ZERO + BATCH,
    "megatron": MEGATRON,
    "megatron_sp": SEQUENCE + MEGATRON,
    "megatron_fsdp": FSDP + MEGATRON,
    "megatron_zero": ZERO + MEGATRON,
    "megatron_sp_fsdp": SEQUENCE + FSDP + MEGATRON,
    "megatron_sp_zero": SEQUENCE + ZERO + MEGATRON,
}
"""fsdp     slices of every parameter on `fsdp`, gathered where it is used (ZeRO stage 3, Rajbhandari et al. 2020)
zero     the same over `data` as well, where the mesh gives `fsdp` none
megatron    columns, then rows of every pair of products and the vocabulary on `model` (Shoeybi et al. 2019, section 3)
megatron_sp and between them the residual stream, its norms and its dropout by positions (Korthikanti et al. 2022)"""

TABLES: Mapping[str, Table] = PLAIN | {f"{name}_ring": RING + rules for name, rules in PLAIN.items()}
"""Positions lie on `seq` where the mesh has one, and attention gathers keys and values there: scores are [L / n, L] on a
device. With `_ring` they go round instead, and scores are [L / n, L / n] (`kernels.ring`)."""


def make_mesh(sizes: Mapping[str, int] | None = None, devices: Sequence[Any] | None = None) -> Mesh:
    """The mesh with the four axes; absent ones have size 1, and with no sizes at all every device is on `data`."""
    devices = list(jax.devices() if devices is None else devices)
    sizes = dict(sizes or {"data": len(devices)})
    for name in sizes:
        if name not in AXES:
            raise unknown("mesh axis", name, AXES)
    shape = tuple(sizes.get(name, 1) for name in AXES)
    if int(np.prod(shape)) != len(devices):
        asked = " x ".join(f"{n}={s}" for n, s in zip(AXES, shape, strict=True) if s > 1) or "1 device"
        raise UserError(f"mesh {asked} needs {int(np.prod(shape))} devices; this process group has {len(devices)}")
    return jax.make_mesh(shape, AXES, axis_types=(AxisType.Auto,) * len(AXES), devices=devices)


def table(name: str) -> Table:
    """The named rule table; an unknown name is an error that lists them."""
    if name not in TABLES:
        raise unknown("rule table", name, TABLES)
    return TABLES[name]


def as_axes(axes: Axes | None) -> tuple[str, ...]:
    """A rule's mesh axes as a tuple."""
    return () if axes is None else (axes,) if isinstance(axes, str) else tuple(axes)


def axes_of(rules: Table, name: str | None) -> tuple[str, ...]:
    """The mesh axes of the first rule for a logical axis; () where there is none."""
    return next((as_axes(axes) for key, axes in rules if key == name), ())


def parts(mesh: Mesh, axes: Sequence[str]) -> int:
    """Into how many parts these mesh axes split a dimension."""
    return math.prod(mesh.shape[axis] for axis in axes)


def entry(axes: Sequence[str]) -> Any:
    """The entry of a PartitionSpec: None, an axis, or several."""
    return None if not axes else axes[0] if len(axes) == 1 else tuple(axes)


def spec_of(path: str, shape: Sequence[int], rules: Table, mesh: Mesh) -> PartitionSpec:
    """Where the tensor at `path` lies. Leading dimensions beyond its named axes (scanned layers) are not split.

    Raises UserError, with the tensor, the axis and the sizes, for a table that uses one mesh axis twice or does not
    divide a dimension.
    """
    names = first_match(LOGICAL, path, ())
    if len(names) > len(shape):  # a factored moment of the parameter, not the parameter
        return PartitionSpec()
    names = (None,) * (len(shape) - len(names)) + tuple(names)
    axes = [axes_of(rules, name) for name in names]
    used = [axis for each in axes for axis in each]
    for dim, each in zip(shape, axes, strict=True):
        if dim == 1:  # a factored moment, summed over this axis
            continue
        for axis in each:
            if mesh.shape[axis] > 1 and used.count(axis) > 1:
                raise UserError(f"the rules put mesh axis {axis!r} on two dimensions of {path} {tuple(shape)}")
        if dim % parts(mesh, each):
            over = " x ".join(repr(axis) for axis in each if mesh.shape[axis] > 1)
            raise UserError(
                f"{path} {tuple(shape)}: dimension {dim} does not divide over mesh axis {over} of {parts(mesh, each)}"
            )
    return PartitionSpec(*(None if dim == 1 else entry(each) for dim, each in zip(shape, axes, strict=True)))


def place(tree: Any, rules: Table, mesh: Mesh) -> Any:
    """The tree of shardings of abstract or real parameters, optimizer state or a whole train state."""
    return map_with_path(lambda path, leaf: NamedSharding(mesh, spec_of(path, leaf.shape, rules, mesh)), tree)


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Rows over `data` and `fsdp`."""
    return NamedSharding(mesh, PartitionSpec(("data", "fsdp")))


def replicated(mesh: Mesh) -> NamedSharding:
    """On every device, whole."""
    return NamedSharding(mesh, PartitionSpec())


def check_batch(rows: int, mesh: Mesh) -> None:
    """UserError where the mesh cannot share out a batch of so many rows."""
    parts = mesh.shape["data"] * mesh.shape["fsdp"]
    if rows % parts:
        raise UserError(f"a batch of {rows} rows does not divide over data x fsdp = {parts}; change recipe.phases")


def place_batch(batch: Mapping[str, np.ndarray], mesh: Mesh) -> dict[str, jax.Array]:
    """This process's rows as global arrays: each process gives its own part of every batch."""
    check_batch(len(next(iter(batch.values()))) * jax.process_count(), mesh)
    sharding = batch_sharding(mesh)
    return {name: jax.make_array_from_process_local_data(sharding, value) for name, value in batch.items()}
