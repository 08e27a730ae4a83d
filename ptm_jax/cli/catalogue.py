"""The catalogue: every system with its rows of the survey, its slots and what has been shown of it.

Example:
  ptm list
  ptm list --json
  ptm list --matrix
  ptm list --adaptations
  ptm list --tasks
"""

from __future__ import annotations

import dataclasses
import functools
import json
import textwrap
from importlib import resources
from typing import Any

from ptm_jax.cli.options import Flag, print_json, table

COLUMNS = ("name", "rows", "section", "towers", "corruption", "objective", "adapt", "compress", "status", "paper")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Args:
    json: Flag = False
    """A list of objects, with group as well."""
    matrix: Flag = False
    """Instead: which encoder carries which pre-training task, and why the others cannot."""
    tasks: Flag = False
    """Instead: the downstream tasks, which `ptm train`, `evaluate` and `predict` take as --task."""
    adaptations: Flag = False
    """Instead: the ways of adapting a model, which `ptm train --adapt` takes, with their fields."""


def run(args: Args) -> int:
    """Print the catalogue, the table of encoders and tasks, or the ways of adapting."""
    if args.tasks:
        return _tasks(args.json)
    if args.adaptations:
        return _adaptations(args.json)
    if args.matrix:
        return _matrix(args.json)
    entries = [entry(system, status().get(system.name, [])) for system in systems()]
    if args.json:
        print_json(entries)
        return 0
    shown = [c for c in COLUMNS if c in ("name", "paper") or any(e[c] for e in entries)]
    print(table(shown, [[_cell(e[c]) for c in shown] for e in entries]))
    return 0


def _tasks(as_json: bool) -> int:
    from ptm_jax.tasks.catalogue import catalogue as tasks

    found = [tasks.get(name) for name in tasks.names()]
    keys = ("name", "examples", "classes", "metrics", "group", "paper")
    classes = lambda labels: "" if not labels else str(len(labels)) if labels != "found" else "found"
    cells = [
        [t.name, label(t.examples), classes(getattr(t.examples, "labels", ())), list(t.metrics), t.group, t.paper]
        for t in found
    ]
    if as_json:
        print_json([dict(zip(keys, row, strict=True)) for row in cells])
    else:
        print(table(keys, [[_cell(part) for part in row] for row in cells]))
    return 0


def _adaptations(as_json: bool) -> int:
    from ptm_jax.adapt import catalogue as ways

    found = ways.entries()
    if as_json:
        print_json(found)
        return 0
    for each in found:
        fields = ", ".join(f"{name}={value!r}" for name, value in each["fields"].items())
        print(f"{each['name']}({fields})")
        print(textwrap.fill(each["what"], 110, initial_indent="    ", subsequent_indent="    "))
    return 0


def _matrix(as_json: bool) -> int:
    from ptm_jax.systems import matrix

    cells = matrix.cells()
    if as_json:
        found = [{"encoder": row, "task": column, "works": not why, "reason": why} for (row, column), why in cells.items()]
        print_json(found)
        return 0
    reasons = list(dict.fromkeys(why for why in cells.values() if why))
    mark = lambda why: str(reasons.index(why) + 1) if why else "yes"
    print(table(["encoder", *matrix.TASKS], [
        [row, *(mark(cells[row, column]) for column in matrix.TASKS)] for row in matrix.ENCODERS
    ], width=200))  # fmt: skip
    print()
    for number, why in enumerate(reasons, 1):
        print(f"{number}: {why}")
    print("ptm train ENCODER+TASK trains a cell, by the names of the systems: ptm train albert_mini+spanbert_mini")
    return 0


def catalogue():
    """The catalogue of `systems/`, complete."""
    from ptm_jax.core import registry

    registry.discover("ptm_jax.systems")
    return registry.catalogue


def systems() -> list[Any]:
    """Every system, in the order of the catalogue."""
    complete = catalogue()
    return [complete.get(name) for name in complete.names()]


@functools.cache
def status() -> dict[str, list[str]]:
    """{system: status words}, as the tests' markers earned them."""
    file = resources.files("ptm_jax.systems") / "status.json"
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}


def entry(system: Any, words: list[str]) -> dict[str, Any]:
    """What the catalogue says of one system."""
    return {
        "name": system.name,
        "rows": list(system.rows),
        "group": system.group,
        "section": system.section,
        "paper": system.paper,
        "towers": {name: label(getattr(tower, "encoder", tower)) for name, tower in system.towers.items()},
        "corruption": label(system.corruption),
        "objective": label(system.objective),
        "adapt": [label(part) for part in system.adapt],
        "compress": [label(part) for part in system.compress],
        "status": list(words),
    }


def label(part: Any) -> str | None:
    """The name of what fills a slot: its class, or its own where it is a function."""
    return None if part is None else getattr(part, "__name__", type(part).__name__)


def _cell(part: Any) -> str:
    if isinstance(part, dict):
        one = list(part) == ["main"]
        return part["main"] if one else " ".join(f"{name}:{kind}" for name, kind in part.items())
    if isinstance(part, list):
        return " ".join(str(word) for word in part)
    return "" if part is None else str(part)
