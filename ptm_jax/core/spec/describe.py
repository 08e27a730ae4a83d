"""Converts specs to JSON, text and fingerprints, and compares two specs.

The JSON form is called a record. A dataclass is {"kind": class name, **fields}, a function is
"module:name", a tuple is a list. Every function here takes a spec or a record. A field named `kind`
has the key `kind_` in a record, and its own name in texts and paths.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import hashlib
import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np

from ptm_jax.core.spec.classes import kind_of

ABSENT = "(absent)"

# Strings that need quotes: `core.spec.parsing` would read them as another type, or they do not fit
# on a line.
_QUOTED = re.compile(
    r"|none|null|true|false|nan|[-+]?(inf|[\d.][\w.+-]*)|\s.*|.*\s|['\"(\[{].*|.*\n.*", re.I | re.S
)


def is_spec(value: Any) -> bool:
    """Whether `value` is a dataclass instance (a Linen module is one)."""
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def field_names(value: Any) -> tuple[str, ...]:
    """Returns the configuration fields of a dataclass or its instance.

    A Linen module's `parent` and `name` are left out.
    """
    return _names_of(value if isinstance(value, type) else type(value))


@functools.cache
def _names_of(cls: type) -> tuple[str, ...]:
    names = [f.name for f in dataclasses.fields(cls) if f.init and not f.name.startswith("_")]
    if "parent" in names and "name" in names and hasattr(cls, "apply"):
        names = [n for n in names if n not in ("parent", "name")]
    return tuple(names)


def values_of(value: Any) -> dict[str, Any]:
    """Returns {configuration field: value} of a dataclass instance."""
    return {name: getattr(value, name) for name in field_names(value)}


def key_of(field: str) -> str:
    """Returns the key of a dataclass field in its record."""
    return "kind_" if field == "kind" else field


def field_of(key: str) -> str:
    """Returns the dataclass field of a key in a record, the inverse of `key_of`."""
    return "kind" if key == "kind_" else key


def to_json(value: Any) -> Any:
    """Returns the record of a spec: dicts, lists, strings, numbers, booleans and None."""
    if value is None or isinstance(value, bool | str) and not isinstance(value, enum.Enum):
        return value
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, int | float):
        return value if math.isfinite(value) else str(value)
    if is_spec(value):
        return {
            "kind": kind_of(type(value)),
            **{key_of(name): to_json(part) for name, part in values_of(value).items()},
        }
    if isinstance(value, Mapping):
        return {str(key): to_json(part) for key, part in value.items()}
    if isinstance(value, tuple | list):
        return [to_json(part) for part in value]
    if isinstance(value, set | frozenset):
        return sorted((to_json(part) for part in value), key=str)
    return _foreign(value)


def _foreign(value: Any) -> Any:
    """Returns the record of a function, class, array or other object, without memory addresses."""
    if isinstance(value, functools.partial):
        words = {"function": value.func, "args": value.args, **value.keywords}
        return {"kind": "partial", **to_json(words)}
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        if value.shape == ():
            return to_json(value.item())
        digest = hashlib.sha256(value.tobytes()).hexdigest()
        return {
            "kind": "array",
            "shape": list(value.shape),
            "dtype": str(value.dtype),
            "sha256": digest,
        }
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, re.Pattern):
        return value.pattern
    if hasattr(value, "__qualname__"):
        return f"{value.__module__}:{value.__qualname__}"
    public = {
        k: to_json(v)
        for k, v in sorted(getattr(value, "__dict__", {}).items())
        if not k.startswith("_")
    }
    return (
        {"kind": type(value).__name__, **public}
        if public
        else re.sub(r" at 0x[0-9a-f]+", "", repr(value))
    )


def fingerprint(value: Any) -> str:
    """Returns the sha256 of the canonical JSON.

    It is equal for equal configurations, in every process.
    """
    text = json.dumps(to_json(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def to_text(value: Any) -> str:
    """Returns the record as indented lines `name: value`.

    The first line of a nested record is `name: Kind`.
    """
    record = to_json(value)
    if not isinstance(record, dict | list):
        return _plain(record)
    head = [record["kind"]] if isinstance(record, dict) and "kind" in record else []
    return "\n".join([*head, *_lines(record, "  " if head else "")])


def _lines(record: Any, indent: str) -> Iterator[str]:
    items = record.items() if isinstance(record, dict) else enumerate(record)
    for name, part in items:
        if name == "kind":
            continue
        name = field_of(str(name))
        if isinstance(part, dict) and part:
            yield f"{indent}{name}: {part.get('kind', '')}".rstrip()
            yield from _lines(part, indent + "  ")
        elif isinstance(part, list) and _has_records(part):
            yield f"{indent}{name}:"
            yield from _lines(part, indent + "  ")
        else:
            yield f"{indent}{name}: {to_line(part)}"


def _has_records(part: Any) -> bool:
    return isinstance(part, dict) or (isinstance(part, list) and any(_has_records(p) for p in part))


def to_line(value: Any) -> str:
    """Returns the record on one line, in the syntax of `--set`: `Cosine(warmup=100, end=0.0)`."""
    record = to_json(value)
    if isinstance(record, dict) and "kind" in record:
        values = {name: part for name, part in record.items() if name != "kind"}
        fields = ", ".join(f"{field_of(name)}={_nested(part)}" for name, part in values.items())
        return f"{record['kind']}({fields})"
    if isinstance(record, dict | list):
        return _nested(record)
    return _plain(record)


def _nested(record: Any) -> str:
    if isinstance(record, list):
        return f"({', '.join(_nested(part) for part in record)}{',' if len(record) == 1 else ''})"
    if isinstance(record, dict) and "kind" not in record:
        return f"{{{', '.join(f'{k!r}: {_nested(v)}' for k, v in record.items())}}}"
    return to_line(record) if isinstance(record, dict) else repr(record)


def _plain(record: Any) -> str:
    """Returns a scalar as text. A string gets quotes only if it would be read as another type."""
    if not isinstance(record, str):
        return repr(record)
    return repr(record) if _QUOTED.fullmatch(record) else record


def differences(a: Any, b: Any, path: str = "") -> list[tuple[str, Any, Any]]:
    """Returns [(path, part of a, part of b)] for the differences of two records, in order.

    Records of different kinds are one difference."""
    return _differences(to_json(a), to_json(b), path)


def _differences(a: Any, b: Any, path: str) -> list[tuple[str, Any, Any]]:
    both = (a, b)
    if all(isinstance(x, dict) for x in both) and a.get("kind") == b.get("kind"):
        names = [*a, *(name for name in b if name not in a)]
        pairs = [(field_of(str(name)), a.get(name, ABSENT), b.get(name, ABSENT)) for name in names]
    elif all(isinstance(x, list) for x in both) and any(_has_records(x) for x in both):
        longest = range(max(len(a), len(b)))
        pairs = [
            (str(i), a[i] if i < len(a) else ABSENT, b[i] if i < len(b) else ABSENT)
            for i in longest
        ]
    else:
        same = a == b and isinstance(a, bool) == isinstance(b, bool)
        return [] if same else [(path, a, b)]
    return [
        difference
        for name, x, y in pairs
        for difference in _differences(x, y, f"{path}.{name}" if path else name)
    ]
