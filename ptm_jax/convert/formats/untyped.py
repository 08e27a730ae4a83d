"""Configs of published checkpoints whose config.json does not name its `model_type`.

The class in `architectures` gives it, or else the names of the tensors.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path

from ptm_jax.convert import engine
from ptm_jax.convert.config import Config
from ptm_jax.convert.family import Family, families
from ptm_jax.convert.files import open_tensors
from ptm_jax.core import towers
from ptm_jax.core.errors import UserError
from ptm_jax.core.paths import flatten
from ptm_jax.core.reading import read_bytes
from ptm_jax.core.system import System
from ptm_jax.core.types import Batch

FIELDS = ("model_type", "architectures", "hidden_size", "d_model", "n_embd", "emb_dim", "dim")
"""Fields of a config.json, of which every published one has at least one."""


def is_published(path: str | os.PathLike) -> bool:
    """Returns whether a directory has the config.json of a published checkpoint."""
    try:
        fields = json.loads(read_bytes(Path(path) / "config.json"))
    except (UserError, ValueError, RecursionError):
        return False
    return isinstance(fields, dict) and "config" not in fields and any(map(fields.get, FIELDS))


def read_config(folder: Path, example: Batch, allow_pickle: bool = False) -> Config:
    """Returns the config of a checkpoint, with its `model_type`.

    `example` is the smallest batch that initialises a tower of each family. Raises UserError for a
    missing or damaged file, and where the type is unknown."""
    config = Config.read(folder / "config.json")
    if config.get("model_type") is not None:
        return config
    named = config.get("architectures")
    named = named[0] if isinstance(named, list) and named else None
    fitting = [name for name in families.names() if named in families.get(name).heads]
    if not fitting and named is None:
        tensors = open_tensors(folder, allow_pickle)
        bounded = config.within(map(tensors.shape, tensors))
        fitting = _by_tensors(bounded, tensors.names(), example)
    if len(fitting) == 1:
        return config.filled(model_type=fitting[0])
    reason = (
        f"its tensors fit {', '.join(fitting)}"
        if fitting
        else f"neither its architectures ({named}) nor its tensors tell the type"
    )
    raise UserError(
        f"{config.file} has no field 'model_type', and {reason}; add the field, one of "
        f"{', '.join(fitting or families.names())}"
    )


def _by_tensors(config: Config, names: Iterable[str], example: Batch) -> list[str]:
    """Returns the families whose bare class is made of these tensors.
    Those whose root the names have come before those whose root they lack."""
    names = tuple(names)
    fitting = [
        name for name in families.names() if _fits(families.get(name), config, names, example)
    ]
    roots = {name: families.get(name).root for name in fitting}
    rooted = [
        name for name, root in roots.items() if root and any(root in tensor for tensor in names)
    ]
    return rooted or fitting


def _fits(family: Family, config: Config, names: tuple[str, ...], example: Batch) -> bool:
    typed = config.filled(model_type=family.name)
    try:
        system: System = family.build(typed, family.bare)
        lines = family.lines(typed, family.bare)
        shapes = towers.abstract(system.towers, example)["main"]
        flat = {path: leaf.shape for path, leaf in flatten(shapes).items()}
        leaf_at, unnamed = engine.leaves(flat, lines, len(names))
    except (UserError, ValueError, TypeError):
        return False
    wanted = {
        name
        for path, leaf in leaf_at.items()
        for name in leaf.names
        if not path.startswith("heads_")
    }
    return not unnamed and wanted <= set(engine.names_in_file(names, family, wanted))
