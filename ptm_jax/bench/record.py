"""The result of a benchmark: figures, the claimed ratio with its spread, and the settings."""

from __future__ import annotations

import dataclasses
import datetime
import importlib.metadata
import math
import os
import platform
import re
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

Figures = Mapping[str, float]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Entry:
    """One row of the table.

    ours, peers   {variant: {figure: value}}; seconds and rates are medians
    ratio         the claim: the median ratio over pairs; `settings["ratio"]` names both sides. If
                  None, see `settings["reason"]`
    spread        {"pairs", "low", "high"}: number of pairs, 10th and 90th percentile of their
                  ratios
    roofline      rates measured in the same run, and the share of them that was reached
    settings      `compares` (the figure shown in the table), shapes, versions, device, threads,
                  date
    """

    name: str
    ours: Mapping[str, Figures]
    peers: Mapping[str, Figures]
    ratio: float | None
    spread: Mapping[str, float]
    roofline: Figures
    settings: Mapping[str, Any]

    def document(self) -> dict[str, Any]:
        """Returns the entry as JSON values: four significant digits, null for NaN and infinity."""
        return {name: _plain(value) for name, value in vars(self).items()}


def spread(ratios: Sequence[float]) -> dict[str, float]:
    """Returns the number of pairs, and the 10th and 90th percentile of their ratios."""
    ordered = sorted(ratios)

    def at(share):
        return ordered[min(len(ordered) - 1, round(share * (len(ordered) - 1)))]

    return {"pairs": len(ordered), "low": at(0.1), "high": at(0.9)} if ordered else {"pairs": 0}


def over(a: Sequence[float], b: Sequence[float]) -> list[float]:
    """Returns a / b, elementwise."""
    return [x / y for x, y in zip(a, b, strict=True)]


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def settings(*, ratio: str, compares: str, **more: Any) -> dict[str, Any]:
    """Returns the settings of an entry: the caller's settings and this process's settings."""
    return {
        "ratio": ratio,
        "compares": compares,
        **more,
        "device": device(),
        "threads": threads(),
        "date": datetime.date.today().isoformat(),
        "versions": versions(),
        "environment": environment(),
    }


def environment() -> str:
    """Returns the environment variables that affect memory allocation and XLA."""
    names = ("GLIBC_TUNABLES", "XLA_FLAGS", "LD_PRELOAD", "MALLOC_ARENA_MAX")
    return (
        ", ".join(f"{name}={os.environ[name]}" for name in names if name in os.environ) or "default"
    )


def threads() -> int:
    """Returns the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def device() -> str:
    """Returns the name of the device, with the number of devices, or of cores for a CPU."""
    first = jax.devices()[0]
    if first.platform != "cpu":
        count = jax.device_count()
        return first.device_kind if count == 1 else f"{count} x {first.device_kind}"
    return f"{processor()}, {threads()} {'core' if threads() == 1 else 'cores'}"


def processor() -> str:
    """Returns the name of this machine's processor, with its widest unit for products."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf8")
    except OSError:
        text = ""
    fields = {
        name: (re.search(rf"^{name}\s*:\s*(.+)$", text, re.M) or [None, ""])[1]
        for name in ("model name", "flags")
    }
    units = [
        name
        for name in ("avx2", "avx512f", "avx512_bf16", "amx_bf16")
        if name in fields["flags"].split()
    ]
    name = fields["model name"] or platform.processor() or platform.machine()
    return f"{name} ({units[-1]})" if units else name


def versions() -> dict[str, str]:
    """Returns the versions of the measured packages, including installed peers."""
    versions_by_package = {"python": platform.python_version()}
    for package in (
        "ptm_jax",
        "jax",
        "jaxlib",
        "flax",
        "orbax-checkpoint",
        "torch",
        "transformers",
        "tokamax",
    ):
        try:
            versions_by_package[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions_by_package


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(part) for part in value]
    if isinstance(value, bool | int | str) or value is None:
        return value
    value = float(value)
    return float(f"{value:.4g}") if math.isfinite(value) else None
