"""The hosts and devices of a topology (`mesh.chips`), and their names on clusters.

Sources, all Google's documentation: TPU system architecture (accelerator types, chips per VM), TPU
software versions, "Plan TPUs in GKE" and "GPUs in GKE" (node labels).
"""

from __future__ import annotations

import dataclasses

from ptm_jax.core.errors import UserError
from ptm_jax.mesh.chips import Topology, topology

FLAT = ("1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")
CUBES = ("2x2x1", "2x2x2", "2x2x4", "2x4x4")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Names:
    """Names of a chip.

    gke       label of its GKE nodes
    family    Cloud TPU type
    runtime   software version of its TPU VMs
    """

    gke: str
    family: str = ""
    runtime: str = ""


NAMES = {
    "v4": Names(gke="tpu-v4-podslice", family="v4", runtime="tpu-ubuntu2204-base"),
    "v5e": Names(gke="tpu-v5-lite-podslice", family="v5litepod", runtime="v2-alpha-tpuv5-lite"),
    "v5p": Names(gke="tpu-v5p-slice", family="v5p", runtime="v2-alpha-tpuv5"),
    "v6e": Names(gke="tpu-v6e-slice", family="v6e", runtime="v2-alpha-tpuv6e"),
    "v100": Names(gke="nvidia-tesla-v100"),
    "a100": Names(gke="nvidia-a100-80gb"),
    "h100": Names(gke="nvidia-h100-80gb"),
    "h200": Names(gke="nvidia-h200-141gb"),
}


GATHERS = (
    "--xla_enable_async_all_gather=true",
    "--xla_tpu_enable_async_collective_fusion=true",
    "--xla_tpu_enable_async_collective_fusion_fuse_all_gather=true",
    "--xla_tpu_enable_async_collective_fusion_multiple_steps=true",
    "--xla_tpu_overlap_compute_collective_tc=true",
)
"""Flags of libtpu by which gathers of parameters run beside products: without them the TPU compiler
(0.0.42) has every gather of a v5p step between products. They are the group "continuation fusion
for all-gather" of MaxText's benchmarks/xla_flags_library.py; openxla.org/xla/flags_guidance has
three of them. `plan` compiles with the same flags where the variable is set."""
FLAGS = "LIBTPU_INIT_ARGS"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Hardware:
    """`hosts` machines with `devices` each, those of all slices, and their topology `where` if
    known. None: all devices of a host."""

    where: Topology | None = None
    hosts: int = 1
    devices: int | None = None

    @property
    def platform(self) -> str | None:
        return None if self.where is None else self.where.kind

    @property
    def total(self) -> int | None:
        return None if self.devices is None else self.hosts * self.devices

    @property
    def slices(self) -> int:
        """The slices of the topology."""
        return 1 if self.where is None else self.where.slices

    @property
    def shape(self) -> str:
        """The shape of a slice, such as 8x8x8."""
        return "x".join(map(str, self.where.shape))

    @property
    def names(self) -> Names | None:
        return None if self.where is None else NAMES.get(self.where.chip.name)


def parse(text: str | None, hosts: int | None = None, devices: int | None = None) -> Hardware:
    """Parses a topology.
    Without one, returns `hosts` with `devices` of unknown kind. Raises UserError."""
    for name, number in (("--hosts", hosts), ("--devices", devices)):
        if number is not None and number < 1:
            raise UserError(f"{name} is {number}; it must be at least 1")
    if text is None:
        return Hardware(hosts=hosts or 1, devices=devices)
    where = topology(text)
    if where.kind == "tpu":
        _check_slice(where)
    each = devices or (_of_a_host(where) if hosts is None else max(where.count // hosts, 1))
    count = hosts or max(where.count // each, 1)
    if count * each != where.count:
        raise UserError(
            f"{text} has {where.count} devices, which {count} hosts of {each} do not make; "
            "leave --hosts out"
        )
    if count % where.slices and where.kind == "tpu":
        raise UserError(
            f"{count} hosts do not divide into the {where.slices} slices of {text}; "
            "leave --hosts out"
        )
    return Hardware(where=where, hosts=count, devices=each)


def _check_slice(where: Topology) -> None:
    sizes, shape = where.shape, "x".join(map(str, where.shape))
    if len(sizes) == 2:
        fits, shapes = shape in FLAT, ", ".join(FLAT)
    else:
        fits = shape in CUBES or (
            sizes == tuple(sorted(sizes)) and not any(size % 4 for size in sizes)
        )
        shapes = f"{', '.join(CUBES)} and rising multiples of 4, as 4x4x8"
    if not fits:
        raise UserError(f"{where} is no slice of {where.chip.name}; there are {shapes}")


def _of_a_host(where: Topology) -> int:
    """Returns the devices of one host: all of a CPU; up to 8 GPUs; 4 chips of a TPU VM, or a flat
    slice of up to 8."""
    count = where.count // where.slices
    if where.kind == "cpu":
        return count
    if where.kind == "gpu":
        return min(8, count)
    return count if len(where.shape) == 2 and count <= 8 else min(4, count)
