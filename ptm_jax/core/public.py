"""Public names of a package, imported at first use: `from ptm_jax.objectives import Joint, MLM`."""

from __future__ import annotations

import functools
import importlib
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any


def statements(folders: Iterable[Path], root: Path) -> dict[str, list[str]]:
    """Returns {class: modules with a class statement of that name} without importing them.

    The files are those below `folders`.

    root  the folder that holds the package
    """
    modules_of = defaultdict(list)
    for path in sorted(path for folder in folders for path in folder.rglob("*.py")):
        module = ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
        for name in re.findall(r"^class (\w+)", path.read_text(encoding="utf8"), re.M):
            modules_of[name].append(module)
    return modules_of


def public(room: str, folder: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Returns `__getattr__` and `__dir__` of the package at `folder`.

    The classes of its files, by their names.

    Nothing is imported before a class is used, and only its own file then. Names in lower case are
    modules. A name that two files of the package define is found in neither.
    """

    @functools.cache
    def places() -> dict[str, list[str]]:
        modules_of = statements([Path(folder)], Path(folder).parents[room.count(".")])
        return {name: modules for name, modules in modules_of.items() if name[0].isupper()}

    def find(name: str) -> Any:
        modules = places().get(name, ())
        if len(modules) != 1:
            several = f"; import it from {' or '.join(modules)}" if modules else ""
            raise AttributeError(f"module {room!r} has no attribute {name!r}{several}")
        value = vars(importlib.import_module(modules[0]))[name]
        return vars(sys.modules[room]).setdefault(name, value)

    return find, lambda: sorted({*vars(sys.modules[room]), *places()})
