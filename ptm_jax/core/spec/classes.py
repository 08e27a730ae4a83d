"""Looks up the classes that a record names.

A kind is the short name of a public dataclass of the package, such as "Transformer". If two
packages have a class of that name, the kind is "encoders.Transformer". A folder whose
`__init__.py` declares `KINDS = True` contributes its classes. An index of their class statements
gives the one module to import.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ptm_jax.core import slots
from ptm_jax.core.errors import UserError
from ptm_jax.core.public import statements
from ptm_jax.core.spec.legacy import ROOMS

PACKAGE = Path(__file__).parents[2]


class Kinds(Mapping[str, Any]):
    """{kind: class} of the package and of the user.

    defined   {kind: class or function of the user}
    lost      {kind: why it is missing}

    An imported class of the user is found too if it inherits a slot and no class of the package has
    its name.
    """

    def __init__(
        self, defined: Mapping[str, Any] | None = None, lost: Mapping[str, str] | None = None
    ):
        self.defined, self.lost = dict(defined or {}), dict(lost or {})

    def __getitem__(self, kind: str) -> Any:
        if kind in self.defined:
            return self.defined[kind]
        if kind in self.lost:
            raise UserError(f"{kind} {self.lost[kind]}")
        classes = _classes(kind) or _imported(slots.Slot, kind)
        if len(classes) > 1:
            raise UserError(
                f"{kind} is the name of several classes: {', '.join(map(kind_of, classes))}; "
                "give one of these"
            )
        if not classes:
            raise KeyError(kind)
        return classes[0]

    def __contains__(self, kind: object) -> bool:
        if kind in self.defined or kind in self.lost:
            return True
        return isinstance(kind, str) and bool(_classes(kind) or _imported(slots.Slot, kind))

    def __iter__(self) -> Iterator[str]:
        classes = (cls for name in _index() if not name.startswith("_") for cls in _classes(name))
        return iter({**self.defined, **dict.fromkeys(map(kind_of, classes))})

    def __len__(self) -> int:
        return sum(1 for _ in self)


@functools.cache
def kinds_of() -> Kinds:
    """Returns the kinds of the package."""
    return Kinds()


def kind_of(cls: type) -> str:
    """Returns the kind of a class.

    Its name, with its package if two packages have that name.
    """
    name = cls.__name__
    if (
        not cls.__module__.startswith("ptm_jax.")
        or len(_index().get(name, ())) < 2
        or len(_classes(name)) < 2
    ):
        return name
    return f"{cls.__module__.split('.')[1]}.{name}"


@functools.cache
def _index() -> Mapping[str, tuple[str, ...]]:
    """{class name: modules with a class statement of that name}."""
    declared = [
        path.parent
        for path in PACKAGE.rglob("__init__.py")
        if "KINDS = True" in path.read_text(encoding="utf8")
    ]
    return {name: tuple(modules) for name, modules in statements(declared, PACKAGE.parent).items()}


@functools.cache
def _classes(kind: str) -> tuple[type, ...]:
    """Returns the public dataclasses of the package that match a kind, also in its old spelling
    with the room that the class has left (`core.spec.legacy.ROOMS`)."""
    room, _, name = kind.rpartition(".")
    modules = [] if name.startswith("_") else _index().get(name, ())
    if room:
        inside = [module for module in modules if module.split(".")[1] == room]
        heirs = ROOMS.get(room, ())
        modules = inside or [module for module in modules if module.split(".")[1] in heirs]
    classes = (vars(importlib.import_module(module)).get(name) for module in modules)
    return tuple(cls for cls in classes if dataclasses.is_dataclass(cls))


def _imported(base: type, kind: str) -> tuple[type, ...]:
    """Returns the newest dataclass named `kind` outside the package that inherits `base`."""
    newest: tuple[type, ...] = ()
    for each in base.__subclasses__():
        mine = (
            each.__name__ == kind
            and dataclasses.is_dataclass(each)
            and not each.__module__.startswith("ptm_jax.")
        )
        newest = (each,) if mine else newest
        newest = _imported(each, kind) or newest
    return newest
