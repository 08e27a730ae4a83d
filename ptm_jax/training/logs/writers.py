"""Writers of metrics: csv, TensorBoard, Weights & Biases (`ptm train --metrics`). metrics.jsonl is
always written.

A writer is a value with `write(step, split, values)` and `close()`. It is made as `Writer(workdir,
step, name)` when a run starts or resumes at `step`; csv drops its lines of later steps, TensorBoard
hides them, Weights & Biases keeps them. `WRITERS` has them by name.
"""

from __future__ import annotations

import contextlib
import csv
import hashlib
import importlib.util
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from ptm_jax.core.errors import UserError, unknown
from ptm_jax.training import workdirs

COLUMNS = ("step", "split", "metric", "value")


class Writer(Protocol):
    """Receives the metrics of a run.
    `split` is "train" or "heldout", `values` has finite numbers by name."""

    def write(self, step: int, split: str, values: Mapping[str, float]) -> None:
        """Writes the metrics of a step."""

    def close(self) -> None:
        """Writes the pending metrics, and ends."""


class Csv:
    """WORKDIR/metrics.csv with a line for each number: step, split, metric, value."""

    def __init__(self, workdir: Path, step: int, name: str = ""):
        path = workdir / "metrics.csv"
        with workdirs.writing(path):
            lines = path.read_bytes().split(b"\n")[1:-1] if path.is_file() else []
            if odd := [
                n
                for n, line in enumerate(lines, 2)
                if not re.fullmatch(rb"\d+,\w+,.+,[-+.e\d]+", line)
            ]:
                raise UserError(
                    f"{path}:{odd[0]} is damaged, it has no step, split, metric, value; move "
                    "the file away"
                )
            earlier = [line for line in lines if int(line.partition(b",")[0]) <= step]
            workdirs.replace(path, b"\n".join([",".join(COLUMNS).encode(), *earlier, b""]))
            self._file = path.open("a", encoding="utf8", newline="")

    def write(self, step: int, split: str, values: Mapping[str, float]) -> None:
        rows = [(step, split, name, value) for name, value in values.items()]
        csv.writer(self._file, lineterminator="\n").writerows(rows)
        self._file.flush()

    def close(self) -> None:
        self._file.close()


class TensorBoard:
    """Events in WORKDIR/tensorboard (tensorboardX)."""

    def __init__(self, workdir: Path, step: int, name: str = ""):
        with _not_imported("torch"):  # which tensorboardX imports for tensors, in 1.6 s
            from tensorboardX import SummaryWriter

        self._board = SummaryWriter(str(workdir / "tensorboard"), purge_step=step + 1)

    def write(self, step: int, split: str, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._board.add_scalar(f"{split}/{name}", value, step)

    def close(self) -> None:
        self._board.close()


@contextlib.contextmanager
def _not_imported(package: str) -> Iterator[None]:
    """An optional import of a package fails inside, unless the package is there already."""
    absent = package not in sys.modules
    if absent:
        sys.modules[package] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        if absent:
            del sys.modules[package]


class Wandb:
    """A run of Weights & Biases, in the project of WANDB_PROJECT or "ptm_jax".
    A resumed workdir continues its run."""

    def __init__(self, workdir: Path, step: int, name: str = ""):
        import wandb

        run_id = hashlib.sha256(str(workdir.absolute()).encode()).hexdigest()[:16]
        workdir.mkdir(parents=True, exist_ok=True)
        project = os.environ.get("WANDB_PROJECT", "ptm_jax")
        self._run = wandb.init(
            project=project, id=run_id, name=name or workdir.name, resume="allow", dir=str(workdir)
        )

    def write(self, step: int, split: str, values: Mapping[str, float]) -> None:
        self._run.log({f"{split}/{name}": value for name, value in values.items()}, step=step)

    def close(self) -> None:
        self._run.finish()


WRITERS: dict[str, tuple[Any, str]] = {
    "csv": (Csv, ""),
    "tensorboard": (TensorBoard, "tensorboardX"),
    "wandb": (Wandb, "wandb"),
}
"""{name: (writer, the package that it needs)}."""


def check(names: Sequence[str]) -> None:
    """Raises UserError for an unknown writer, or one whose package is not installed."""
    for name in names:
        if name not in WRITERS:
            raise unknown("writer of metrics", name, WRITERS)
        if name != "tensorboard" and not _installed(name):
            package = WRITERS[name][1]
            raise UserError(
                f"metrics to {name} need the package {package}, which is not installed; pip "
                f"install {package}"
            )


def opened(names: Sequence[str], workdir: Path, step: int, name: str = "") -> list[Writer]:
    """Returns the writers of a run.
    TensorBoard, the default, is left out where tensorboardX is not installed."""
    return [WRITERS[each][0](workdir, step, name) for each in names if _installed(each)]


def _installed(name: str) -> bool:
    package = WRITERS[name][1]
    return not package or importlib.util.find_spec(package) is not None
