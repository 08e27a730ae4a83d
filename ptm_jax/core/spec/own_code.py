"""Records the user's own classes and functions in a run, and imports them again.

The record holds the file or module that defines each of them. `own_kinds` imports only for runs
that were written on this machine: nothing is imported if the record names another folder than its
own (a moved or downloaded run), or if the file is in the run's folder.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import importlib.util
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from ptm_jax.core.errors import UserError
from ptm_jax.core.spec.classes import Kinds, kind_of
from ptm_jax.core.spec.walk import walk


def sources_of(value: Any, folder: Path) -> dict[str, Any]:
    """Returns the record of the user's own classes and functions in a spec, for a run in `folder`;
    {} if none."""
    sources, ours = {}, set()
    for _, part in walk(value):
        function = isinstance(part, FunctionType)
        if not function and (not dataclasses.is_dataclass(part) or isinstance(part, type)):
            continue
        cls = part if function else type(part)
        if cls.__module__.startswith("ptm_jax."):
            ours.add(cls.__name__)
        else:
            kind = f"{cls.__module__}:{cls.__qualname__}" if function else kind_of(cls)
            file = vars(sys.modules.get(cls.__module__, sys)).get("__file__")
            on_path = not cls.__module__.startswith("config_") and cls.__module__ != "__main__"
            sources[kind] = {
                "name": cls.__qualname__,
                "module" if on_path else "file": cls.__module__ if on_path else file,
            }
    if both := ours & {*sources}:
        raise UserError(
            f"{min(both)} is a class of yours and one of ptm_jax, alike in a record; rename yours"
        )
    return {"folder": str(Path(folder).absolute()), "classes": sources} if sources else {}


def made_here(record: Mapping[str, Any], folder: Path) -> bool:
    """Whether a record names `folder` as the folder it was written to."""
    return (record.get("own") or {}).get("folder") == str(Path(folder).absolute())


def own_kinds(record: Mapping[str, Any], folder: Path) -> Kinds:
    """Returns the kinds of a run's record. Imports the user's own classes if the run was written on
    this machine."""
    kinds, lost = {}, {}
    made = record.get("own") or {}
    for kind, source in made.get("classes", {}).items():
        place = source.get("file") or source.get("module") or "an interactive session"
        module = _loaded(source)
        if module is None and not made_here(record, folder):
            lost[kind] = (
                f"is of {place}, which a run that was moved or downloaded does not import; "
                "import it first"
            )
            continue
        try:
            module = module or _imported(source, Path(folder))
            kinds[kind] = functools.reduce(
                lambda part, name: vars(part)[name], source["name"].split("."), module
            )
        except Exception as error:  # the user's own code runs here
            lost[kind] = (
                f"was defined in {place}, which is gone or does not define it any more "
                f"({error!r}); put it back"
            )
    return Kinds(kinds, lost)


def import_file(path: str | os.PathLike) -> ModuleType:
    """Imports a Python file. Its folder is added at the end of the search path. Raises OSError,
    ImportError."""
    path = Path(path)
    name = f"config_{re.sub(r'[^0-9a-zA-Z_]', '_', path.stem)}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    if (folder := str(path.resolve().parent)) not in sys.path:
        sys.path.append(folder)
    sys.modules[name] = module  # dataclasses look their module up to resolve annotations
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def loaded(path: str | os.PathLike) -> ModuleType | None:
    """Returns the module of a file if it has been imported, else None."""
    files = (
        (vars(module).get("__file__"), module)
        for module in list(sys.modules.values())
        if module is not None
    )
    return next(
        (module for file, module in files if file and Path(file).resolve() == Path(path).resolve()),
        None,
    )


def _loaded(source: Mapping[str, str]) -> ModuleType | None:
    """Returns the module of a source if the user has imported it, else None."""
    if "module" in source:
        return sys.modules.get(source["module"])
    return loaded(source["file"]) if source.get("file") else None


def _imported(source: Mapping[str, str], folder: Path) -> ModuleType:
    if "module" in source:
        return importlib.import_module(source["module"])
    file = Path(source.get("file") or "")
    if not file.is_absolute() or folder.absolute() in file.parents:
        raise ImportError("no file that you gave")
    return import_file(file)
