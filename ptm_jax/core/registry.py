"""A catalogue of named values that are built when asked for, and the import of every module that adds to it.

@catalogue.add                                  catalogue.add(bert_base, bert_large)
def bert_base() -> System: ...                  catalogue.register("bert_mini", lambda: mini(bert_base()))
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from typing import Any

from ptm_jax.core.errors import unknown


class Catalogue:
    """{name: factory}. `kind` is what its entries are called in errors."""

    def __init__(self, kind: str):
        self.kind = kind
        self._factories: dict[str, Callable[[], Any]] = {}

    def register(self, name: str, factory: Callable[[], Any]) -> None:
        """Store a zero-argument factory; a name that is taken is a ValueError that says by whom."""
        if name in self._factories:
            owner = getattr(self._factories[name], "__module__", "another module")
            raise ValueError(f"the {self.kind} {name!r} is in the catalogue already, from {owner}")
        self._factories[name] = factory

    def add(self, *entries: Any) -> Any:
        """Store factories under their function names, or values under their own `name`; returns the first entry."""
        for entry in entries:
            if callable(entry):
                self.register(entry.__name__, entry)
            else:
                self.register(entry.name, lambda value=entry: value)
        return entries[0]

    def get(self, name: str) -> Any:
        """The value of a name; an unknown one is a UserError with the closest match."""
        if name not in self._factories:
            raise unknown(self.kind, name, self._factories)
        return self._factories[name]()

    def names(self) -> tuple[str, ...]:
        """All names, in the order in which they were stored."""
        return tuple(self._factories)

    def __contains__(self, name: str) -> bool:
        return name in self._factories


catalogue = Catalogue("system")


def register(*entries: Any) -> Any:
    """Store systems or factories in the catalogue of systems: a name and its factory, or anything `add` takes."""
    if isinstance(entries[0], str):
        return catalogue.register(*entries)
    return catalogue.add(*entries)


def discover(package: str) -> None:
    """Import every module of a package, in the order of their names; Python does each of them once."""
    root = importlib.import_module(package)
    for module in sorted(pkgutil.walk_packages(root.__path__, package + "."), key=lambda m: m.name):
        importlib.import_module(module.name)
