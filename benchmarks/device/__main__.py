"""The command: see the package."""

from __future__ import annotations

import argparse
import datetime
import importlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.device import isolate, page
from benchmarks.device.isolate import ROOT, Limits, Place

PARTS = {
    "kernels": Limits(110, workers=10, measure=15.0, together=False),
    "doctor": Limits(60, together=False, measure=45.0),
    "attention": Limits(90, workers=9, measure=15.0),
    "steps": Limits(90, workers=6),
    "vocabulary": Limits(30, workers=3),
    "training": Limits(60, measure=60.0),
    "vectors": Limits(40, workers=2),
    "torch_attention": Limits(60, workers=6),
    "torch_steps": Limits(90, workers=6, measure=80.0),
}
DRY = 60.0  # most seconds of a part with --dry


def main(words: list[str] | None = None) -> int:
    """Runs the parts and writes the page after each; returns the exit status."""
    args = _parser().parse_args(words)
    out = Path(args.out)
    logs = Path(args.logs or tempfile.mkdtemp(prefix="device-"))
    logs.mkdir(parents=True, exist_ok=True)
    if args.dry:
        os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["PTM_CACHE"] = tempfile.mkdtemp(prefix="device-cache-")
    end = time.monotonic() + args.seconds
    record: dict[str, Any] = {"facts": _facts(args.dry), "rates": _rates(args.dry), "parts": {}}
    print(record["facts"], record["rates"], flush=True)
    for name in args.parts:
        left = end - time.monotonic()
        if left < 10:
            record["parts"][name] = {"took": 0, "rows": [], "note": "Not run: the time was over."}
            continue
        record["parts"][name] = _part(name, left, Place(logs, args.dry))
        page.write(out, _name(record["facts"]), record)
    page.write(out, _name(record["facts"]), record)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.device", description=__doc__)
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--dry", action="store_true", help="tiny shapes, on a CPU")
    parser.add_argument("--out", default=str(ROOT / "benchmarks"), help="folder of page and JSON")
    parser.add_argument("--logs", help="folder of what the workers print (default: a new one)")
    parser.add_argument("--seconds", type=float, default=480.0, help="most seconds of all parts")
    return parser


def _part(name: str, left: float, place: Place) -> dict[str, Any]:
    start = time.monotonic()
    limits = PARTS[name]
    seconds = min(limits.seconds, left, DRY if place.dry else left)
    workers = min(limits.workers, 2 if place.dry else limits.workers)
    changes = {"seconds": seconds, "workers": workers}
    try:
        module = importlib.import_module(f"benchmarks.device.{name}")
        limits = Limits(**{**vars(limits), **changes})
        rows, note = isolate.run(name, module.items(place.dry), limits, place), ""
    except Exception as error:
        rows, note = [], f"Failed: {type(error).__name__}: {error}"
    took = time.monotonic() - start
    print(f"{name}: {took:.0f} s {note}", flush=True)
    return {"took": round(took, 1), "rows": rows, "note": note}


def _rates(dry: bool) -> dict[str, float]:
    """Returns the rates of the card, measured in a process that ends and frees its memory."""
    code = (
        f"import json; from benchmarks.device import clock; print(json.dumps(clock.rates({dry})))"
    )
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    try:
        import json

        return json.loads(ran.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        print(ran.stderr[-2000:], flush=True)
        return {}


def _facts(dry: bool) -> dict[str, Any]:
    """Returns card, versions, date, commit."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    card, driver = "CPU", ""
    if not dry:
        try:
            answer = subprocess.run(query, capture_output=True, text=True, check=True).stdout
            card, driver = (word.strip() for word in answer.splitlines()[0].split(","))
        except (OSError, subprocess.CalledProcessError, ValueError, IndexError):
            card = "unknown"
    packages = ("jax", "jaxlib", "jax-cuda13-plugin", "jax-cuda12-plugin", "nvidia-cudnn-cu13")
    packages += ("tokamax", "torch", "transformers")
    versions = [
        f"Python {sys.version.split()[0]}",
        *(f"{p} {v}" for p in packages if (v := _of(p))),
    ]
    if driver:
        versions.append(f"driver {driver}")
    return {
        "card": card,
        "versions": versions,
        "date": datetime.date.today().isoformat(),
        "commit": os.environ.get("DEVICE_COMMIT") or _commit(),
    }


def _of(package: str) -> str | None:
    import importlib.metadata

    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _commit() -> str:
    words = ["git", "rev-parse", "--short", "HEAD"]
    ran = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    return ran.stdout.strip() or "unknown"


def _name(facts: dict[str, Any]) -> str:
    return "_".join("".join(c if c.isalnum() else " " for c in facts["card"].lower()).split())


if __name__ == "__main__":
    sys.exit(main())
