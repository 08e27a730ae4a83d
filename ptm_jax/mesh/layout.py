"""A mesh and a rule table together: what `core.layout.constrain` obeys while a step is traced.

    layout = layout_of(mesh, "megatron_sp")       # UserError where the table and the mesh do not fit each other
    with use(layout):
        ...                                        # trace, inside of the function that is jitted

`train.step.Program.on` does this for a training step; its `step` may then be lowered for real or for described devices.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ptm_jax.core.errors import UserError
from ptm_jax.core.layout import constrain, current, use
from ptm_jax.mesh import tables

__all__ = ["Layout", "constrain", "current", "layout_of", "use"]


@dataclasses.dataclass(frozen=True)
class Layout:
    """`rules` map names of axes to axes of `mesh`; the same table places parameters (`tables.place`)."""

    mesh: Mesh
    rules: tables.Table

    def axes(self, name: str | None) -> tuple[str, ...]:
        """The mesh axes, of more than one device each, over which the named axis is split."""
        return tuple(axis for axis in tables.axes_of(self.rules, name) if self.mesh.shape[axis] > 1)

    def parts(self, name: str | None) -> int:
        """Over how many devices the named axis is split."""
        return tables.parts(self.mesh, self.axes(name))

    def spec(self, names: Sequence[str | None], shape: Sequence[int]) -> PartitionSpec:
        """Where an activation lies. A mesh axis that an earlier dimension has taken is left out: rows have `fsdp`, so that
        the width of activations has not. A dimension that its axes do not divide is the compiler's to lay out."""
        if len(names) != len(shape):
            raise ValueError(f"{len(names)} names {tuple(names)} for an activation of shape {tuple(shape)}")
        taken: set[str] = set()
        found = []
        for name, dim in zip(names, shape, strict=True):
            axes = tuple(axis for axis in self.axes(name) if axis not in taken)
            divides = dim % tables.parts(self.mesh, axes) == 0
            taken.update(axes if divides else ())
            found.append(tables.entry(axes) if divides else PartitionSpec.UNCONSTRAINED)
        return PartitionSpec(*found)

    def sharding(self, names: Sequence[str | None], shape: Sequence[int]) -> NamedSharding:
        """`spec` on this mesh."""
        return NamedSharding(self.mesh, self.spec(names, shape))

    def constrain(self, x: jax.Array, names: Sequence[str | None]) -> jax.Array:
        """x with the sharding of its names."""
        return jax.lax.with_sharding_constraint(x, self.sharding(names, x.shape))


def layout_of(mesh: Mesh, rules: str | tables.Table) -> Layout:
    """The layout of a mesh and a rule table or its name.

    Raises UserError for a table that would split nothing over an axis that it is made for, where there are several
    devices: `fsdp` on a mesh with all devices on `data` is a mistake, not a wish for copies.
    """
    name, rules = (rules, tables.table(rules)) if isinstance(rules, str) else ("", tuple(rules))
    if mesh.size > 1:
        wanted = {axis for key, axes in rules if key not in tables.ACTIVATIONS for axis in tables.as_axes(axes)}
        if "zero" in name:
            wanted -= {"data", "fsdp"} if mesh.shape["data"] * mesh.shape["fsdp"] > 1 else {"fsdp"}
        for axis in sorted(axis for axis in wanted if mesh.shape[axis] == 1):
            has = ",".join(f"{n}={s}" for n, s in mesh.shape.items() if s > 1)
            raise UserError(
                f"the rules {name or rules} split parameters over the mesh axis {axis!r}, and the mesh {has} has one device "
                f"there; give it some ({axis}=2), or take other rules (rules=replicated copies all parameters)"
            )
    return Layout(mesh, rules)
