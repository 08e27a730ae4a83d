"""Specifications of chips and topologies, for `ptm plan` and for the utilisation of a run.

Figures are the vendors', per chip and for dense products, unless noted:
- TPU: Google Cloud, "TPU v4", "v5e", "v5p", "v6e" system architecture pages (peak, HBM capacity and
  bandwidth; 95 GiB of HBM in a v5p). JAX multiplies float32 in bfloat16 passes there by default, so
  float32 has the same peak. `link` is the achieved rate of one link in one direction, 0.9 of the
  page's figure (Austin et al. 2025, "How to scale your model", chapter 2). An axis of the torus
  wraps around at 16 chips on v5e and v6e, at multiples of 4 on v4 and v5p. `network` is a chip's
  share of its host's data-centre network, in one direction: v5p 50 Gb/s a chip, v5e and v6e 6.4 and
  25.6 Tb/s a pod of 256 chips, by their pages; v4 2.5e10 bytes/s a host of 4 chips (Austin et al.).
- V100 (SXM2), A100, H100 (SXM, PCIe, NVL), H200: NVIDIA's data sheets. float32 is TF32 from A100
  on, which is what XLA uses; V100 has no bfloat16 units and computes it in float32. `link` is one
  direction of a device's NVLink, `network` its share of a host's InfiniBand (DGX: 100 Gb/s per two
  V100, 200 Gb/s per A100, 400 Gb/s per H100 and H200).
- CPU: no data sheet applies; see `training.hosts.devices`.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import math
import os
import re
import sys
from importlib.metadata import distributions, requires
from pathlib import Path

from ptm_jax.core.errors import UserError

GIB = 2**30


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chip:
    """Specification of one device.

    pattern             regular expression for `device.device_kind`
    bfloat16, float32   peak of products, FLOP/s
    hbm, hbm_rate       bytes, bytes/s
    link                bytes/s in one direction, of one torus link or of a device at a switch
    torus               number of dimensions of the torus; 0: a switch connects the devices of a
                        host
    wraps               an axis of the torus is a ring if its size is a multiple of this
    host, network       devices at one switch; bytes/s per device to other hosts (TPU: to other
                        slices)
    accelerator         accelerator type for the TPU compiler
    """

    name: str
    pattern: str
    bfloat16: float
    float32: float
    hbm: float = 0.0
    hbm_rate: float = 0.0
    link: float = 0.0
    torus: int = 0
    wraps: int = 0
    host: int = 1
    network: float = 0.0
    accelerator: str = ""


def _tpu(name, pattern, tera, gib, rate, **more) -> Chip:
    flops = tera * 1e12
    return Chip(
        name=name, pattern=pattern, bfloat16=flops, float32=flops, hbm=gib * GIB, hbm_rate=rate,
        **more,
    )  # fmt: skip


def _gpu(
    name, pattern, bfloat16, float32, gigabytes=0.0, *, rate=0.0, link=0.0, network=0.0, host=8
) -> Chip:
    sizes = {
        "hbm": gigabytes * 1e9,
        "hbm_rate": rate,
        "link": link,
        "host": host,
        "network": network,
    }
    return Chip(
        name=name, pattern=pattern, bfloat16=bfloat16 * 1e12, float32=float32 * 1e12, **sizes
    )


# The first pattern that matches wins.
CHIPS: tuple[Chip, ...] = (
    _tpu(
        "v4",
        r"TPU v4$",
        275.0,
        32,
        1228e9,
        link=45e9,
        torus=3,
        wraps=4,
        network=6.25e9,
        accelerator="v4-8",
    ),
    _tpu(
        "v5e",
        r"TPU v5 ?(lite|e)",
        197.0,
        16,
        819e9,
        link=45e9,
        torus=2,
        wraps=16,
        network=3.125e9,
        accelerator="v5litepod-4",
    ),
    _tpu(
        "v5p",
        r"TPU v5p?$",
        459.0,
        95,
        2765e9,
        link=90e9,
        torus=3,
        wraps=4,
        network=6.25e9,
        accelerator="v5p-8",
    ),
    _tpu(
        "v6e",
        r"TPU v6 ?(lite|e)",
        918.0,
        32,
        1640e9,
        link=90e9,
        torus=2,
        wraps=16,
        network=12.5e9,
        accelerator="v6e-4",
    ),
    _gpu("h200", r"H200", 989.4, 494.7, 141, rate=4800e9, link=450e9, network=50e9),
    _gpu("h100-pcie", r"H100.*PCIe", 756.0, 378.0, 80, rate=2000e9, link=64e9, network=25e9),
    _gpu("h100-nvl", r"H100.*NVL", 835.0, 417.5, 94, rate=3900e9, link=300e9, network=50e9),
    _gpu("h100", r"H100", 989.4, 494.7, 80, rate=3350e9, link=450e9, network=50e9),
    _gpu("a100", r"A100", 312.0, 156.0, 80, rate=2039e9, link=300e9, network=25e9),
    _gpu("v100", r"V100", 15.7, 15.7, 32, rate=900e9, link=150e9, network=6.25e9, host=16),
)

# An order of magnitude, for two cores and four channels of DDR5, shared by all forced devices.
CPU = Chip(
    name="cpu",
    pattern=r"cpu",
    bfloat16=1e12,
    float32=2e11,
    hbm=16 * GIB,
    hbm_rate=1e11,
    link=1e10,
    host=1024,
    network=1e9,
)


@dataclasses.dataclass(frozen=True)
class Topology:
    """Chips of one kind. `shape` is the torus of TPUs, else the number of chips, of each of
    `slices` slices."""

    chip: Chip
    shape: tuple[int, ...]
    slices: int = 1

    @property
    def count(self) -> int:
        """The number of chips of all slices."""
        return math.prod(self.shape) * self.slices

    @property
    def kind(self) -> str:
        """The platform: "tpu", "cpu" or "gpu". For "gpu" there is no compiler here."""
        return "tpu" if self.chip.torus else "cpu" if self.chip is CPU else "gpu"

    def __str__(self) -> str:
        sizes = "x".join(map(str, self.shape))
        times = f"*{self.slices}" if self.slices > 1 else ""
        return f"{self.chip.name}{'x' if self.kind == 'gpu' else ':'}{sizes}{times}"

    def wraps(self, dim: int) -> bool:
        """Returns whether this axis of the torus is a ring."""
        return self.shape[dim] % self.chip.wraps == 0


def chip_of(device_kind: str) -> Chip | None:
    """Returns the chip for JAX's `device_kind`, or None if unknown."""
    return next((chip for chip in CHIPS if re.search(chip.pattern, device_kind)), None)


