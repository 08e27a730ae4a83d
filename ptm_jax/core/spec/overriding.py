"""Overriding the parts of a spec by path.

A path is field names, keys and tuple indices joined by dots: `recipe.phases.0.steps`. Specs are not
mutated, and text is parsed, not evaluated (`core.spec.parsing`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ptm_jax.core.errors import UserError, unknown
from ptm_jax.core.spec.describe import field_names, is_spec, to_line, values_of
from ptm_jax.core.spec.parsing import Kinds, hints_of, read
from ptm_jax.core.spec.walk import children, walk, with_children


def parse_pairs(pairs: Sequence[str]) -> dict[str, str]:
    """Returns {path: text} of 'path=value' words.

    Raises UserError for other words and for a path given twice.
    """
    changes: dict[str, str] = {}
    for pair in pairs:
        path, equals, text = pair.partition("=")
        path = path.strip()
        if not equals or not path:
            raise UserError(f"--set takes path=value, as in recipe.lr=1e-4; given {pair!r}")
        if path in changes:
            raise UserError(f"--set gives {path} twice: {changes[path]!r} and {text.strip()!r}")
        changes[path] = text.strip()
    return changes


def override(value: Any, changes: Mapping[str, Any], kinds: Kinds | None = None) -> Any:
    """Returns `value` with the parts at the paths of `changes` replaced.

    They are replaced by parsed texts, or by values that are not texts.

    The annotation of a field determines how its text is read; for `Any`, the type of the current
    value does. Such a field also accepts the dataclasses of `kinds` by name. All changes of one
    object are made at once, so that it is validated only in its final state. In an object with a
    `system`, a path that is not one of its own fields is looked up in the system. Raises UserError
    for an unknown field, a text of the wrong type, or a value that `__post_init__` refuses.
    """
    tree: dict[str, Any] = {}
    with_system = is_spec(value) and "system" in field_names(value)
    for path, text in changes.items():
        first, _, below = path.partition(".")
        # An Experiment's tokenizer is None if it uses the system's; a path inside it then changes
        # the system's.
        is_field = first in field_names(value) and not (below and values_of(value)[first] is None)
        if not with_system or is_field:
            steps = path.split(".")
        elif first in field_names(value.system):
            steps = ["system", *path.split(".")]
        else:
            both = [n for n in field_names(value) if n != "system"] + list(
                field_names(value.system)
            )
            raise unknown("field", first, set(both), _nested(value.system, first))
        if "" in steps:
            raise UserError(f"--set takes a path such as recipe.phases.0.steps; given {path!r}")
        node = tree
        for step in steps:
            node = node.setdefault(step, {})
        node[""] = text
    return _override(value, tree, "", kinds or {})


def _override(value: Any, tree: Mapping[str, Any], where: str, kinds: Kinds) -> Any:
    parts = children(value)
    by_name = {str(key): key for key in parts}
    hints = hints_of(type(value)) if is_spec(value) else {}
    changed = {}
    for name, below in tree.items():
        path = f"{where}.{name}" if where else name
        if name not in by_name:
            raise _no_such_part(value, name, where, by_name)
        part = parts[by_name[name]]
        if "" in below:
            text = below[""]
            part = (
                read(text, hints.get(name, Any), part, path, kinds)
                if isinstance(text, str)
                else text
            )
        deeper = {step: change for step, change in below.items() if step}
        changed[by_name[name]] = _override(part, deeper, path, kinds) if deeper else part
    return with_children(value, changed, where) if changed else value


def _no_such_part(value: Any, name: str, where: str, names: Mapping[str, Any]) -> UserError:
    place = where or type(value).__name__
    if not names:
        return UserError(
            f"{place} is {to_line(value)}, which has no parts; there is no {name!r} to set in it"
        )
    if is_spec(value):
        kind = f" ({type(value).__name__})" if where else ""
        return unknown(f"field of {place}{kind}", name, names, _nested(value, name, where))
    if isinstance(value, Mapping):
        return unknown(f"key of {place}", name, names)
    return UserError(
        f"{place} has {len(value)} entries, 0 to {len(value) - 1}; there is no {name!r}"
    )


def _nested(value: object, name: str, where: str = "") -> str | None:
    """Returns the shortest path of a field `name` of the parts of `value`; None without one."""
    paths = [
        f"{path}.{name}"
        for path, part in walk(value, where)
        if is_spec(part) and part is not value and name in field_names(part)
    ]
    return min((path.removeprefix("system.") for path in paths), key=_depth, default=None)


def _depth(path: str) -> int:
    return path.count(".")
