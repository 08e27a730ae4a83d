"""Systems whose records differ in numbers alone: their programs have the same operations."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Hashable, Mapping

import flax.linen as nn

from ptm_jax import systems
from ptm_jax.core.system import System

MODULE = ("parent", "name")
TITLES = ("name", "paper", "section", "rows", "group", "tokenizer")


@functools.cache
def names_of(kind: type) -> tuple[str, ...]:
    """Returns the fields of a class that a record has."""
    left = TITLES if kind is System else MODULE if issubclass(kind, nn.Module) else ()
    return tuple(one.name for one in dataclasses.fields(kind) if one.name not in left)


def structure(value: object, field: str = "") -> Hashable:
    """Returns a record as nested tuples, without its titles and tokenizer, in which each number is
    the class of numbers.

    0, 1 and the lengths of rows remain: they choose operations (no dropout, one layer, attention
    by blocks).
    """
    if isinstance(value, bool | str) or value is None:
        return value
    if isinstance(value, int | float):
        return value if value in (0, 1) or field == "length" else float
    if isinstance(value, Mapping):
        return tuple((name, structure(part, name)) for name, part in value.items())
    if isinstance(value, tuple | list):
        return tuple(structure(part, field) for part in value)
    if dataclasses.is_dataclass(value):
        kind = type(value)
        return kind, *(structure(getattr(value, name), name) for name in names_of(kind))
    return repr(value)


@functools.cache
def structures() -> dict[str, list[str]]:
    """Returns {first system of a structure: every system of it}, in the order of the catalogue."""
    alike: dict[Hashable, list[str]] = {}
    for name in systems.names():
        alike.setdefault(structure(systems.get(name)), []).append(name)
    return {names[0]: names for names in alike.values()}
