"""The target of a command: a system of the catalogue or the user's config, with `--set` applied."""

from __future__ import annotations

import os
import re
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ptm_jax.core.errors import UserError, closest, unknown_of_many


def resolve(target: str, sets: Sequence[str] = (), *, experiment: bool = False) -> Any:
    """The System or Experiment that `target` names, with the 'path=value' words of `sets` applied.

    `target` is a name of the catalogue, two of them joined by "+" (an encoder and a task), a .py file that defines
    `config` or `experiment()`, or the directory of a Hugging Face checkpoint, whose parameters an experiment begins with.
    A name of the catalogue wins over a directory of that name without a published checkpoint. With `experiment`, a
    System becomes an Experiment first, so that `sets` may reach its fields too. Raises UserError.
    """
    from ptm_jax.convert.checkpoint import is_published
    from ptm_jax.core.system import Experiment, System

    if Path(target).is_dir() and (is_published(target) or not _is_system(target)):
        value = _published(target)
    else:
        is_file_name = target.endswith(".py") or os.sep in target or "/" in target
        value = load_file(target) if is_file_name else _named(target)
    if experiment and isinstance(value, System):
        value = Experiment(system=value)
    return changed(value, sets)


def changed(value: Any, sets: Sequence[str]) -> Any:
    """`value` with the 'path=value' words of --set applied. Raises UserError."""
    from ptm_jax.core import spec
    from ptm_jax.core.spec.classes import kinds_of

    changes = spec.parse_pairs(sets)
    named = any(re.match(r"[A-Z]\w*\s*(\(|$)", text) for text in changes.values())
    try:
        return spec.override(value, changes, kinds_of() if named else None)
    except UserError as error:
        if not {"adapt", "system.adapt"} & changes.keys():
            raise
        given = "give adaptations by --adapt, as in `ptm train SYSTEM --adapt lora`"
        raise UserError(f"{str(error).rstrip('.')}; {given}") from error


def _published(folder: str) -> Any:
    """The Experiment that trains a published checkpoint further: its record, tokenizer and parameters."""
    from ptm_jax.convert.checkpoint import is_published, record_of
    from ptm_jax.convert.config import Config
    from ptm_jax.convert.family import family_of
    from ptm_jax.core.system import Experiment
    from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec

    if not is_published(folder):
        raise UserError(f"{folder} is a directory; give a .py file, a name of `ptm list`, or a Hugging Face checkpoint")
    config = Config.read(Path(folder) / "config.json")
    family = family_of(config)
    named = family.architecture(config)
    system, _ = record_of(config, family.pretraining if named == family.bare else named)
    return Experiment(system=system, init=folder, tokenizer=TokenizerSpec(path=folder))


def load_file(target: str) -> Any:
    """The `config`, or the result of `experiment()`, of a Python file, imported by its path."""
    from ptm_jax.core.spec.own_code import import_file
    from ptm_jax.core.system import Experiment, System

    path = Path(target)
    if not path.exists():
        near = closest(path.name, [p.name for p in path.parent.glob("*.py")]) if path.parent.is_dir() else ""
        raise UserError(f"no such config: {target}; give a .py file that defines `config`.{near}")
    module = _guard(lambda: import_file(path), path)
    if "config" in vars(module):
        value = module.config
    elif callable(make := vars(module).get("experiment")):
        value = _guard(make, path)
    else:
        raise UserError(f"{target} defines neither `config` (an Experiment or a System) nor `experiment()`")
    if not isinstance(value, Experiment | System):
        raise UserError(f"the config of {target} is of type {type(value).__name__}; it must be an Experiment or a System")
    return value


def task_name(name: str | None) -> str | None:
    """The name of a task. FILE.py:NAME imports a file of the user's own first, which adds the task NAME."""
    path, colon, own = (name or "").rpartition(":")
    if (name or "").endswith(".py"):
        raise UserError(f"--task {name} names a file; give FILE.py:NAME, with the name of the task that it adds")
    if not colon or not path.endswith(".py"):
        return name
    from ptm_jax.core.spec.own_code import import_file, loaded

    if not Path(path).is_file():
        raise UserError(f"no such file: {path}; give FILE.py:NAME, a file that adds the task NAME to `tasks.catalogue`")
    if loaded(path) is None:
        _guard(lambda: import_file(path), Path(path))
    from ptm_jax.tasks.catalogue import catalogue

    if own not in catalogue:
        raise UserError(f"{path} adds no task {own!r}; give FILE.py:NAME, the name of a Task that it adds to the catalogue")
    return own


def _is_system(name: str) -> bool:
    from ptm_jax import systems

    return name.count("+") < 2 and all(part in systems.names() for part in name.split("+"))


def _named(name: str) -> Any:
    from ptm_jax import systems

    if _is_system(name):
        return systems.get(name)
    if Path(name).exists():
        return load_file(name)
    raise unknown_of_many("system", name, systems.names())


def _guard(function, path: Path) -> Any:
    """Calls the user's code; an exception becomes one line with their file and line."""
    try:
        return function()
    except UserError:
        raise
    except SyntaxError as error:
        raise UserError(f"{error.filename or path}:{error.lineno}: {error.msg}") from error
    except Exception as error:
        own = [f for f in traceback.extract_tb(error.__traceback__) if Path(f.filename).resolve() == path.resolve()]
        where = f"{path}:{own[-1].lineno}" if own else str(path)
        raise UserError(f"{where}: {type(error).__name__}: {error}") from error
