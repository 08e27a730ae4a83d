"""Benchmark of importing a published checkpoint into shards on eight devices: seconds and memory,
relative to raw reads."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import shutil
import tempfile
from pathlib import Path

from benchmarks import peer, streaming
from ptm_jax.bench import timing
from ptm_jax.bench.peers import Peers
from ptm_jax.bench.record import Entry, median, over, settings, spread
from ptm_jax.core.errors import UserError

MESHES = {
    "fsdp": ({"fsdp": streaming.DEVICES}, "fsdp"),
    "megatron": ({"model": streaming.DEVICES}, "megatron"),
}
"""{name: (axes of the mesh, rules of its layout)}"""

Reports = dict[str, list[dict]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImportSizes:
    """A BERT of 2 GB in five files, created in `folder` (default: the system's temporary
    folder)."""

    width: int = 2048
    layers: int = 9
    vocab: int = 24064
    shard: int = 500_000_000
    meshes: tuple[str, ...] = tuple(MESHES)
    folder: str | None = None


def run(sizes: ImportSizes, repeats: int, say: timing.Say, peers: Peers = Peers()) -> list[Entry]:
    """Returns one row per mesh. Each import and each read runs in its own process, and they
    alternate."""
    with tempfile.TemporaryDirectory(prefix="ptm-bench-", dir=sizes.folder) as name:
        folder, need = (
            Path(name),
            4.2 * sizes.width * (12 * sizes.width * sizes.layers + sizes.vocab) + 1e8,
        )
        if (free := shutil.disk_usage(folder).free) < need:
            have = (
                f"{folder} has {free / 1e9:.1f} GB free; the import benchmark needs "
                f"{need / 1e9:.1f} GB"
            )
            raise UserError(f"{have}: set TMPDIR to another disk")
        say("import: writing the checkpoint")
        total, largest = streaming.write(
            folder, width=sizes.width, layers=sizes.layers, vocab=sizes.vocab, shard=sizes.shard
        )
        words = {"read": ("read", name)}
        words |= {
            mesh: ("import", name, json.dumps(MESHES[mesh][0]), MESHES[mesh][1])
            for mesh in sizes.meshes
        }
        if peer.missing() is None and importlib.util.find_spec("safetensors") is not None:
            words["torch"] = ("torch", name)
        reports: Reports = {key: [] for key in words}
        timing.alternate(
            {key: _meter(reports[key], given) for key, given in words.items()},
            repeats,
            warmup=0,
            say=say,
        )
    return [_entry(sizes, mesh, reports, total, largest) for mesh in sizes.meshes]


def _meter(reports: list[dict], words: tuple[str, ...]) -> timing.Meter:
    """Returns a meter of the seconds that a process with these arguments reports; `reports` gets
    its full report."""

    def meter() -> float:
        reports.append(streaming.measure(*words))
        return reports[-1]["seconds"]

    return meter


def _figures(reports: list[dict]) -> dict[str, float]:
    seconds = [one["seconds"] for one in reports]
    return {
        "seconds": median(seconds),
        "best_seconds": min(seconds),
        "cpu_seconds": median([one["cpu"] for one in reports]),
    }


def _entry(sizes: ImportSizes, mesh: str, reports: Reports, total: int, largest: int) -> Entry:
    ours, reading = reports[mesh], reports["read"]
    if not all(one["right"] and not one["extra"] for one in ours):
        raise RuntimeError(f"the import into {mesh} gave other values than the files hold")
    mine, theirs = _figures(ours), _figures(reading)
    ratios = over([one["seconds"] for one in ours], [one["seconds"] for one in reading])
    peak, held = max(one["peak"] for one in ours), ours[0]["held"]
    return Entry(
        name=f"import/{mesh}",
        ours={
            "import": {
                **mine,
                "best_over_best": mine["best_seconds"] / theirs["best_seconds"],
                "cpu_over_cpu": mine["cpu_seconds"] / theirs["cpu_seconds"],
                "peak_bytes": peak,
                "peak_over_bound": peak / (held + largest),
            }
        },
        peers={"safetensors into torch": _figures(reports["torch"])} if "torch" in reports else {},
        ratio=median(ratios),
        spread=spread(ratios),
        roofline={
            **{f"read_{name}": value for name, value in theirs.items()},
            "share": median([1 / r for r in ratios]),
        },
        settings=settings(
            ratio="seconds of an import into shards over those of having all bytes of the files in "
            "memory; less is better",
            compares="seconds",
            bytes=total,
            bound="of memory: the shards and the largest tensor",
            files="in the system's memory before each",
            mesh=MESHES[mesh][0],
            forced_host_devices=streaming.DEVICES,
            **{name: getattr(sizes, name) for name in ("width", "layers", "vocab")},
        ),
    )
