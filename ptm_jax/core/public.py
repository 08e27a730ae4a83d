"""Public names of a room, imported when they are first used: `from ptm_jax.objectives import Joint, MLM`."""

from __future__ import annotations

import functools
import importlib
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def public(room: str, folder: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Returns `__getattr__` and `__dir__` of the room at `folder`: the classes of its files, by their names.

    Nothing is imported before a class is used, and only its own file then. Names in lower case are modules.
    """

    @functools.cache
    def places() -> dict[str, str]:
        found = {}
        for path in sorted(Path(folder).rglob("*.py")):
            module = ".".join((room, *path.relative_to(folder).with_suffix("").parts))
            found |= dict.fromkeys(re.findall(r"^class ([A-Z]\w*)", path.read_text(encoding="utf8"), re.M), module)
        return found

    def find(name: str) -> Any:
        if not name[:1].isupper() or name not in places():
            raise AttributeError(f"module {room!r} has no attribute {name!r}")
        value = vars(importlib.import_module(places()[name]))[name]
        return vars(sys.modules[room]).setdefault(name, value)

    return find, lambda: sorted({*vars(sys.modules[room]), *places()})
