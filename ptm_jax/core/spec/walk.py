"""Visits and replaces the parts of a spec.

A spec is a frozen dataclass (such as a Linen module), a mapping, a tuple, or a plain value,
arbitrarily nested.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ptm_jax.core.spec.describe import field_names, is_spec, values_of
from ptm_jax.core.spec.parsing import check_number, refusal


def children(value: Any) -> dict[Any, Any]:
    """Returns {field, key or index: part}; {} for a plain value."""
    if is_spec(value):
        return values_of(value)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, tuple | list):
        return dict(enumerate(value))
    return {}


def walk(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yields (path, part) of every part, depth first, starting with `value` itself."""
    yield path, value
    for name, part in children(value).items():
        yield from walk(part, f"{path}.{name}" if path else str(name))


def with_children(value: Any, changed: Mapping[Any, Any], where: str) -> Any:
    """Returns `value` with some children replaced.

    Raises UserError if `__post_init__` refuses them.
    """
    if is_spec(value):
        try:
            for field, part in changed.items():
                check_number(field, part)
            return dataclasses.replace(value, **changed)
        except ValueError as error:
            raise refusal(where, error) from error
    if isinstance(value, Mapping):
        return type(value)({**value, **changed})
    items = [changed.get(i, item) for i, item in enumerate(value)]
    return (
        type(value)(items) if type(value) in (tuple, list) else type(value)(*items)
    )  # a NamedTuple


def respell(value: Any, kind: type | tuple[type, ...], new: Any) -> Any:
    """Replaces every instance of `kind` in `value` by `new`.

    If `new` is a function, it replaces it by `new(old)`.

    Unchanged parts stay the same objects. An object that occurs twice is still one object.
    """
    swap = new if callable(new) and not isinstance(new, kind) else lambda old: new
    return _mapped(value, lambda part, inner: swap(part) if isinstance(part, kind) else inner())


def with_field(
    value: Any, field: str, new: Any, where: type | Callable[[Any], bool] = object
) -> Any:
    """Sets `field` to `new` in every dataclass in `value` that has the field and satisfies `where`:
    the class of its instances, or a function of the part."""
    chosen = (lambda part: isinstance(part, where)) if isinstance(where, type) else where

    def changed(part, inner):
        part = inner()
        mine = is_spec(part) and field in field_names(part) and chosen(part)
        return dataclasses.replace(part, **{field: new}) if mine else part

    return _mapped(value, changed)


def _mapped(value: Any, function: Callable[[Any, Callable[[], Any]], Any]) -> Any:
    """Calls function(part, inner) once per object; inner() returns the part with its children
    mapped."""
    done: dict[
        int, tuple[Any, Any]
    ] = {}  # by id; keeping the old part alive prevents reuse of its id

    def mapped(part):
        if id(part) not in done:
            done[id(part)] = part, function(part, lambda: inner(part))
        return done[id(part)][1]

    def inner(part):
        changed = {
            name: new for name, old in children(part).items() if (new := mapped(old)) is not old
        }
        return with_children(part, changed, type(part).__name__) if changed else part

    return mapped(value)
