"""Published checkpoints as workdirs, and models as published checkpoints again."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ptm_jax.convert import checkpoint
from ptm_jax.core import paths, spec
from ptm_jax.core.errors import UserError
from ptm_jax.core.types import Params
from ptm_jax.data import tokenizers
from ptm_jax.train.checkpoints import Checkpoints, restore_params
from ptm_jax.train.initial import finished, workdir_of


def check_free(out: str | os.PathLike) -> None:
    """Raises UserError where a directory to be written holds something."""
    out = Path(out)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} is there already; choose another --out, or remove it")


def keep(out: str | os.PathLike, model: Any, found: checkpoint.Checkpoint) -> None:
    """Write an imported model as the workdir of a run of no steps: record, tokenizer, a checkpoint of step 0.

    The published config lies in the record, so that an export has every field of it. Whole or not at all.
    """
    record = {"config": {"system": spec.to_json(found.system)}, "published": dict(found.config)}
    write(out, record, model.tokenizer, model.params)


def average(models: Sequence[str], out: str | os.PathLike) -> Params:
    """Write the mean of several runs' parameters as `keep` does, and return it. One model at a time is in memory.

    The models are as another run would begin with them: what adaptations kept beside a network is in it. Raises UserError:
    fewer than two, or networks, tokenizers or shapes that differ.
    """
    check_free(out)
    if len(models) < 2:
        raise UserError(f"the mean of {len(models)} models is nothing new; name two or more")
    first, total = None, {}
    for model in models:
        folder = workdir_of(Path(model))
        read = _record(folder)
        params, meta, _ = restore_params(model)
        system = dict(read["config"]["system"])
        system["adapt"], params = finished(system.get("adapt", []), params)
        flat = {path: np.asarray(leaf, np.float64) for path, leaf in paths.flatten(params).items()}
        mine = {"towers": system["towers"], "adaptations": system["adapt"], "tokenizer": meta.get("tokenizer")}
        mine["parameters"] = {path: leaf.shape for path, leaf in flat.items()}
        if first is None:
            first, record = mine, {**read, "config": {**read["config"], "system": system}, "averaged": list(models)}
            tokenizer = tokenizers.load(folder / "tokenizer") if mine["tokenizer"] else None
        for name, value in mine.items():
            if value != first[name]:
                raise UserError(f"{model} and {models[0]} differ in their {name}; the mean is of models of one network")
        total = {path: total.get(path, 0.0) + leaf / len(models) for path, leaf in flat.items()}
    mean = paths.unflatten({path: leaf.astype(np.float32) for path, leaf in total.items()})
    write(out, record, tokenizer, mean)
    return mean


def _record(workdir: Path) -> dict[str, Any]:
    """The record of a workdir, with its system. Raises UserError."""
    file = workdir / "config.json"
    try:
        record = json.loads(file.read_text(encoding="utf8"))
        record["config"]["system"]["towers"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{workdir} is no workdir of a run ({file.name}: {error!r}); `ptm import` makes one") from error
    return record


def write(out: str | os.PathLike, record: Mapping[str, Any], tokenizer: Any, params: Params) -> None:
    """A workdir of a run of no steps from its record {"config": {"system": ..}}, whole or not at all. Raises UserError."""
    out = Path(out).absolute()
    draft = out.with_name(out.name + ".draft")
    shutil.rmtree(draft, ignore_errors=True)
    try:
        draft.mkdir(parents=True)
        (draft / "config.json").write_text(json.dumps(record, indent=1), encoding="utf8")
        (draft / "config.txt").write_text(spec.to_text(record["config"]["system"]) + "\n", encoding="utf8")
        meta = {"tokenizer": None}
        if tokenizer is not None:
            tokenizer.save(draft / "tokenizer")
            meta["tokenizer"] = tokenizer.hash
        store = Checkpoints(draft, keep=1)
        store.save(0, {"params": params}, meta)
        store.wait()
        if out.exists():
            out.rmdir()  # empty: `check_free`
        draft.replace(out)
    except OSError as error:
        raise UserError(
            f"cannot write {out}: {error.strerror or error}; free space there, or choose another --out"
        ) from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def config_of(model: str | os.PathLike) -> Mapping[str, Any] | None:
    """The published config that a model's directory keeps; None where it has none."""
    path = Path(model)
    for folder in (path, *path.absolute().parents[:2]):
        try:
            record = json.loads((folder / "config.json").read_text(encoding="utf8"))
        except (OSError, ValueError):
            continue
        return record if checkpoint.is_published(folder) else record.get("published")
    return None


def export(
    out: str | os.PathLike,
    model: Any,
    config: Mapping[str, Any] | None = None,
    *,
    dtype: str = "float32",
    max_shard_bytes: int,
) -> list[Path]:
    """Write a model as a Hugging Face directory; returns its files. Whole or not at all. Raises UserError."""
    from ptm_jax.data.published import write_published

    out = Path(out).absolute()
    draft = out.with_name(out.name + ".draft")
    shutil.rmtree(draft, ignore_errors=True)
    system = dataclasses.replace(model.system, towers={"main": model.module})
    try:
        params = {"main": model.params[model.tower]}
        checkpoint.write(draft, system, params, config=config, dtype=dtype, max_shard_bytes=max_shard_bytes)
        if model.tokenizer is not None:
            write_published(model.tokenizer, draft)
        if out.exists():
            out.rmdir()
        draft.replace(out)
    except OSError as error:
        raise UserError(
            f"cannot write {out}: {error.strerror or error}; free space there, or choose another --out"
        ) from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return [file for file in out.iterdir() if file.is_file()]
