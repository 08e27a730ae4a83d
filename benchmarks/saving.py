"""Benchmark of checkpoints of a training state: the time a save takes from the run, write rate and
restore rate."""

from __future__ import annotations

import dataclasses
import os
import shutil
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ptm_jax.bench import programs, timing
from ptm_jax.bench.peers import Peers
from ptm_jax.bench.programs import Sizes
from ptm_jax.bench.record import Entry, median, over, settings, spread
from ptm_jax.core.errors import UserError
from ptm_jax.training.checkpoints import Checkpoints

SAVE_EVERY = 100
"""Steps between two saves, for computing their share of a run."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SavingSizes(Sizes):
    """`folder` determines the disk to measure (default: the system's temporary folder)."""

    folder: str | None = None
    steps: int = 5


def run(sizes: SavingSizes, repeats: int, say: timing.Say, peers: Peers = Peers()) -> list[Entry]:
    """Measures stall, write rate and restore rate of asynchronous checkpoints of the parameters and
    both moments."""
    say("checkpoint: compiling the step")
    batch = programs.rows(sizes)
    work = programs.training(programs.bert(sizes, "bfloat16"), batch)
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(work.state))
    with tempfile.TemporaryDirectory(prefix="ptm-bench-", dir=sizes.folder) as name:
        folder = Path(name)
        _room(folder, 4 * size)
        trial = _Trial(folder, timing.Step(work.step, work.state, batch), size)
        meters = {
            "write": trial.save,
            "raw write": lambda: write_raw(folder, size),
            "restore": trial.restore,
            "raw read": lambda: timing.read_raw([folder / "raw.bin"]),
            "stall": trial.stall,
        }
        write_raw(folder, size)
        trial.quiet = median([trial.step() for _ in range(sizes.steps + 1)][1:])
        found = timing.alternate(meters, repeats, warmup=1, say=say)
        trial.store.wait()
    return [_entry(sizes, size, trial, found)]


def _entry(sizes: SavingSizes, size: int, trial: _Trial, found: dict[str, list[float]]) -> Entry:
    ratios = over(found["write"], found["raw write"])
    stalls = trial.calls[-len(found["stall"]) :]
    return Entry(
        name="checkpoint",
        ours={
            "write": {"bytes_per_second": median(found["write"])},
            "restore": {"bytes_per_second": median(found["restore"])},
            "stall": {
                "seconds": median(stalls),
                "share": median(stalls) / (SAVE_EVERY * trial.quiet),
                "seconds_with_slower_steps": median(found["stall"]),
                "share_with_slower_steps": median(found["stall"]) / (SAVE_EVERY * trial.quiet),
            },
        },
        peers={},
        ratio=median(ratios),
        spread=spread(ratios),
        roofline={
            "raw_write_bytes_per_second": median(found["raw write"]),
            "raw_read_bytes_per_second": median(found["raw read"]),
            "share": median(ratios),
            "restore_share": median(over(found["restore"], found["raw read"])),
        },
        settings=settings(
            ratio="bytes/s of a save until it has its name over a raw file that is written and "
            "flushed",
            compares="bytes_per_second",
            bytes=size,
            shares=f"of {SAVE_EVERY} steps, {trial.quiet:.3g} s each; one save each",
            restore="checksums of every file included; files dropped from memory first, as for the "
            "raw file",
            **sizes.shapes(),
        ),
    )


class _Trial:
    """A checkpoint store of a continuing run. `calls` lists the seconds that each call of `save`
    blocked the run."""

    def __init__(self, folder: Path, step: timing.Step, size: int):
        self.store = Checkpoints(folder, keep=1)
        self.step, self.size, self.folder = step, size, folder
        self.number, self.quiet, self.calls = 0, 0.0, []

    def _save(self) -> None:
        self.number += 1
        start = time.perf_counter()
        self.store.save(self.number, self.step.state, {})
        self.calls.append(time.perf_counter() - start)

    def save(self) -> float:
        """Returns the bytes/s of a save, from the call until it is complete."""
        start = time.perf_counter()
        self._save()
        self.store.wait()
        self.calls.pop()
        return self.size / (time.perf_counter() - start)

    def restore(self) -> float:
        """Returns the bytes/s of a restore: find the newest checkpoint, verify it, and load its
        arrays onto the device."""
        timing.forget(files(self.store.root))
        like = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), self.step.state
        )
        start = time.perf_counter()
        reader = Checkpoints(self.folder, writable=False)
        state: Any = reader.restore(like=like)[0]
        jax.block_until_ready(state)
        return self.size / (time.perf_counter() - start)

    def stall(self) -> float:
        """Returns the seconds that a save takes from the run: the call, and the slowdown of steps
        until it is complete."""
        start = time.perf_counter()
        self._save()
        steps = 0
        while steps == 0 or any(
            thread.name == f"checkpoint-{self.number}" for thread in threading.enumerate()
        ):
            self.step()
            steps += 1
        self.store.wait()
        return max(0.0, time.perf_counter() - start - steps * self.quiet)


def _room(folder: Path, size: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < size:
        have, need = f"{free / 1e9:.1f} GB", f"{size / 1e9:.1f} GB"
        raise UserError(
            f"{folder} has {have} free; the checkpoint benchmark needs {need}: set TMPDIR to "
            "another disk"
        )


def write_raw(folder: Path, size: int) -> float:
    """Returns the bytes/s of writing `size` bytes to a file in `folder`, including the sync to
    disk."""
    chunk = np.random.default_rng(0).bytes(1 << 24)
    path = folder / "raw.bin"
    start = time.perf_counter()
    with open(path, "wb", buffering=0) as file:
        for begin in range(0, size, len(chunk)):
            file.write(chunk[: size - begin])
        os.fsync(file.fileno())
    return size / (time.perf_counter() - start)


def files(folder: Path) -> list[Path]:
    """Returns all files under a folder, sorted."""
    return sorted(path for path in folder.rglob("*") if path.is_file())
