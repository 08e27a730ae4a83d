"""A model from the directory of a training run, or from a published checkpoint: `ptm_jax.load(path)`."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ptm_jax.convert import checkpoint
from ptm_jax.convert.checkpoint import is_published
from ptm_jax.convert.config import Config
from ptm_jax.convert.hub import locate
from ptm_jax.core import spec
from ptm_jax.core.errors import UserError
from ptm_jax.core.precision import Compute, Precision
from ptm_jax.core.rebuild import rebuild
from ptm_jax.core.system import System, adapted, in_effect
from ptm_jax.core.types import Params
from ptm_jax.systems.kinds import kinds_of
from ptm_jax.tasks.pretrained import Pretrained

OPEN_SLOTS = ("examples", "corruption", "objective", "recipe", "tokenizer")
"""Slots that inference does not run: where one is of the user's own kind, its record stands in it."""


def load(
    path: str | os.PathLike,
    restore: Callable[..., tuple[Params, Mapping[str, Any], int]],
    tied: Callable[[Params, Any], Params],
    *,
    precision: Compute = "float32",
    tower: str | None = None,
    **published: Any,
) -> Pretrained:
    """`ptm_jax.load`, which hands over two functions of `train`, since tasks do not import it."""
    from ptm_jax.data import tokenizers

    path = Path(path)
    if not path.exists() or is_published(path):
        return from_published(path, precision=precision, **published)[0]
    given = [name for name, value in published.items() if value]
    if given:
        raise UserError(f"{path} is the directory of a run; {given[0]} is for published checkpoints")
    workdir = _workdir(path)
    record = _config(workdir)
    system = system_of(record["config"]["system"], precision)
    params, meta, _ = restore(path)
    tokenizer = tokenizers.load(workdir / "tokenizer") if (workdir / "tokenizer").is_dir() else None
    wanted = meta.get("tokenizer")
    if wanted is not None and tokenizer is None:
        raise UserError(f"{workdir} has no tokenizer; copy the directory `tokenizer` of the run back into it")
    if wanted is not None and tokenizer.hash != wanted:
        raise UserError(
            f"the tokenizer in {workdir / 'tokenizer'} does not match the checkpoint ({tokenizer.hash[:12]}, trained "
            f"with {wanted[:12]}); put the tokenizer of the run back, or train again"
        )
    name = tower or ("main" if "main" in system.towers else list(system.towers)[-1])
    published = Config(record.get("published") or {}, workdir / "config.json")
    return Pretrained(system, in_effect(system, tied(params, system.ties)), tokenizer, tower=name, published=published)


def from_published(
    path: str | os.PathLike,
    *,
    precision: Compute = "float32",
    architecture: str | None = None,
    allow_pickle: bool = False,
    revision: str | None = None,
) -> tuple[Pretrained, checkpoint.Checkpoint]:
    """(model, what was read) of a published checkpoint: a directory, or a name on the Hub. Raises UserError.

    What the checkpoint lacks or has beside the model is a line on stderr.
    """
    folder = locate(path, revision=revision, allow_pickle=allow_pickle)
    tokenizer = tokenizer_of(folder)
    found = checkpoint.read(
        folder,
        architecture=architecture,
        vocab=None if tokenizer is None else tokenizer.vocab,
        allow_pickle=allow_pickle,
    )
    for line in found.report.lines():
        print(f"{folder}: {line}", file=sys.stderr)
    towers = spec.respell(found.system.towers, Precision, Precision(precision))
    system = dataclasses.replace(found.system, towers=towers)
    return Pretrained(system, found.params, tokenizer, published=_with_generation(found.config)), found


def _with_generation(config: Config) -> Config:
    """A published config with the fields of the generation_config.json beside it, which newer ones say there alone."""
    file = Path(config.file).with_name("generation_config.json")
    said = Config.read(file) if file.is_file() else {}
    return Config({**config, **{name: value for name, value in said.items() if value is not None}}, config.file)


def tokenizer_of(folder: Path) -> Any:
    """The tokenizer that came with a published checkpoint; None where the directory has none."""
    from ptm_jax.data.published import FILES, read_published

    there = folder.is_dir() and any(next(folder.glob(pattern), None) for pattern in FILES)
    return read_published(folder) if there else None


def system_of(record: Any, precision: Compute = "float32") -> System:
    """The System of a run's record, its towers wrapped by its adaptations and at the given precision.

    Raises UserError where a tower, a tie or an adaptation is of a kind that ptm_jax does not have.
    """
    kinds = kinds_of()
    slots = {
        name: _lenient(part, kinds) if name in OPEN_SLOTS else rebuild(part, kinds, f"system.{name}")
        for name, part in record.items()
        if name != "kind"
    }
    system = adapted(System(**slots))
    towers = spec.respell(dict(system.towers), Precision, Precision(precision))
    return dataclasses.replace(system, towers=towers)


def _lenient(part: Any, kinds: Any) -> Any:
    try:
        return rebuild(part, kinds)
    except UserError:
        return part


def record_system(path: Path) -> Any:
    """The system's record of a workdir, or of the workdir of a checkpoint."""
    return _record(_workdir(path))


def _workdir(path: Path) -> Path:
    path = path.absolute()
    if re.fullmatch(r"step_\d+", path.name):
        path = path.parent
    return path.parent if path.name == "checkpoints" else path


def _record(workdir: Path) -> Any:
    """The system's record in a workdir's config.json."""
    return _config(workdir)["config"]["system"]


def _config(workdir: Path) -> dict[str, Any]:
    """A workdir's config.json, which holds a system."""
    file = workdir / "config.json"
    if not file.is_file():
        raise UserError(f"{workdir} is no workdir of a training run (it has no config.json); run `ptm train --workdir`")
    try:
        record = json.loads(file.read_text(encoding="utf8"))
        system = record["config"]["system"]
        if not isinstance(system, dict) or "towers" not in system:
            raise ValueError("it holds no system")
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{file} is damaged ({error}); restore it, or train again") from error
    return record
