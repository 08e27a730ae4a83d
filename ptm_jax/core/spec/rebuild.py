"""Builds a spec from its JSON record, the inverse of `core.spec.describe.to_json`.

Only the kinds that the caller passes are built. Nothing in a record is imported or evaluated, so
untrusted records are safe. Lists become tuples. A function stays its name ("module:name"); an array
is an unknown kind.
"""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Mapping
from typing import Any, Union

from ptm_jax.core.errors import UserError, closest, unknown
from ptm_jax.core.reading import shown
from ptm_jax.core.spec.describe import field_names, field_of
from ptm_jax.core.spec.legacy import current
from ptm_jax.core.spec.parsing import check_number, hints_of


def rebuild(record: Any, kinds: Mapping[str, type], where: str = "") -> Any:
    """Returns the value of a record.

    `where` is its path, for errors. Raises UserError for bad kinds or fields.
    """
    if isinstance(record, Mapping):
        record, known = current(record), "kind" in record
        parts = {field_of(k): v for k, v in record.items() if k != "kind"} if known else record
        values = {
            name: rebuild(part, kinds, f"{where}.{name}" if where else name)
            for name, part in parts.items()
        }
        return _build(record["kind"], values, kinds, where) if known else values
    if isinstance(record, list | tuple):
        return tuple(
            rebuild(part, kinds, f"{where}.{i}" if where else str(i))
            for i, part in enumerate(record)
        )
    return record


def _build(name: Any, values: dict[str, Any], kinds: Mapping[str, type], where: str) -> Any:
    place = f"the record's {where}" if where else "the record"
    if not isinstance(name, str) or name not in kinds:
        near = closest(str(name), kinds)
        raise UserError(
            f"{place} is of the unknown kind {name!r}; import the module that defines it, or "
            "use the version of "
            f"ptm_jax that wrote the record.{near}"
        )
    cls = kinds[name]
    for field in values:
        if field not in field_names(cls):
            raise unknown(f"field of {name} in {place}", field, field_names(cls))
    hints = hints_of(cls)
    try:
        values = {field: _as(hints.get(field), value) for field, value in values.items()}
        for field, value in values.items():
            check_number(field, value)
        return cls(**values)
    except (TypeError, ValueError, AttributeError, LookupError, ArithmeticError) as error:
        raise UserError(f"{place} cannot be built as {name}: {error}") from error


def _as(hint: Any, value: Any) -> Any:
    """Converts values that JSON cannot represent: infinities are stored as strings, sets as
    lists."""
    union = typing.get_origin(hint) in (Union, types.UnionType)
    kinds = {typing.get_origin(h) or h for h in (typing.get_args(hint) if union else (hint,))}
    if isinstance(value, str) and float in kinds and str not in kinds:
        number = float(value)
        if math.isfinite(number):
            raise ValueError(f"{value!r} is a text, where a number was expected")
        return number
    if isinstance(value, str | tuple | dict) and kinds <= {int, float, bool, types.NoneType}:
        raise ValueError(f"{shown(value)} was found, where a number was expected")
    if isinstance(value, tuple) and kinds & {set, frozenset} and tuple not in kinds:
        return frozenset(value) if frozenset in kinds else set(value)
    return value