def topology(text: str) -> Topology:
    """Parses a topology such as `v5p:8x8x8`, `v6e:16x16*2`, `h200x8` or `cpu:8`.
    Raises UserError."""
    chips = {chip.name: chip for chip in (*CHIPS, CPU)}
    names = "|".join(sorted(chips, key=len, reverse=True))
    size = r"[1-9]\d*"
    match = re.fullmatch(rf"({names})[:x]({size}(?:x{size})*)(?:\*({size}))?", text.strip().lower())
    if not match:
        known = ", ".join(chips)
        raise UserError(
            f"no such topology: {text!r}; name one as v5p:8x8x8, v6e:16x16, h200x8 or "
            f"cpu:8, or several slices as v5e:16x16*4 (chips: {known})"
        )
    chip, slices = chips[match[1]], int(match[3] or 1)
    shape = tuple(int(size) for size in match[2].split("x"))
    if chip.torus and len(shape) != chip.torus:
        example = {2: "16x16", 3: "8x8x8"}[chip.torus]
        raise UserError(
            f"a {chip.name} slice has {chip.torus} dimensions, as {chip.name}:{example}; "
            f"given {text!r}"
        )
    if slices > 1 and not chip.torus and chip is not CPU:
        raise UserError(
            f"{chip.name} has no slices; write {chip.name}x{math.prod(shape) * slices}, whose "
            "hosts the network connects"
        )
    return Topology(chip, shape if chip.torus else (math.prod(shape),), slices)


