"""A layout: a mesh with a rule table. `core.constraint.constrain` uses it while a step is traced.

    layout = layout_of(mesh, "megatron_sp")       # raises UserError if table and mesh do not fit
    with use(layout):
        ...                                        # trace, inside the jitted function

`training.steps.step.Program.on` does this for a training step, for real devices or for the devices
of a topology.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ptm_jax.core.constraint import constrain, current, use
from ptm_jax.core.errors import UserError
from ptm_jax.mesh import rules as tables

__all__ = ["Layout", "constrain", "current", "layout_of", "use"]


@dataclasses.dataclass(frozen=True)
class Layout:
    """`rules` map logical axes to axes of `mesh`, for activations and parameters.
    See `tables.place`.

    `half` is for products in bfloat16: a device rounds its part of a weight's gradient to bfloat16,
    the parts of all devices are summed in bfloat16, and the sum becomes float32 again. The messages
    are half as long. A part has a relative error of at most 2^-8, and the sum those of its
    additions.
    """

    mesh: Mesh
    rules: tables.Table
    half: bool = False

    def axes(self, name: str | None) -> tuple[str, ...]:
        """Returns the mesh axes with more than one device over which the named axis is split."""
        return tuple(axis for axis in tables.axes_of(self.rules, name) if self.mesh.shape[axis] > 1)

    def parts(self, name: str | None) -> int:
        """Returns the number of parts of the named axis."""
        return tables.parts(self.mesh, self.axes(name))

    def spec(self, names: Sequence[str | None], shape: Sequence[int]) -> PartitionSpec:
        """Returns the partition spec of an activation.

        Each mesh axis is used once, by the first dimension that asks for it: rows take `fsdp`, so
        the width of activations does not. A dimension that its axes do not divide is
        unconstrained."""
        if len(names) != len(shape):
            raise ValueError(
                f"{len(names)} names {tuple(names)} for an activation of shape {tuple(shape)}"
            )
        taken: set[str] = set()
        parts = []
        for name, dim in zip(names, shape, strict=True):
            axes = tuple(axis for axis in self.axes(name) if axis not in taken)
            divides = dim % tables.parts(self.mesh, axes) == 0
            taken.update(axes if divides else ())
            parts.append(axes if divides else PartitionSpec.UNCONSTRAINED)
        return PartitionSpec(*parts)

    def sharding(self, names: Sequence[str | None], shape: Sequence[int]) -> NamedSharding:
        """Returns the sharding of `spec` on this mesh."""
        return NamedSharding(self.mesh, self.spec(names, shape))

    def constrain(self, x: jax.Array, names: Sequence[str | None]) -> jax.Array:
        """Constrains x to the sharding of its names."""
        return jax.lax.with_sharding_constraint(x, self.sharding(names, x.shape))


def layout_of(mesh: Mesh, rules: str | tables.Table) -> Layout:
    """Returns the layout of a mesh and a rule table or its name.

    Raises UserError if there are several devices and the table splits parameters over a mesh axis
    of size 1. For example, `fsdp` rules with all devices on `data` are a mistake, because they
    would copy all parameters.
    """
    name, rules = (rules, tables.table(rules)) if isinstance(rules, str) else ("", tuple(rules))
    if mesh.size > 1:
        wanted = set(tables.split_axes(rules))
        if "zero" in name:
            wanted -= {"data", "fsdp"} if mesh.shape["data"] * mesh.shape["fsdp"] > 1 else {"fsdp"}
        for axis in sorted(axis for axis in wanted if mesh.shape[axis] == 1):
            has = ",".join(f"{n}={s}" for n, s in mesh.shape.items() if s > 1)
            raise UserError(
                f"the rules {name or rules} split parameters over the mesh axis {axis!r}, "
                f"and the mesh {has} has one device "
                f"there; give it some ({axis}=2), or take other rules (rules=replicated "
                "copies all parameters)"
            )
    return Layout(mesh, rules, name.endswith(tables.HALF))
