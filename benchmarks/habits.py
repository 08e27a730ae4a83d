"""Count the habits that make a package hard to change: facts for one class, untyped parameters,
classes and rooms named from elsewhere, vague names, long lines, crowded folders.

`benchmarks/house.py` prints these figures, and `tests/test_house.py` lets each fall and never rise.

How it counts:

facts with one overrider    attributes and methods of a slot's base class (`SLOTS`) that one class
                            of the package overrides in its body; private and special names are
                            left out, but for `__call__`
isinstance over rooms       calls of `isinstance` that name a class of another room than core and
                            the room of the call
parameters                  of functions and methods, `self` and `cls` too; `*args`, `**options`
                            and lambdas are left out
rooms in strings            strings outside docstrings that name a module or a folder of another
                            room: "ptm_jax.tasks", "ptm_jax/tasks", or a room after `/` in a path
                            from the package or from `__file__`; `core/spec/legacy.py` is left out,
                            which lists the paths of old records
vague names                 bindings of a name of `VAGUE`: assignments, loops, parameters,
                            attributes of a class or of `self`, and keyword arguments
positional                  functions with more than `POSITIONAL` parameters that may be given by
                            place
folders                     Python files directly in a folder, `__init__.py` too
"""

from __future__ import annotations

import ast
import collections
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.house import Module

PACKAGE = "ptm_jax"
CORE = "core"
SLOTS = (
    "Slot", "Layered", "Encoder", "Embedding", "Head", "ClassHead", "Network", "Kernel",
    "Examples", "Corruption", "Objective", "Wrapper",
)  # fmt: skip
VAGUE = ("found", "own", "given", "there", "kept", "rest", "most", "whole")
COLUMNS, FOLDER, POSITIONAL = 100, 15, 5
OLD_RECORDS = f"{PACKAGE}/core/spec/legacy.py"
ROOM = re.compile(rf"\b{PACKAGE}[./](\w+)")
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def bindings(module: Module) -> dict[str, str]:
    """Returns {local name: dotted name} of the imports and classes of a module."""
    names: dict[str, str] = {}
    for node in module.nodes:
        if isinstance(node, ast.Import):
            names |= {each.asname: each.name for each in node.names if each.asname}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = module.name.split(".")
                parents = parts[: len(parts) - node.level + module.is_package]
                base = ".".join([*parents, *([base] if base else [])])
            names |= {each.asname or each.name: f"{base}.{each.name}" for each in node.names}
        elif isinstance(node, ast.ClassDef):
            names[node.name] = f"{module.name}.{node.name}"
    return names


def dotted(node: ast.AST, names: Mapping[str, str]) -> str | None:
    """Returns the dotted name of `a.b.C` or `C[...]` in a module; None for another expression."""
    if isinstance(node, ast.Subscript):
        return dotted(node.value, names)
    if isinstance(node, ast.Attribute):
        base = dotted(node.value, names)
        return base and f"{base}.{node.attr}"
    return names.get(node.id) if isinstance(node, ast.Name) else None


# ---- facts with one overrider


def members(node: ast.ClassDef) -> set[str]:
    """Returns the attributes and methods that a class body declares."""
    names: set[str] = set()
    for each in node.body:
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
            names.add(each.target.id)
        elif isinstance(each, ast.Assign):
            names |= {name.id for name in each.targets if isinstance(name, ast.Name)}
        elif isinstance(each, FUNCTIONS):
            names.add(each.name)
    return {name for name in names if not name.startswith("_") or name == "__call__"}


def classes(modules: list[Module]) -> dict[str, tuple[set[str], tuple[str, ...]]]:
    """Returns {dotted name: (members, dotted names of the bases)} of the classes of the package."""
    table: dict[str, tuple[set[str], tuple[str, ...]]] = {}
    public: dict[str, str] = {}  # the name in a module that imports it: the name of its class
    for module in modules:
        names = bindings(module)
        public |= {f"{module.name}.{name}": full for name, full in names.items()}
        for node in module.nodes:
            if isinstance(node, ast.ClassDef):
                bases = (dotted(base, names) for base in node.bases)
                table[f"{module.name}.{node.name}"] = (members(node), tuple(filter(None, bases)))
    return {
        name: (held, tuple(resolved(base, public, table) for base in bases))
        for name, (held, bases) in table.items()
    }


def resolved(name: str, public: Mapping[str, str], table: Mapping[str, object]) -> str:
    """Returns the name of a class where it is defined, from a name that imports it."""
    for _ in range(9):
        if name in table or name not in public:
            return name
        name = public[name]
    return name


def overriders(modules: list[Module]) -> dict[str, list[str]]:
    """Returns {"Slot.fact": classes of the package that override it} for the slots' base
    classes."""
    table = classes(modules)

    def ancestors(name: str) -> set[str]:
        bases = set(table[name][1]) & table.keys()
        return bases.union(*map(ancestors, bases))

    above = {name: ancestors(name) for name in table}
    facts: dict[str, list[str]] = {}
    for slot in table:
        room, _, name = slot.rpartition(".")
        if name in SLOTS and room.startswith(f"{PACKAGE}.{CORE}."):
            for fact in sorted(table[slot][0]):
                facts[f"{name}.{fact}"] = sorted(
                    other for other in table if slot in above[other] and fact in table[other][0]
                )
    return facts


# ---- classes, modules and folders of other rooms


def foreign_isinstances(modules: list[Module]) -> list[str]:
    """Returns the locations of `isinstance` with a class of another room."""
    places = []
    for module in modules:
        names = bindings(module)
        for node in module.nodes:
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id == "isinstance"
                and len(node.args) == 2
            ):
                asked = (dotted(part, names) or "" for part in ast.walk(node.args[1]))
                rooms = {name.split(".")[1] for name in asked if name.startswith(f"{PACKAGE}.")}
                if rooms - {module.room, CORE}:
                    places.append(f"{module.where}:{node.lineno}")
    return places


