"""Published checkpoints as workdirs, and models as published checkpoints again."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ptm_jax.convert import checkpoint
from ptm_jax.core import spec
from ptm_jax.core.errors import UserError
from ptm_jax.train.checkpoints import Checkpoints


def check_free(out: str | os.PathLike) -> None:
    """Raises UserError where a directory to be written holds something."""
    out = Path(out)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} is there already; choose another --out, or remove it")


def keep(out: str | os.PathLike, model: Any, found: checkpoint.Checkpoint) -> None:
    """Write an imported model as the workdir of a run of no steps: record, tokenizer, a checkpoint of step 0.

    The published config lies in the record, so that an export has every field of it. Whole or not at all.
    """
    out = Path(out).absolute()
    draft = out.with_name(out.name + ".draft")
    shutil.rmtree(draft, ignore_errors=True)
    try:
        draft.mkdir(parents=True)
        record = {"config": {"system": spec.to_json(found.system)}, "published": dict(found.config)}
        (draft / "config.json").write_text(json.dumps(record, indent=1), encoding="utf8")
        (draft / "config.txt").write_text(spec.to_text(found.system) + "\n", encoding="utf8")
        meta = {"tokenizer": None}
        if model.tokenizer is not None:
            model.tokenizer.save(draft / "tokenizer")
            meta["tokenizer"] = model.tokenizer.hash
        store = Checkpoints(draft, keep=1)
        store.save(0, {"params": model.params}, meta)
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
