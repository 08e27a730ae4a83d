"""Converts old records: one rule for each kind with changed fields."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def _embeddings(fields: dict[str, Any]) -> dict[str, Any]:
    """`Embeddings(types, word_types, languages, tasks)` became `parts`."""
    if "parts" in fields:
        return fields
    types = "WordTypes" if fields.pop("word_types", False) else "Types"
    sizes = {
        types: fields.pop("types", 0),
        "Languages": fields.pop("languages", 0),
        "TaskTypes": fields.pop("tasks", 0),
    }
    return fields | {
        "parts": [{"kind": kind, "size": size} for kind, size in sizes.items() if size]
    }


def _chain(fields: dict[str, Any]) -> dict[str, Any]:
    """LIBERT's `LexicalPairs` became `WithLexicalPairs` of `examples`."""
    parts = [part for part in fields.get("parts", ()) if not _is_record(part, "LexicalPairs")]
    return {**fields, "parts": parts}


def _is_record(part: Any, kind: str) -> bool:
    """Returns whether `part` is a record of `kind`; a function's part is a string."""
    return isinstance(part, Mapping) and part.get("kind") == kind


def _triple_loss(fields: dict[str, Any]) -> dict[str, Any]:
    """`TripleLoss(own, biased)` repeated facts of the head, which it now reads."""
    return {name: value for name, value in fields.items() if name not in ("own", "biased")}


FIELDS: Mapping[str, Mapping[str, str]] = {
    "AdaptiveHead": {"own": "parts"},
    "Buckets": {"most": "farthest"},
    "GapSentences": {"most": "limit"},
    "GloVe": {"most": "ceiling"},
    "RelativeKeysValues": {"most": "farthest"},
    "Selecting": {"most": "limit"},
    "SharingEncoder": {"own": "task_width"},
    "SingleSenseMasking": {"most": "limit"},
}
"""{kind: {old field: current field}}."""


def _renamed(old: str, new: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Returns the rule of a class whose field `old` became `new`."""
    return lambda fields: {new if name == old else name: part for name, part in fields.items()}


RULES: Mapping[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "Embeddings": _embeddings,
    "Chain": _chain,
    "TripleLoss": _triple_loss,
    "HeadRelations": _renamed("of", "vectors"),
    "JointHead": _renamed("of", "part"),
    "WordClass": _renamed("of", "classes"),
}
"""{kind: function from its old fields to the current ones}."""


ROOMS: Mapping[str, tuple[str, ...]] = {
    "core": ("knowledge", "statistics", "adapt"),
    "data": ("knowledge", "statistics"),
    "nn": ("statistics",),
    "train": ("training",),
}
"""{package in an old kind "package.Class": packages that have taken over classes of it}."""


def current(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns one record with current fields; nested records are not converted."""
    kind = record.get("kind")
    if not isinstance(kind, str):
        return record
    if kind in FIELDS:
        return {FIELDS[kind].get(name, name): value for name, value in record.items()}
    return RULES[kind](dict(record)) if kind in RULES else record


def renewed(record: Any) -> Any:
    """Returns a JSON value with current fields in every record."""
    if isinstance(record, list):
        return [renewed(part) for part in record]
    return (
        {name: renewed(part) for name, part in current(record).items()}
        if isinstance(record, Mapping)
        else record
    )
