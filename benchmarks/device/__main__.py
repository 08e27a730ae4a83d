"""The command: see the package."""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import importlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from benchmarks.device import isolate, page
from benchmarks.device.isolate import ROOT, Limits, Place, Run

DRY = 400.0  # most seconds of a part with --dry: a busy machine takes long

STAGES: tuple[dict[str, Limits], ...] = (
    {"kernels": Limits(workers=10, measure=15.0, together=False)},
    {
        "doctor": Limits(measure=45.0),
        "attention": Limits(workers=9, measure=15.0),
        "steps": Limits(workers=6),
        "vocabulary": Limits(workers=3),
        "vectors": Limits(workers=2),
    },
    {"training": Limits(measure=150.0, together=False), "torch_attention": Limits(workers=4)},
    {"torch_steps": Limits(workers=1)},
)
"""Parts that run at the same time. Their processes end with their stage, which frees the memory of
the device: with torch's models beside them, all parts at once filled 141 GB. One of torch's steps
takes up to 119 GB, so that its steps have a stage and a process for themselves."""
PARTS = {name: limits for stage in STAGES for name, limits in stage.items()}
BUILDING = 90.0  # seconds after which workers do not wait for the programs of others


def main(words: list[str] | None = None) -> int:
    """Runs the parts and writes the page after each; returns the exit status."""
    args = _parser().parse_args(words)
    logs = Path(args.logs or tempfile.mkdtemp(prefix="device-"))
    logs.mkdir(parents=True, exist_ok=True)
    if args.dry:
        os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["PTM_CACHE"] = tempfile.mkdtemp(prefix="device-cache-")
    place = Place(logs, args.dry, time.monotonic() + args.seconds)
    record: dict[str, Any] = {"facts": _facts(args.dry), "rates": _rates(args.dry), "parts": {}}
    print(record["facts"], record["rates"], flush=True)
    older = json.loads(Path(args.onto).read_text("utf8")) if args.onto else None
    writing = threading.Lock()

    def one(run: Run) -> None:
        start = time.monotonic()
        rows = run.go()
        took = time.monotonic() - start
        print(f"{run.part}: {took:.0f} s", flush=True)
        with writing:
            record["parts"][run.part] = {"took": round(took, 1), "rows": rows}
            whole = page.merged(older, record) if older else record
            page.write(Path(args.out), _name(record["facts"]), whole)

    for stage in STAGES:
        runs = [_run(name, place, args.classes) for name in stage if name in args.parts]
        isolate.share(runs, BUILDING)
        if args.dry:  # two cores: one part after the other
            for run in runs:
                isolate.share([run], DRY)
                run.end = time.monotonic() + DRY
                one(run)
            continue
        threads = [threading.Thread(target=one, args=(run,), daemon=True) for run in runs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(1.0, place.end + 20 - time.monotonic()))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.device", description=__doc__)
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--dry", action="store_true", help="tiny shapes, on a CPU")
    parser.add_argument("--out", default=str(ROOT / "benchmarks"), help="folder of page and JSON")
    parser.add_argument("--logs", help="folder of what the workers print (default: a new one)")
    parser.add_argument("--seconds", type=float, default=480.0, help="most seconds of all parts")
    parser.add_argument("--classes", nargs="+", type=int, help="numbers of classes of kernels")
    parser.add_argument("--onto", help="JSON of an earlier run, whose other rows stay")
    return parser


def _run(name: str, place: Place, classes: list[int] | None) -> Run:
    """Returns the run of a part."""
    items = importlib.import_module(f"benchmarks.device.{name}").items(place.dry)
    if name == "kernels" and classes:
        items = [items[number] for number in classes]
    limits = PARTS[name]
    workers = min(limits.workers, len(items), 2 if place.dry else len(items))
    measure = DRY if place.dry else limits.measure
    limits = dataclasses.replace(limits, workers=workers, measure=measure)
    return Run(name, items, limits, place)


def _rates(dry: bool) -> dict[str, float]:
    """Returns the rates of the card, measured in a process that ends and frees its memory."""
    code = (
        f"import json; from benchmarks.device import clock; print(json.dumps(clock.rates({dry})))"
    )
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    try:
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
