"""Catalogues of named values that are built on access, and the import of every module of a package.

An entry is a function, a name with a function, or a name that a module yields later:

    @catalogue.add
    def bert_base() -> System: ...

    catalogue.register("bert_mini", lambda: mini(bert_base()))

    # `albert.systems()` yields these systems.
    catalogue.declare("ptm_jax.systems.transformers.albert", ("albert_base", "albert_large"))

`add` takes several functions: `catalogue.add(bert_base, bert_large)`.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
import types
from collections.abc import Callable, Iterable
from typing import Any

from ptm_jax.core.errors import UserError, unknown


class Catalogue:
    """{name: factory}.

    kind       noun for an entry in error messages
    package    modules that may add entries; they are imported if a name is not found, or if all
               names are listed
    """

    def __init__(self, kind: str, package: str = ""):
        self.kind, self.package = kind, package
        self._factories: dict[str, Callable[[], Any]] = {}
        self._owners: dict[str, str] = {}

    def register(self, name: str, factory: Callable[[], Any], owner: str = "") -> None:
        """Stores a factory without arguments.

        Raises ValueError, with the owner's name, if the name is taken.
        """
        if name in self._factories:
            raise ValueError(
                f"the {self.kind} {name!r} is in the catalogue already, from {self._owners[name]}"
            )
        self._factories[name], self._owners[name] = factory, owner or factory.__module__

    def add(self, *entries: Any) -> Any:
        """Stores factories by function name, or values by their `name`. Returns the first entry."""
        for entry in entries:
            if callable(entry):
                self.register(entry.__name__, entry)
            else:
                self.register(entry.name, lambda value=entry: value)
        return entries[0]

    def declare(self, module: str, names: Iterable[str]) -> None:
        """Stores names of values that `systems()` of a module yields.

        The module is imported on first access.
        """
        for name in names:
            self.register(name, functools.partial(_made, module, name), module)

    def get(self, name: str) -> Any:
        """Returns the value of a name. Raises UserError with the closest match if it is unknown."""
        if name not in self:
            raise unknown(self.kind, name, self._factories)
        return self._factories[name]()

    def names(self) -> tuple[str, ...]:
        """Returns all names in insertion order."""
        self._complete()
        return tuple(self._factories)

    def __contains__(self, name: str) -> bool:
        if name not in self._factories:
            self._complete()
        return name in self._factories

    def _complete(self) -> None:
        if self.package:
            discover(self.package)


@functools.cache
def made(module: str) -> dict[str, Any]:
    """Returns {name: value} of the values that `systems()` of a module yields.

    {} if it has no such function.
    """
    make = vars(importlib.import_module(module)).get("systems")
    has_systems = isinstance(make, types.FunctionType) and make.__module__ == module
    if not has_systems:
        return {}
    try:
        return {value.name: value for value in make()}
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise UserError(
            f"{module}.systems() fails ({reason}); mend that file: the catalogue holds its systems"
        ) from error


def _made(module: str, name: str) -> Any:
    values = made(module)
    if name not in values:
        raise ValueError(
            f"{module}.systems() yields no {name!r}, which the order of the catalogue names"
        )
    return values[name]


catalogue = Catalogue("system")


def modules(package: str) -> list[str]:
    """Returns the sorted names of the modules of a package, without importing them."""
    root = importlib.import_module(package)
    return sorted(module.name for module in pkgutil.walk_packages(root.__path__, package + "."))


def discover(package: str) -> None:
    """Imports every module of a package, in the order of their names."""
    for module in modules(package):
        importlib.import_module(module)
