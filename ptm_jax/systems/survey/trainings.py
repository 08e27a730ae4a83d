"""The last recorded pass of each training on real text, and whether the training is due again.

`trainings.json` holds {name: {"hash": text, "date": text, "commit": text, "seconds": number}}. The
hash covers the resolved record and the sources that the record reaches: the modules of its classes,
and every module of the package that these import, directly or not. Comments, docstrings and the
layout of the text do not change it. A training is due while its recorded hash differs from the hash
of this checkout.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import json
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import FunctionType
from typing import Any

from ptm_jax.core import spec
from ptm_jax.core.system import System

PACKAGE = Path(__file__).parents[2]
FILE = Path(__file__).with_name("trainings.json")
OVERDUE = 500
"""Commits after which a due training is overdue."""
_UNREAD = {"type_comment", "type_ignores", "type_params", "kind"}
"""Fields of a syntax tree that differ between versions of Python."""


@functools.cache
def recorded() -> dict[str, dict[str, Any]]:
    """Returns {training: its last recorded pass}."""
    return json.loads(FILE.read_text(encoding="utf8"))


def merged(text: str, passes: Mapping[str, Mapping[str, Any]]) -> str:
    """Returns the text of the file with these passes; the other entries stay."""
    entries = sorted({**json.loads(text or "{}"), **passes}.items())
    lines = [f" {json.dumps(name)}: {json.dumps(entry)}" for name, entry in entries]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def fingerprint(system: System) -> str:
    """Returns the hash of a resolved record and of the sources that it reaches."""
    modules = reached(_modules(system))
    parts = [spec.to_text(system), *(f"{name} {_digest(name)}" for name in sorted(modules))]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def reached(modules: Iterable[str]) -> set[str]:
    """Returns the modules of the package that `modules` import, directly or not, and themselves."""
    left, seen = set(modules), set()
    while left:
        name = left.pop()
        seen.add(name)
        left |= _imports(name) - seen
    return seen


def due(records: Mapping[str, System]) -> list[str]:
    """Returns the trainings among {training: record} that are due, the oldest pass first."""
    none = {"hash": "", "date": ""}
    last = {name: recorded().get(name, none) for name in records}
    names = [name for name, one in records.items() if last[name]["hash"] != fingerprint(one)]
    return sorted(names, key=lambda name: (last[name]["date"], name))


def overdue(system: System) -> bool:
    """Returns whether the training is due and more than OVERDUE commits followed its last pass.

    False where the checkout or the recorded commit is not known, as in an installed wheel.
    """
    entry = recorded().get(system.name)
    if entry is None or (_commits_since(entry["commit"]) or 0) <= OVERDUE:
        return False
    return not entry["hash"] or entry["hash"] != fingerprint(system)


@functools.cache
def _commits_since(commit: str) -> int | None:
    """Returns the number of commits after `commit`; None without git or the commit."""
    if not (PACKAGE.parent / ".git").exists():
        return None
    words = ["git", "rev-list", "--count", f"{commit.rstrip('+')}..HEAD"]
    try:
        done = subprocess.run(words, cwd=PACKAGE, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return int(done.stdout) if done.returncode == 0 else None


def _modules(system: System) -> set[str]:
    """Returns the modules of the classes and functions in a record."""
    owners = (
        part if isinstance(part, type | FunctionType) else type(part)
        for _, part in spec.walk(system)
    )
    return {owner.__module__ for owner in owners if owner.__module__.startswith(PACKAGE.name)}


def _path(module: str) -> Path | None:
    """Returns the file of a module of the package."""
    base = PACKAGE.parent.joinpath(*module.split("."))
    files = (base.with_suffix(".py"), base / "__init__.py")
    return next((file for file in files if file.is_file()), None)


@functools.cache
def _tree(module: str) -> ast.Module:
    return ast.parse(_path(module).read_text(encoding="utf8"))


@functools.cache
def _imports(module: str) -> frozenset[str]:
    """Returns the modules of the package that a module imports, inside functions too."""
    names = set()
    for node in ast.walk(_tree(module)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            names |= {name if _path(name) else node.module for name in inner}
    return frozenset(name for name in names if name.startswith(f"{PACKAGE.name}.") and _path(name))


@functools.cache
def _digest(module: str) -> str:
    """Returns the hash of the code of a module."""
    return hashlib.sha256("\n".join(_code(_tree(module))).encode()).hexdigest()


def _code(node: Any) -> Iterator[str]:
    """Yields the parts of a syntax tree in order, without docstrings and positions."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return
    if isinstance(node, ast.AST):
        yield type(node).__name__
        for name, value in ast.iter_fields(node):
            if name not in _UNREAD and value not in (None, []):
                yield f".{name}"
                yield from _code(value)
        yield ";"
    elif isinstance(node, list):
        for child in node:
            yield from _code(child)
    else:
        yield repr(node)
