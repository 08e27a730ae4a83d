"""Communication rates of the chips of a mesh along its axes.

`rate` is the bytes/s that one chip sends and receives in a collective over a group of chips:
- torus: the sum over the dimensions along which the group extends; a ring counts twice (both
  directions carry data at once), and a dimension in which other chips lie between the group's chips
  counts in part
- switch: the device's own link within a host; between hosts, the network share of all members in
  one host

A collective of n chips on V bytes (the result of a gather, else the operand) has a latency of 1
microsecond per hop on a torus or 10 at a switch, and takes:

    all-reduce                                 2 V (n-1)/n / rate
    all-gather, reduce-scatter, all-to-all     V (n-1)/n / rate
    permute                                    V / link

Several slices are alike: the links are those of one, and a message between slices (the axes
`BETWEEN`) goes over the data-centre network, with n slices and the rate `network` of the chip.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np
from jax.sharding import AbstractMesh, Mesh

from ptm_jax.mesh.chips import Topology
from ptm_jax.mesh.collectives import BETWEEN
from ptm_jax.mesh.rules import AXES

HOP, SWITCH = 1e-6, 10e-6
VOLUMES = {"all-reduce": 2.0, "all-gather": 1.0, "reduce-scatter": 1.0, "all-to-all": 1.0}


@dataclasses.dataclass(frozen=True)
class Links:
    """The chips of a mesh in one slice: `coordinates` [data, fsdp, seq, model, rank] in the
    topology."""

    topology: Topology
    coordinates: np.ndarray

    def parts(self, axes: Sequence[str]) -> int:
        """Returns the number of chips in a group over these mesh axes of a slice."""
        if tuple(axes) == BETWEEN:
            return self.topology.slices
        return math.prod(self.coordinates.shape[AXES.index(axis)] for axis in axes)

    def rate(self, axes: Sequence[str]) -> float:
        """Returns the bytes/s of a chip in collectives over these mesh axes."""
        if tuple(axes) == BETWEEN:
            return self.topology.chip.network
        members, chip = self._group(axes), self.topology.chip
        if not chip.torus:
            together = int(np.unique(members[:, 0], return_counts=True)[1].max())
            return (
                chip.link if together == len(members) else min(chip.link, chip.network * together)
            )
        total = 0.0
        for dim, size in enumerate(self.topology.shape):
            places = np.unique(members[:, dim])
            if len(places) > 1:
                ring = len(places) == size and self.topology.wraps(dim)
                total += chip.link * (2 if ring else len(places) / (places[-1] - places[0] + 1))
        return total or chip.link

    def seconds(self, kind: str, axes: Sequence[str], size: float, count: float = 1.0) -> float:
        """Returns the seconds of `count` collectives over these axes, `size` bytes in total."""
        parts = self.parts(axes)
        if parts < 2 or not size:
            return 0.0
        if kind == "collective-permute":
            rate = self.rate(axes) if tuple(axes) == BETWEEN else self.topology.chip.link
            return size / rate + count * self._latency(axes, HOP)
        return self.sent(kind, axes, size) / self.rate(axes) + count * self._latency(axes)

    def sent(self, kind: str, axes: Sequence[str], size: float) -> float:
        """Returns the bytes that a chip sends in collectives over these axes."""
        parts = self.parts(axes)
        share = 1.0 if kind == "collective-permute" else (parts - 1) / parts
        return VOLUMES.get(kind, 1.0) * size * share

    def _latency(self, axes: Sequence[str], hop: float | None = None) -> float:
        if tuple(axes) == BETWEEN or not self.topology.chip.torus:
            return SWITCH
        if hop is not None:
            return hop
        members = self._group(axes)
        return HOP * sum(len(np.unique(members[:, dim])) // 2 for dim in range(members.shape[1]))

    def _group(self, axes: Sequence[str]) -> np.ndarray:
        """Returns the coordinates [n, rank] of the first group over these axes."""
        index = tuple(slice(None) if axis in axes else 0 for axis in AXES)
        return self.coordinates[index].reshape(-1, self.coordinates.shape[-1])


def links(topology: Topology, mesh: Mesh | AbstractMesh) -> Links:
    """Returns the links of a mesh.
    The chips of an abstract mesh are in the order of the topology."""
    shape = [mesh.shape[axis] for axis in AXES]
    shape[0] //= topology.slices
    devices = None if isinstance(mesh, AbstractMesh) else mesh.devices[: shape[0]]
    if topology.chip.torus and devices is not None:
        places = [device.coords[: topology.chip.torus] for device in devices.flat]
    elif topology.chip.torus:
        places = np.argwhere(np.ones(topology.shape, bool))
    else:
        places = [(number // topology.chip.host,) for number in range(math.prod(shape))]
    return Links(topology, np.asarray(places).reshape(*shape, -1))


def fitted(mesh: Mapping[str, int], count: int, slices: int = 1) -> dict[str, int]:
    """Fits a mesh to `count` chips: keeps `model`, `seq` and `fsdp` as far as they divide a slice.
    `data` gets the rest."""
    if slices > 1:
        inside = fitted(mesh, count // slices)
        return {"data": slices * inside.pop("data", 1), **inside}
    sizes = {axis: mesh.get(axis, 1) for axis in AXES}
    for axis in ("model", "seq"):
        sizes[axis] = math.gcd(sizes[axis], count)
    chips_left = count // (sizes["model"] * sizes["seq"])
    sizes["fsdp"] = math.gcd(sizes["fsdp"], chips_left)
    sizes["data"] = chips_left // sizes["fsdp"]
    return {axis: size for axis, size in sizes.items() if size > 1} or {"data": 1}
