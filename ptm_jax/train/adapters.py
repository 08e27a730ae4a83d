"""Saving what an adaptation trained, without the model that it was trained on."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ptm_jax.convert import adapterfile
from ptm_jax.core import paths
from ptm_jax.core.errors import UserError
from ptm_jax.core.rebuild import rebuild
from ptm_jax.systems.kinds import kinds_of
from ptm_jax.train import setup
from ptm_jax.train.checkpoints import restore_params
from ptm_jax.train.freedom import Freedom

LARGEST = 0.5
"""The share of a model above which its adaptation is no adapter."""


def parts(params: Any, adapt: tuple[Any, ...]) -> tuple[dict[str, Any], dict[str, Any]]:
    """({path: array} that some step moved or an adaptation added, {path: array} of the base, which is as it was)."""
    freedom = Freedom(tuple(w for w in adapt if hasattr(w, "trainable") or hasattr(w, "rate")))
    places, flat = freedom.places(params), paths.flatten(params)
    trained = {path for path in flat if freedom.trains(places[path])}
    return {k: v for k, v in flat.items() if k in trained}, {k: v for k, v in flat.items() if k not in trained}


def save(workdir: str | os.PathLike, out: str | os.PathLike) -> tuple[int, int, int]:
    """Write the adapter of a run as one file: (its bytes, its parameters, those of the base). Raises UserError."""
    workdir = Path(workdir).absolute()
    root = workdir.parents[1] if workdir.parent.name == "checkpoints" else workdir
    record = setup.record_of(root)["config"]
    adapt = rebuild(record["system"].get("adapt", []), kinds_of(), "system.adapt")
    own, rest = parts(restore_params(workdir)[0], tuple(adapt))
    ours, theirs = paths.count(own), paths.count(rest)
    if not own or ours > LARGEST * (ours + theirs):
        raise UserError(
            f"{root} trained {ours:,} of {ours + theirs:,} parameters, which is no adapter; `ptm export {root} --out DIR` "
            "writes the whole model"
        )
    name = record.get("init") or record["system"].get("name", "")
    file = adapterfile.AdapterFile(own, record["system"], adapterfile.digest(rest), tuple(sorted(rest)), Path(name).name)
    return adapterfile.write(out, file), ours, theirs
