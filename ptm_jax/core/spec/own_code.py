"""Records the user's own classes and functions in a run, and imports them again.

The record holds the file or module that defines each of them. `own_kinds` imports only for runs
that this user wrote on this machine, which no file of a run can state: `remember` adds the hash of
a run's record, with its resolved folder, to a list in the folder of the user's states
(XDG_STATE_HOME or ~/.local/state: `ptm_jax/own_runs`). A run that is not listed (moved, downloaded,
changed), and one that another user owns, imports nothing unless `trust` was called
(`ptm ... --trust`). Without it nothing in the run's folder is imported. Only classes that the run's
configuration uses are imported.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import importlib
import importlib.util
import json
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
    """Returns the record of the user's own classes and functions in a spec, for a run in `folder`.

    {} if none.
    """
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


def remember(classes: Mapping[str, Any], folder: Path) -> None:
    """Adds a run that is written now to the user's list.

    Where that cannot be written, the run is loaded with `trust` only.
    """
    with contextlib.suppress(OSError):
        file = _list()
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if (line := _line(classes, folder)) not in _remembered():
            descriptor = os.open(
                file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o600
            )
            with os.fdopen(descriptor, "a", encoding="utf8") as lines:
                lines.write(line + "\n")


def made_here(record: Mapping[str, Any], folder: Path) -> bool:
    """Whether this user wrote the own classes of a record to `folder`, or trusts it."""
    classes = record.get("own") or {}
    if _trusted:
        return True
    try:
        mine = Path(folder).resolve().stat().st_uid == os.getuid()
    except OSError:
        return False
    return mine and _line(classes, folder) in _remembered()


_trusted: list[bool] = []


def trust() -> None:
    """Lets this process import the code that its loaded runs name."""
    _trusted.append(True)


def _list() -> Path:
    home = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return Path(home) / "ptm_jax" / "own_runs"


def _line(classes: Mapping[str, Any], folder: Path) -> str:
    facts = json.dumps([classes.get("classes", {}), str(Path(folder).resolve())], sort_keys=True)
    return hashlib.sha256(facts.encode()).hexdigest()


def _remembered() -> set[str]:
    """Returns the lines of the list, none of a file that others own or may write."""
    file = _list()
    try:
        status = file.stat()
        if status.st_uid != os.getuid() or status.st_mode & 0o022:
            return set()
        return set(file.read_text(encoding="utf8").splitlines())
    except OSError:
        return set()


def _named(value: Any) -> set[str]:
    """Returns all texts in a JSON document."""
    if isinstance(value, dict):
        return set().union(*map(_named, value.values()), *map(_named, value))
    if isinstance(value, list):
        return set().union(*map(_named, value))
    return {value} if isinstance(value, str) else set()


def own_kinds(record: Mapping[str, Any], folder: Path) -> Kinds:
    """Returns the kinds of a run's record.

    Imports the user's own classes if the run was written on this machine.
    """
    kinds, lost = {}, {}
    made, used = record.get("own") or {}, _named(record.get("config"))
    for kind, source in made.get("classes", {}).items():
        if kind not in used:
            continue
        place = source.get("file") or source.get("module") or "an interactive session"
        module = _loaded(source)
        if module is None and not made_here(record, folder):
            lost[kind] = (
                f"is of {place}, which a run that was moved or downloaded does not import; "
                "import it first, or give --trust if you know what it does"
            )
            continue
        try:
            module = module or _imported(source, Path(folder))
            value = functools.reduce(
                lambda part, name: vars(part)[name], source["name"].split("."), module
            )
            if not isinstance(value, FunctionType) and not (
                isinstance(value, type) and dataclasses.is_dataclass(value)
            ):
                raise TypeError("it is no dataclass and no function")
            kinds[kind] = value
        except Exception as error:  # the user's own code runs here
            lost[kind] = (
                f"was defined in {place}, which is gone or does not define it any more "
                f"({error!r}); put it back"
            )
    return Kinds(kinds, lost)


def import_file(path: str | os.PathLike) -> ModuleType:
    """Imports a Python file.

    Its folder is added at the end of the search path. Raises OSError, ImportError.
    """
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
        module = importlib.util.find_spec(source["module"])
        place = Path(module.origin or "").resolve() if module is not None else Path()
        if folder.resolve() in place.parents and not _trusted:
            raise ImportError("its module is in the run's folder")
        return importlib.import_module(source["module"])
    file = Path(source.get("file") or "")
    if not file.is_absolute() or (folder.resolve() in file.resolve().parents and not _trusted):
        raise ImportError("no file that you gave")
    return import_file(file)
