"""The row of a run of a study: its figures and its status, in a file that processes share."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ptm_jax.core import spec
from ptm_jax.core.errors import UserError
from ptm_jax.training import workdirs
from ptm_jax.training.hosts import group
from ptm_jax.tuning.studies.points import Point

if TYPE_CHECKING:
    pass


ROW = "row.json"


def read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf8")) if path.is_file() else {}


def row_of(point: Point, workdir: Path) -> dict[str, Any] | None:
    """The row of a run that is done or has failed; None of one that is not run yet.

    Raises UserError where the row is that of another experiment."""
    if point.refusal:
        return new_row(point, status=f"refused: {point.refusal}")
    path = workdir / "runs" / point.name / ROW
    if not path.is_file():
        return None
    row = json.loads(path.read_text(encoding="utf8"))
    if row["fingerprint"] != _fingerprint(point):
        raise UserError(
            f"{path} is of another experiment than the study's now; choose another "
            "--workdir, or delete its folder"
        )
    return row


def forget_failures(runs: Sequence[Point], workdir: Path) -> None:
    """Deletes the rows of failed runs, so that they are run again from their last checkpoints."""
    for point in runs:
        row = row_of(point, workdir)
        if row is not None and row["status"].startswith("failed"):
            (workdir / "runs" / point.name / ROW).unlink()


def new_row(point: Point, **known: Any) -> dict[str, Any]:
    row = {"name": point.name, **point.labels}
    if point.cost is not None:
        row |= {
            "parameters": point.cost.parameters, "body": point.cost.body, "steps": point.steps,
            "tokens": point.tokens,
            "operations": point.total("operations"),
            "body_operations": point.total("body_operations"),
            "fingerprint": _fingerprint(point),
        }  # fmt: skip
    return row | known


def _fingerprint(point: Point) -> str:
    free: dict[str, Any] = {name: 0 for name in ("log_every", "eval_every", "save_every", "keep")}
    free |= {"mesh": (), "rules": "replicated"}
    free |= {"init": None} if point.task else {}
    record = spec.to_json(dataclasses.replace(point.config, data=(), metrics=(), **free))
    # fields that change no result, and that rows of 0.1.0 do not have
    known = {name: value for name, value in record.items() if name not in ("slices", "profile")}
    fingerprint = spec.fingerprint(known)
    more = point.transfers or point.value
    return (
        f"{fingerprint} {hashlib.sha256(repr(more).encode()).hexdigest()}" if more else fingerprint
    )


def write(point: Point, workdir: Path, row: dict[str, Any]) -> None:
    """Writes a row (process 0)."""
    if group.current().index:
        return
    path = workdir / "runs" / point.name / ROW
    with workdirs.writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        workdirs.replace(path, (json.dumps(row, indent=1) + "\n").encode())


def fail(point: Point, workdir: Path, reason: str) -> None:
    """Writes the row of a failed run."""
    write(point, workdir, new_row(point, status=f"failed: {reason}"))
