"""What a command works on: a system of the catalogue, or a config of the user's own, with `--set` applied."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from ptm_jax.core.errors import UserError, closest


def resolve(target: str, sets: Sequence[str] = (), *, experiment: bool = False) -> Any:
    """The System or Experiment that `target` names, with the 'path=value' words of `sets` applied.

    `target` is a name of the catalogue, two of them joined by "+" (an encoder and a task), a .py file that defines
    `config` or `experiment()`, or the directory of a Hugging Face checkpoint, whose parameters an experiment begins with.
    With `experiment`, a System becomes an Experiment first, so that `sets` may reach its fields too. Raises UserError.
    """
    from ptm_jax.core import spec
    from ptm_jax.core.system import Experiment, System
    from ptm_jax.systems.kinds import kinds_of

    if Path(target).is_dir():
        value = _published(target)
    else:
        value = load_file(target) if _is_file_name(target) else _named(target)
    if experiment and isinstance(value, System):
        value = Experiment(system=value)
    changes = spec.parse_pairs(sets)
    named = any(re.match(r"[A-Z]\w*\s*(\(|$)", text) for text in changes.values())
    return spec.override(value, changes, kinds_of() if named else None)


def _published(folder: str) -> Any:
    """The Experiment that goes on with a published checkpoint: its record, its tokenizer, its parameters."""
    from ptm_jax.convert.checkpoint import is_published, record_of
    from ptm_jax.convert.config import Config
    from ptm_jax.convert.family import family_of
    from ptm_jax.core.system import Experiment
    from ptm_jax.data.tokenizers import TokenizerSpec

    if not is_published(folder):
        raise UserError(f"{folder} is a directory; give a .py file, a name of `ptm list`, or a Hugging Face checkpoint")
    config = Config.read(Path(folder) / "config.json")
    family = family_of(config)
    named = family.architecture(config)
    system, _ = record_of(config, family.pretraining if named == family.bare else named)
    return Experiment(system=system, init=folder, tokenizer=TokenizerSpec(path=folder))


def load_file(target: str) -> Any:
    """The `config`, or what `experiment()` returns, of a Python file: an ordinary import, by path."""
    from ptm_jax.core.system import Experiment, System

    path = Path(target)
    if path.is_dir():
        raise UserError(f"{target} is a directory; give a .py file, or a name that `ptm list` shows")
    if not path.exists():
        near = closest(path.name, [p.name for p in path.parent.glob("*.py")]) if path.parent.is_dir() else ""
        raise UserError(f"no such config: {target}; give a .py file that defines `config`.{near}")
    module = _import(path)
    if hasattr(module, "config"):
        value = module.config
    elif callable(getattr(module, "experiment", None)):
        value = _guard(module.experiment, path)
    else:
        raise UserError(f"{target} defines neither `config` (an Experiment or a System) nor `experiment()`")
    if not isinstance(value, Experiment | System):
        raise UserError(
            f"the config of {target} is of type {type(value).__name__}; it must be an Experiment or a System"
        )
    return value


def _is_file_name(target: str) -> bool:
    return target.endswith(".py") or os.sep in target or "/" in target


def _named(name: str) -> Any:
    from ptm_jax.cli.catalogue import catalogue

    systems = catalogue()
    parts = [systems.get(part) for part in name.split("+") if part in systems]
    if len(parts) == 1 and "+" not in name:
        return parts[0]
    if len(parts) == 2 and name.count("+") == 1:
        from ptm_jax.systems.compose import compose

        return compose(*parts)
    if Path(name).exists():
        return load_file(name)
    near = closest(name, systems.names())
    raise UserError(f"unknown system {name!r}; `ptm list` shows the {len(systems.names())} there are.{near}")


def _import(path: Path) -> ModuleType:
    """Run a config file as a module; its folder is searched last, for files beside it."""
    name = f"config_{re.sub(r'[^0-9a-zA-Z_]', '_', path.stem)}"
    found = importlib.util.spec_from_file_location(name, path)
    if found is None or found.loader is None:
        raise UserError(f"{path} is no Python file; give a .py file that defines `config`")
    module = importlib.util.module_from_spec(found)
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.append(folder)
    sys.modules[name] = module  # dataclasses look their module up to resolve annotations
    _guard(lambda: found.loader.exec_module(module), path)
    return module


def _guard(function, path: Path) -> Any:
    """Call the user's code; an exception becomes one line with the file and the line of theirs that raised it."""
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