def docstrings(module: Module) -> set[int]:
    """Returns the ids of the strings that stand alone: docstrings and remarks on attributes."""
    return {id(node.value) for node in module.nodes if isinstance(node, ast.Expr)}


def named_rooms(modules: list[Module]) -> list[str]:
    """Returns the locations of strings that name another room, a module or folder of it."""
    rooms = {module.room for module in modules} - {None}
    places = []
    for module in modules:
        if module.where == OLD_RECORDS:
            continue
        texts = docstrings(module)
        folders = {
            id(node.right)
            for node in module.nodes
            if isinstance(node, ast.BinOp)
            and isinstance(node.op, ast.Div)
            and re.search(f"__file__|{PACKAGE}", ast.unparse(node.left))
        }
        for node in module.nodes:
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                if id(node) in texts:
                    continue
                inside = set(ROOM.findall(node.value))
                if id(node) in folders:
                    inside.add(node.value.split("/")[0])
                if (inside & rooms) - {module.room}:
                    places.append(f"{module.where}:{node.lineno}")
    return places


# ---- parameters and names


def parameters(node: ast.FunctionDef | ast.AsyncFunctionDef) -> list[ast.arg]:
    """Returns the parameters of a function, without `*args` and `**options`."""
    return [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]


def untyped(modules: list[Module]) -> tuple[list[str], int]:
    """Returns the locations of parameters of type `Any`, and the number of all parameters."""
    places, count = [], 0
    for module in modules:
        for node in module.nodes:
            if isinstance(node, FUNCTIONS):
                count += len(parameters(node))
                places += [
                    f"{module.where}:{arg.lineno} {arg.arg}"
                    for arg in parameters(node)
                    if arg.annotation is not None and ast.unparse(arg.annotation) == "Any"
                ]
    return places, count


def positional(modules: list[Module]) -> list[str]:
    """Returns the functions with more than `POSITIONAL` positional parameters."""
    return [
        f"{module.where}:{node.lineno} {node.name}"
        for module in modules
        for node in module.nodes
        if isinstance(node, FUNCTIONS)
        and sum(arg.arg not in ("self", "cls") for arg in [*node.args.posonlyargs, *node.args.args])
        > POSITIONAL
    ]


def bound(module: Module) -> Iterator[tuple[str, int]]:
    """Yields (name, line) of each binding of a variable, parameter or attribute."""
    for node in module.nodes:
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield (node.id if isinstance(node, ast.Name) else node.attr), node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno
        elif isinstance(node, ast.keyword) and node.arg:
            yield node.arg, node.value.lineno


def vague(modules: list[Module]) -> dict[str, list[str]]:
    """Returns {vague name: locations of its bindings}."""
    places: dict[str, list[str]] = {name: [] for name in VAGUE}
    for module in modules:
        for name, line in bound(module):
            if name in places:
                places[name].append(f"{module.where}:{line}")
    return places


# ---- lines and folders


def long_lines(modules: list[Module]) -> list[str]:
    """Returns the lines of more than `COLUMNS` columns."""
    return [
        f"{module.where}:{number}"
        for module in modules
        for number, line in enumerate(module.text.splitlines(), 1)
        if len(line) > COLUMNS
    ]


def crowded(modules: list[Module]) -> list[str]:
    """Returns the folders with more than `FOLDER` Python files."""
    sizes = collections.Counter(Path(module.where).parent.as_posix() for module in modules)
    return [f"{folder} ({size})" for folder, size in sorted(sizes.items()) if size > FOLDER]


def habits(modules: list[Module]) -> dict:
    """Returns all figures: each a list of places, so that a rise can be found."""
    facts = overriders(modules)
    places, count = untyped(modules)
    return {
        "facts_with_one_overrider": [
            f"{fact} ({classes[0].removeprefix(f'{PACKAGE}.')})"
            for fact, classes in facts.items()
            if len(classes) == 1
        ],
        "foreign_isinstances": foreign_isinstances(modules),
        "named_rooms": named_rooms(modules),
        "any_parameters": places,
        "parameters": count,
        "positional": positional(modules),
        "vague_names": vague(modules),
        "long_lines": long_lines(modules),
        "crowded_folders": crowded(modules),
        "files_in_core": [module.where for module in modules if module.room == CORE],
    }


LABELS = {
    "facts_with_one_overrider": "facts of a slot with one overrider",
    "foreign_isinstances": "isinstance of another room's class",
    "named_rooms": "strings that name another room",
    "any_parameters": "parameters of type Any",
    "positional": f"functions with over {POSITIONAL} positional parameters",
    "vague_names": f"vague names: {', '.join(VAGUE)}",
    "long_lines": f"lines over {COLUMNS} columns",
    "crowded_folders": f"folders over {FOLDER} files",
    "files_in_core": f"files in {CORE}",
}


def rows(figures: Mapping) -> Iterator[tuple[str, object]]:
    """Yields (name, value) of the figures, then the facts and folders by name."""
    for key, label in LABELS.items():
        if key == "any_parameters":
            yield label, f"{len(figures[key])} of {figures['parameters']:,}"
        elif key == "vague_names":
            yield label, sum(map(len, figures[key].values()))
            yield "", " ".join(f"{name} {len(places)}" for name, places in figures[key].items())
        else:
            yield label, len(figures[key])
        if key in ("facts_with_one_overrider", "crowded_folders"):
            yield from (("", each) for each in figures[key])
