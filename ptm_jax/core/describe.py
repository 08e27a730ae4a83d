"""What a spec says: as JSON, as text, as a fingerprint, and where two of them differ.

The JSON form is a record for readers and for comparison. A dataclass is {"kind": class name, **fields}, a function is
"module:name", a tuple is a list. It is its own JSON form, so every function here takes a spec or such a record. A
field that is itself called `kind` has the key `kind_`; in texts and paths it keeps its name.
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

ABSENT = "(absent)"

# Texts that `core.reading` would take for something else, or that a line could not hold.
_QUOTED = re.compile(r"|none|null|true|false|nan|[-+]?(inf|[\d.][\w.+-]*)|\s.*|.*\s|['\"(\[{].*|.*\n.*", re.I | re.S)


def is_spec(value: Any) -> bool:
    """Whether `value` is a dataclass instance (a Linen module is one)."""
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def field_names(value: Any) -> tuple[str, ...]:
    """The configuration fields of a dataclass or its instance; a Linen module's `parent` and `name` are not."""
    names = [f.name for f in dataclasses.fields(value) if f.init and not f.name.startswith("_")]
    if "parent" in names and "name" in names and hasattr(value, "apply"):
        names = [n for n in names if n not in ("parent", "name")]
    return tuple(names)


def key_of(field: str) -> str:
    """The key of a dataclass field in its record."""
    return "kind_" if field == "kind" else field


def field_of(key: str) -> str:
    """The dataclass field that a record's key stands for: the inverse of `key_of`."""
    return "kind" if key == "kind_" else key


def to_json(value: Any) -> Any:
    """The resolved record of a spec: dicts, lists, strings, numbers, booleans and None."""
    if value is None or isinstance(value, bool | str) and not isinstance(value, enum.Enum):
        return value
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, int | float):
        return value if math.isfinite(value) else str(value)
    if is_spec(value):
        return {"kind": type(value).__name__, **{key_of(n): to_json(getattr(value, n)) for n in field_names(value)}}
    if isinstance(value, Mapping):
        return {str(key): to_json(part) for key, part in value.items()}
    if isinstance(value, tuple | list):
        return [to_json(part) for part in value]
    if isinstance(value, set | frozenset):
        return sorted((to_json(part) for part in value), key=str)
    return _foreign(value)


def _foreign(value: Any) -> Any:
    """Functions, classes, arrays and objects of other libraries, without addresses."""
    if isinstance(value, functools.partial):
        words = {"function": value.func, "args": value.args, **value.keywords}
        return {"kind": "partial", **to_json(words)}
    if hasattr(value, "shape") and hasattr(value, "tobytes"):
        if value.shape == ():
            return to_json(value.item())
        digest = hashlib.sha256(value.tobytes()).hexdigest()
        return {"kind": "array", "shape": list(value.shape), "dtype": str(value.dtype), "sha256": digest}
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, re.Pattern):
        return value.pattern
    if hasattr(value, "__qualname__"):
        return f"{value.__module__}:{value.__qualname__}"
    public = {k: to_json(v) for k, v in sorted(getattr(value, "__dict__", {}).items()) if not k.startswith("_")}
    return {"kind": type(value).__name__, **public} if public else re.sub(r" at 0x[0-9a-f]+", "", repr(value))


def fingerprint(value: Any) -> str:
    """sha256 of the canonical JSON: the same for equal configurations, in every process."""
    text = json.dumps(to_json(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def to_text(value: Any) -> str:
    """The record as indented lines `name: value`; the head of a nested record is `name: Kind`."""
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
    """The record on one line, as `--set` reads it: `Cosine(warmup=100, end=0.0)`."""
    record = to_json(value)
    if isinstance(record, dict) and "kind" in record:
        return f"{record['kind']}({', '.join(f'{field_of(k)}={_nested(v)}' for k, v in record.items() if k != 'kind')})"
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
    """A scalar; a text without quotes unless it would read as something else."""
    if not isinstance(record, str):
        return repr(record)
    return repr(record) if _QUOTED.fullmatch(record) else record


def differences(a: Any, b: Any, path: str = "") -> list[tuple[str, Any, Any]]:
    """[(path, part of a, part of b)] where two records differ, in order; records of two kinds differ as a whole."""
    return _differences(to_json(a), to_json(b), path)


def _differences(a: Any, b: Any, path: str) -> list[tuple[str, Any, Any]]:
    both = (a, b)
    if all(isinstance(x, dict) for x in both) and a.get("kind") == b.get("kind"):
        names = [*a, *(name for name in b if name not in a)]
        pairs = [(field_of(str(name)), a.get(name, ABSENT), b.get(name, ABSENT)) for name in names]
    elif all(isinstance(x, list) for x in both) and any(_has_records(x) for x in both):
        longest = range(max(len(a), len(b)))
        pairs = [(str(i), a[i] if i < len(a) else ABSENT, b[i] if i < len(b) else ABSENT) for i in longest]
    else:
        same = a == b and isinstance(a, bool) == isinstance(b, bool)
        return [] if same else [(path, a, b)]
    return [found for name, x, y in pairs for found in _differences(x, y, f"{path}.{name}" if path else name)]
