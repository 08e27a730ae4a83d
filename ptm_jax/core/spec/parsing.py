"""Parses text as the value of a configuration field, by the field's annotation.

Nothing is evaluated.

recipe.lr=1e-4             int, float, bool, str, None: by the annotation (1e6 is also an integer)
precision=float32          Literal: one of its options
data=a.txt,b.txt           tuple: entries joined by commas, with or without brackets
recipe.optimizer=LAMB, recipe.schedule=Cosine(warmup=100)
                           a dataclass by name, if the annotation admits it; for `Any`, a class of
                           the module of the current value's class, or one of `kinds`
"""

from __future__ import annotations

import ast
import dataclasses
import re
import sys
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Union

from ptm_jax.core.errors import UserError, closest, unknown
from ptm_jax.core.spec.describe import field_names, is_spec, to_line, values_of

Kinds = Mapping[str, type]
UNREADABLE = (SyntaxError, ValueError, RecursionError, MemoryError)
"""Errors of Python's parser, also for what is nested too deeply."""


def hints_of(cls: type) -> dict[str, Any]:
    """Returns the resolved annotations of a class.

    {} if one cannot be resolved (current values decide then).
    """
    try:
        return typing.get_type_hints(cls)
    except (NameError, TypeError, AttributeError):
        return {}


_LARGE, _WHOLE = sys.float_info.max, 2**31 - 1
_BOUNDS = (
    (r"(^|_)(dropout|drop|zoneout|smoothing|probability|share)$", 0, 1),
    (r"(^|_)(eps|epsilon|std|temperature|decay|margin)$", 0, _LARGE),
    (r"^(width|widths|heads|size|sizes|vocab|filters|length|groups)$", 1, _WHOLE),
    (r"(^|_)(width|heads|size|length|hidden)$", 0, _WHOLE),  # 0: without that part
    (r"(^|_)(layers|highway)$", 0, 10_000),
)
"""(pattern of a field's name, its least and its largest number)."""


def check_number(field: str, value: object) -> None:
    """Raises ValueError for a number that no field of this name may have.

    Examples are a share above 1, a negative deviation and a size of 0. The numbers of a tuple are
    checked one by one.
    """
    for part in value if isinstance(value, tuple) else (value,):
        if isinstance(part, bool) or not isinstance(part, int | float):
            continue
        for pattern, least, largest in _BOUNDS:
            if re.search(pattern, field) and not least <= part <= largest:
                number = "a finite number of" if largest == _LARGE else f"at most {largest:,} and"
                raise ValueError(f"{field} is {part}; it must be {number} at least {least}")


def refusal(where: str, error: ValueError) -> UserError:
    """Returns a UserError from the ValueError of a `__post_init__`."""
    return UserError(f"{where}: {error}" if where else str(error))


def read(text: str, hint: Any, current: Any, where: str, kinds: Kinds) -> Any:
    """Parses `text` for the field at path `where`.

    `hint` is its annotation and `current` its value.

    Raises UserError with the expected type and the given text.
    """
    text = text.strip()
    origin = typing.get_origin(hint)
    if origin in (Union, types.UnionType):
        return _read_union(text, hint, current, where, kinds)
    if origin is Literal:
        return _read_literal(text, hint, where)
    if hint in _SCALARS:
        return _scalar(text, hint, where)
    base = origin or hint
    if base is tuple:
        return _read_tuple(text, typing.get_args(hint), current, where, kinds)
    if isinstance(base, type) and issubclass(base, Mapping):
        return _read_mapping(text, typing.get_args(hint), current, where, kinds)
    if _is_slot(base) and (allowed := _choices(base, current, kinds)):
        return _read_variant(text, allowed, current, where, kinds)
    return _read_like(text, current, where, kinds)


def _number(text: str) -> float:
    value = float(text)
    if value != value:
        raise ValueError("not a number")
    return value


def _integer(text: str) -> int:
    """Parses an integer, also 1_000 or 1e6."""
    try:
        return int(text)
    except ValueError:
        value = float(text)
        if not value.is_integer():
            raise
        return int(value)


def _string(text: str) -> str:
    """Returns the text without optional quotes."""
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        return str(ast.literal_eval(text))
    return text


def _nothing(text: str) -> None:
    if not _is_none(text):
        raise ValueError(text)


def _is_none(text: str) -> bool:
    return text.lower() in ("none", "null")


_SCALARS: dict[Any, Callable[[str], Any]] = {
    bool: lambda text: {"true": True, "1": True, "false": False, "0": False}[text.lower()],
    int: _integer,
    float: _number,
    str: _string,
    type(None): _nothing,
    None: _nothing,
}