def wanted() -> str:
    """Returns the pip requirement of the installed JAX's libtpu.
    Programs of other versions cannot be printed."""
    return next(
        (need.split(";")[0].strip() for need in requires("jax") or () if need.startswith("libtpu")),
        "libtpu",
    )


def wrong_version(folder: Path) -> str | None:
    """Returns the version of a folder's libtpu if the installed JAX asks for another, else None."""
    asked = wanted().partition("==")[2].removesuffix("*")
    version = next((one.version for one in distributions(name="libtpu", path=[str(folder)])), None)
    return version if version and not f"{version}.".startswith(asked.rstrip(".") + ".") else None


def libtpu() -> Path | None:
    """Returns the folder from which a child process imports `libtpu`, or None.

    Looks in PTM_LIBTPU, in the `tpu` folder of this environment (from `make test-full`), and in the
    installed packages."""
    for folder in (os.environ.get("PTM_LIBTPU"), os.path.join(sys.prefix, "tpu")):
        if folder and (Path(folder) / "libtpu").is_dir():
            return Path(folder).absolute()
    spec = importlib.util.find_spec("libtpu")
    return None if spec is None or spec.origin is None else Path(spec.origin).parents[1]


def environment(where: Topology) -> dict[str, str]:
    """Returns the environment variables of a process that compiles for a topology.
    Set them before it imports JAX.

    Raises UserError if the TPU compiler is missing."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("TPU_")}
    variables["JAX_PLATFORMS"] = "cpu"
    if where.kind == "cpu":
        flags = re.sub(
            r"--xla_force_host_platform_device_count=\d+", "", variables.get("XLA_FLAGS", "")
        )
        variables["XLA_FLAGS"] = (
            f"{flags} --xla_force_host_platform_device_count={where.count}".strip()
        )
    if where.kind == "tpu":
        folder = libtpu()
        if folder is None:
            raise UserError(
                f"compiling for {where} needs the TPU compiler, libtpu, which is not "
                "installed; pip install 'ptm_jax[tpu]', "
                f"or pip install --no-deps --target DIR '{wanted()}' and PTM_LIBTPU=DIR"
            )
        if version := wrong_version(folder):
            raise UserError(
                f"compiling for {where} needs {wanted()}, and {folder} has libtpu {version}, "
                "whose programs this JAX cannot "
                f"read; pip install --no-deps --target DIR '{wanted()}' and PTM_LIBTPU=DIR"
            )
        variables["PYTHONPATH"] = os.pathsep.join(
            filter(None, [str(folder), variables.get("PYTHONPATH")])
        )
        variables["TPU_SKIP_MDS_QUERY"] = "1"
        variables["ALLOW_MULTIPLE_LIBTPU_LOAD"] = (
            "1"  # no chip is in use, so several processes may compile at once
        )
        variables["TPU_ACCELERATOR_TYPE"] = where.chip.accelerator
        variables["TPU_WORKER_HOSTNAMES"] = "localhost"
    return variables


def devices(where: Topology) -> list:
    """Returns the devices of a topology, one per chip.
    The process must have its `environment`. Not for "gpu"."""
    import jax

    if where.kind == "cpu":
        return jax.devices()[: where.count]
    from jax.experimental import topologies

    name = f"{where.chip.name}:{'x'.join(map(str, where.shape))}"
    # A v4 chip is two devices unless its cores are combined, as on Cloud TPU.
    options = {"chip_config_name": "megacore"} if where.chip.name == "v4" else {}
    # A slice consists of whole hosts of 2x2x1 chips, unless it is smaller than one.
    bounds = tuple(min(size, 2) for size in where.shape[:2]) + (1,) * (len(where.shape) - 2)
    if where.chip.torus == 2:
        bounds = (*bounds, 1)
    try:
        description = topologies.get_topology_desc(
            platform="tpu",
            topology_name=name,
            chips_per_host_bounds=bounds,
            num_slices=where.slices,
            **options,
        )
    except Exception as error:
        reason = str(error).splitlines()[0]
        raise UserError(
            f"the TPU compiler knows no {where}: {reason}; choose a shape that Cloud TPU has"
        ) from error
    return list(description.devices)
