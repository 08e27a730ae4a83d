"""Every distinct value of a slot in the catalogue, over one vocabulary; and what a class list
misses."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
import json
import pkgutil
from typing import Any

import pytest

from ptm_jax import systems
from ptm_jax.core import facts, spec
from ptm_jax.core.spec.classes import kinds_of
from ptm_jax.core.spec.rebuild import rebuild
from ptm_jax.core.types import Vocab
from ptm_jax.systems.survey import rows as survey
from support import covering
from support.corrupting import VOCAB


@functools.cache
def values(slot: str) -> dict[str, Any]:
    """{name of the first system: value} of the distinct values of a slot in the catalogue."""
    everything = {name: vars(systems.get(name))[slot] for name in systems.names()}

    def small(value):
        return facts.stand_ins(spec.respell(value, Vocab, lambda vocab: VOCAB), VOCAB)

    return distinct({name: small(value) for name, value in everything.items() if value})


def distinct(named: dict[str, Any]) -> dict[str, Any]:
    """The first name of every value."""
    found: dict[str, Any] = {}
    for name, value in named.items():
        if value not in found.values():
            found[name] = value
    return found


def parts(value: Any) -> list[Any]:
    """A value and the specs inside it."""
    inner = (
        [vars(value)[name] for name in spec.field_names(value)] if spec.is_spec(value) else value
    )
    if isinstance(inner, list | tuple):
        return ([value] if spec.is_spec(value) else []) + [
            leaf for part in inner for leaf in parts(part)
        ]
    return [value] if spec.is_spec(value) else []


def class_names(value: Any) -> set[str]:
    """The names of the classes of a value and of the specs inside it."""
    return {type(part).__name__ for part in parts(value)}


def classes(package: str, base: type) -> set[type]:
    """The public classes of a package that inherit `base` and are defined there."""
    root = importlib.import_module(package)
    names = [module.name for module in pkgutil.walk_packages(root.__path__, package + ".")]
    members = (member for name in names for member in vars(importlib.import_module(name)).values())
    return {
        member for member in members
        if inspect.isclass(member) and issubclass(member,
            base) and member.__module__.startswith(package)
        and not member.__name__.startswith("_")
    }  # fmt: skip


def each(cases: dict[str, Any], covered: str | None = None):
    """Parametrizes a law by the names of its cases. The classes that rows of the survey name earn
    the word `built`.

    With `covered`, the name of a list of `support.covering`, the cases outside that list have the
    marker `full`.
    """
    named = {part for row in survey.rows() for part in row.parts}
    earned = {
        name: named & {type(part).__name__ for part in parts(value)}
        for name, value in cases.items()
    }
    marks = {
        name: [pytest.mark.status(part, "built") for part in sorted(found)]
        for name, found in earned.items()
    }
    if covered:
        traits = {name: class_names(value) for name, value in cases.items()}
        return by_case(covering.params(covered, traits, marks))
    return by_case([pytest.param(name, marks=marks[name]) for name in cases])


def by_case(cases: list[Any]) -> pytest.MarkDecorator:
    """Returns the mark of a law for cases `name`.

    Of the laws of a file, all of one case run in sequence: the programs of a case can then be
    dropped (`tests/conftest.py`).
    """
    return pytest.mark.parametrize("name", cases, scope="module")


def missing(package: str, base: type, named: dict[str, Any]) -> set[type]:
    """The classes of a package that stand in none of the values; what others inherit may be a base
    alone."""
    there = {type(part) for value in named.values() for part in parts(value)}
    return {kind for kind in classes(package, base) - there if not kind.__subclasses__()}


def by_default(
    package: str, base: type, named: dict[str, Any], without: set = frozenset()
) -> dict[str, Any]:
    """{class name: value} of the classes that stand in none of the values and need no field, or a
    vocabulary alone."""
    found = {}
    for kind in sorted(missing(package, base, named) - without, key=lambda kind: kind.__name__):
        fields = (
            [field for field in dataclasses.fields(kind) if field.init]
            if dataclasses.is_dataclass(kind)
            else []
        )
        nothing = dataclasses.MISSING
        needed = {
            field.name
            for field in fields
            if field.default is nothing and field.default_factory is nothing
        }
        if needed <= {"vocab"}:
            found[kind.__name__] = kind(**dict.fromkeys(needed, VOCAB))
    return found


def rebuilt(value: Any) -> Any:
    """The value after a record in JSON: what a checkpoint does."""
    return rebuild(json.loads(json.dumps(spec.to_json(value))), kinds_of())


def one_clause(reason: str | None) -> bool:
    """Whether a refusal is None, or one clause that fits an error line: no line break, no full stop
    at its end."""
    return reason is None or (
        isinstance(reason, str)
        and 0 < len(reason) < 250
        and "\n" not in reason
        and reason[-1] != "."
    )