def _scalar(text: str, kind: Any, where: str) -> Any:
    try:
        return _SCALARS[kind](text)
    except (*UNREADABLE, KeyError, OverflowError) as error:
        raise _mismatch(text, kind, where) from error


def _mismatch(text: str, hint: Any, where: str) -> UserError:
    return UserError(f"{where} must be {_name(hint)}; given {text!r}")


def _name(hint: Any) -> str:
    """Returns an annotation as text for error messages."""
    args = typing.get_args(hint)
    origin = typing.get_origin(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(_name(arg) for arg in args)
    if origin is Literal:
        return " or ".join(str(arg) for arg in args)
    if origin is tuple:
        return f"a tuple of ({', '.join('...' if arg is ... else _name(arg) for arg in args)})"
    if hint in (None, type(None)):
        return "None"
    words = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
    return words.get(hint) or (hint.__name__ if isinstance(hint, type) else str(hint))


def _read_literal(text: str, hint: Any, where: str) -> Any:
    options = {str(option): option for option in typing.get_args(hint)}
    word = _string(text)
    if word not in options:
        raise UserError(
            f"{where} must be one of {', '.join(options)}; given {word!r}.{closest(word, options)}"
        )
    return options[word]


def _read_union(text: str, hint: Any, current: Any, where: str, kinds: Kinds) -> Any:
    members = typing.get_args(hint)
    if type(None) in members and _is_none(text):
        return None
    others = [m for m in members if m is not type(None) and not _is_slot(m)]
    allowed = {k: v for m in members if _is_slot(m) for k, v in _choices(m, current, kinds).items()}
    call = _call(text, where)
    if allowed and (not others or (call and call[0] in allowed)):
        return _read_variant(text, allowed, current, where, kinds)
    for member in sorted(others, key=lambda m: m is str):
        try:
            return read(text, member, current, where, kinds)
        except UserError:
            continue
    raise _mismatch(text, hint, where)


def _elements(text: str) -> list[str]:
    """Returns the texts of a tuple's entries: (a, b), [a, b], 'a, b' or a single a."""
    if not text:
        return []
    try:
        node = ast.parse(text, mode="eval").body
    except UNREADABLE:  # paths and globs are not Python
        inner = text[1:-1] if text[0] + text[-1] in ("()", "[]") else text
        return [part.strip() for part in inner.split(",") if part.strip()]
    if isinstance(node, ast.Tuple | ast.List):
        return [ast.get_source_segment(text, element) or "" for element in node.elts]
    return [text]


def _read_tuple(
    text: str, args: tuple[Any, ...], current: Any, where: str, kinds: Kinds
) -> tuple[Any, ...]:
    parts = _elements(text)
    old = current if isinstance(current, tuple) else ()
    if args and args[-1] is not ...:
        if len(parts) != len(args):
            raise UserError(f"{where} must have {len(args)} entries; given {text!r}")
        hints: Sequence[Any] = args
    else:
        hints = [args[0] if args else Any] * len(parts)
    # An entry without an annotation is read like the old entry at its index, or the last old one.
    like = [
        old[min(i, len(old) - 1)] if old and hint is Any else None for i, hint in enumerate(hints)
    ]
    return tuple(
        read(part, hint, example, f"{where}.{i}", kinds)
        for i, (part, hint, example) in enumerate(zip(parts, hints, like, strict=True))
    )


def _read_mapping(text: str, args: tuple[Any, ...], current: Any, where: str, kinds: Kinds) -> Any:
    try:
        node = ast.parse(text, mode="eval").body
    except UNREADABLE:
        node = None
    if not isinstance(node, ast.Dict) or not all(
        isinstance(key, ast.Constant) for key in node.keys
    ):
        raise UserError(f"{where} must be a mapping such as {{'a': 1}}; given {text!r}")
    hint = args[1] if len(args) == 2 else Any
    old = current if isinstance(current, Mapping) else {}
    values = {}
    for key, value in zip(node.keys, node.values, strict=True):
        part = ast.get_source_segment(text, value) or ""
        values[key.value] = read(part, hint, old.get(key.value), f"{where}.{key.value}", kinds)
    return type(old)(values)


def _call(text: str, where: str) -> tuple[str, dict[str, str]] | None:
    """Returns (name, {keyword: text}) of `Name` or `Name(keyword=text, ...)`, else None."""
    try:
        node = ast.parse(text, mode="eval").body
    except UNREADABLE:
        return None
    if isinstance(node, ast.Name):
        return node.id, {}
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        return None
    if node.args or any(word.arg is None for word in node.keywords):
        raise UserError(f"{where}: write {node.func.id}(name=value, ...); given {text!r}")
    return node.func.id, {
        word.arg: ast.get_source_segment(text, word.value) or "" for word in node.keywords
    }


def _read_variant(text: str, allowed: Kinds, current: Any, where: str, kinds: Kinds) -> Any:
    """Parses a dataclass by name. Required fields that are not given are copied from the current
    value.

    For example, a new corruption keeps the vocabulary of the old one.
    """
    call = _call(text, where)
    if call is None:
        raise UserError(
            f"{where} must be one of {', '.join(sorted(allowed))}, with fields as Name(a=1); "
            f"given {text!r}"
        )
    name, words = call
    if name not in allowed:
        raise unknown(f"kind of {where}", name, allowed)
    cls = allowed[name]
    fields = {f.name: f for f in dataclasses.fields(cls) if f.name in field_names(cls)}
    hints = hints_of(cls)
    values = {}
    for word, part in words.items():
        if word not in fields:
            raise unknown(f"field of {name}", word, fields)
        default = fields[word].default
        default = None if default is dataclasses.MISSING else default
        values[word] = read(part, hints.get(word, Any), default, f"{where}.{word}", kinds)
    bare = (dataclasses.MISSING, dataclasses.MISSING)
    lacking = [
        n for n, f in fields.items() if (f.default, f.default_factory) == bare and n not in values
    ]
    taken_over = [n for n in lacking if is_spec(current) and n in field_names(current)]
    values |= (
        {name: part for name, part in values_of(current).items() if name in taken_over}
        if taken_over
        else {}
    )
    if lacking := [n for n in lacking if n not in taken_over]:
        raise UserError(
            f"{where}: {name} needs {', '.join(lacking)}, as "
            f"{name}({', '.join(n + '=...' for n in lacking)})"
        )
    try:
        for field, part in values.items():
            check_number(field, part)
        return cls(**values)
    except ValueError as error:
        raise refusal(where, error) from error


def _read_like(text: str, current: Any, where: str, kinds: Kinds) -> Any:
    """Parses text without an annotation: a value of the type of `current`, a named dataclass, or
    None."""
    if _is_none(text):
        return None
    if type(current) in (bool, int, float, str):
        return _scalar(text, type(current), where)
    if isinstance(current, tuple):
        return _read_tuple(text, (), current, where, kinds)
    if isinstance(current, Mapping):
        return _read_mapping(text, (), current, where, kinds)
    allowed = _choices(Any, current, kinds)
    if allowed and _call(text, where):
        return _read_variant(text, allowed, current, where, kinds)
    try:
        return ast.literal_eval(text)
    except UNREADABLE as error:
        message = (
            f"{where} is {to_line(current)}, which {text!r} cannot replace; write a "
            "config file that sets it"
        )
        raise UserError(message) from error


def _is_slot(hint: Any) -> bool:
    """Whether values of an annotation are written as Name(...)."""
    plain = isinstance(hint, type) and hint not in _SCALARS and hint not in (Any, object)
    return plain and not issubclass(hint, tuple | list | Mapping | Callable)


def _choices(hint: Any, current: Any, kinds: Kinds) -> dict[str, type]:
    """Returns {name: dataclass} of the values that a slot accepts by name.

    For a class: itself and its subclasses. For `Any`: classes in the package of the current value's
    class.
    """
    pool = {**kinds, **_neighbours(current)}
    if hint is Any:
        home = _package(type(current))
        near = {name: kind for name, kind in pool.items() if _package(kind) == home}
        return near if is_spec(current) and near else pool
    if dataclasses.is_dataclass(hint) and field_names(hint):
        pool = {hint.__name__: hint, **pool}
    return {name: kind for name, kind in pool.items() if _inherits(kind, hint)}


def _package(kind: type) -> str:
    return ".".join(kind.__module__.split(".")[:2])


def _inherits(kind: type, base: type) -> bool:
    try:
        return issubclass(kind, base)
    except TypeError:  # a protocol that cannot be tested
        return True


def _neighbours(current: Any) -> dict[str, type]:
    """Returns the public dataclasses of the module that defines the current value's class."""
    if current is None or not is_spec(current):
        return {}
    home = type(current).__module__
    classes = {
        k: v for k, v in vars(sys.modules.get(home, types)).items() if dataclasses.is_dataclass(v)
    }
    classes[type(current).__name__] = type(current)
    return {
        k: v
        for k, v in classes.items()
        if isinstance(v, type) and v.__module__ == home and k[0] != "_"
    }
