"""Measure how the code of a checkout is kept: sizes, circles of imports, doubled file names, words,
import times.

    python benchmarks/house.py [ROOT] [--json]

ROOT is a folder that holds `ptm_jax/` (and `tests/`); unless given, the checkout in which this file
lies. The standard library is enough. Everything but the two times is read from the source without
importing it, so the figures of one state of the code are the same on every machine; the times are
those of this machine and of the interpreter that runs this. `tests/test_house.py` bounds the
figures: each may fall and never rise.

How it counts (`benchmarks/habits.py` has the second half of the table, and how that counts):

lines       every line of every .py file, empty ones and comments too
calls       `getattr(...)` and `hasattr(...)` in the syntax tree; these words in comments and
            strings do not count
imports     `from a import b` means the module a.b where there is one, else a (an `__init__.py`
            counts like any module, but only where it is named: that importing a.b runs a first is
            left out). What stands under `if TYPE_CHECKING` is ignored; what stands in a function is
            counted apart, as it runs only when that is called; modules that are named by a string
            (`importlib`) are not seen
circles     strongly connected components of more than one module, or of more than one room; a room
            is a folder directly in ptm_jax, and a file beside the rooms belongs to none
names       files other than `__init__.py` whose name stands in more than one folder
words       the parts of every text: `was_told`, `wasTold` and "was told" all have `told`,
            `foretold` has not; in names of the code (variables, functions, classes) and in comments
            and strings
functions   from the line of `def` to the last one, methods and inner functions too; decorators are
            left out
times       the median of 5 fresh processes, after one that is not counted
"""

from __future__ import annotations

import argparse
import ast
import collections
import io
import json
import os
import re
import statistics
import subprocess
import sys
import time
import tokenize
from collections.abc import Iterator, Mapping
from pathlib import Path

if not __package__:  # run as a file
    sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks import habits

PACKAGE = "ptm_jax"
WORDS = ("told", "said", "tells", "says", "shall")
CALLS = ("getattr", "hasattr")
LONG_FILE, LONG_FUNCTION = 400, 60
REPEATS = 5
PIECE = re.compile(
    r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+"
)  # a word, or a part of snake_case and of camelCase
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


class Module:
    """One file of the package: its dotted name, path, text, syntax tree and all nodes of it."""

    def __init__(self, path: Path, root: Path):
        self.path, self.where = path, path.relative_to(root).as_posix()
        parts = path.relative_to(root).with_suffix("").parts
        self.is_package = parts[-1] == "__init__"
        self.name = ".".join(parts[:-1] if self.is_package else parts)
        self.text = path.read_text(encoding="utf-8")
        self.lines = len(self.text.splitlines())
        self.tree = ast.parse(self.text, filename=self.where)
        self.nodes = tuple(ast.walk(self.tree))

    @property
    def room(self) -> str | None:
        """Returns the top-level folder of the module in the package; None for a file outside of all
        folders."""
        folders = self.where.split("/")[1:-1]
        return folders[0] if folders else None


def imports(module: Module) -> Iterator[tuple[str, str | None, bool]]:
    """Yields (module, imported name or None, inside a function) for every import that is
    executed."""
    waiting: list[tuple[ast.AST, bool]] = [(module.tree, False)]
    while waiting:
        node, inside = waiting.pop()
        if isinstance(node, ast.Import):
            yield from ((alias.name, None, inside) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = module.name.split(".")
                parents = parts[: len(parts) - node.level + module.is_package]
                base = ".".join([*parents, *([base] if base else [])])
            yield from ((base, alias.name, inside) for alias in node.names)
        elif isinstance(node, ast.If) and ast.unparse(node.test) in (
            "TYPE_CHECKING",
            "typing.TYPE_CHECKING",
        ):
            waiting.extend((child, inside) for child in node.orelse)
        elif not isinstance(node, ast.expr):  # which holds no import
            inside = inside or isinstance(node, FUNCTIONS)
            waiting.extend((child, inside) for child in ast.iter_child_nodes(node))


def graph(modules: list[Module], functions: bool) -> dict[str, set[str]]:
    """Returns {module: imported modules of the package}. `functions` includes imports inside
    functions."""
    edges: dict[str, set[str]] = {module.name: set() for module in modules}
    for module in modules:
        for base, name, inside in imports(module):
            found = f"{base}.{name}" if name is not None and f"{base}.{name}" in edges else base
            if found in edges and found != module.name and (functions or not inside):
                edges[module.name].add(found)
    return edges


def between_rooms(
    edges: Mapping[str, set[str]], rooms: Mapping[str, str | None]
) -> dict[str, set[str]]:
    """Returns the import graph between rooms."""
    found: dict[str, set[str]] = {room: set() for room in rooms.values() if room}
    for name, others in edges.items():
        if here := rooms[name]:
            found[here] |= {there for other in others if (there := rooms[other]) and there != here}
    return found


def circles(edges: Mapping[str, set[str]]) -> list[list[str]]:
    """Returns the strongly connected components of more than one node, largest first (Kosaraju's
    algorithm)."""
    back = {node: {other for other in edges if node in edges[other]} for node in edges}
    order: list[str] = []
    seen: set[str] = set()
    found: list[list[str]] = []

    def visit(node: str, along: Mapping[str, set[str]], into: list[str]) -> None:
        seen.add(node)
        for other in sorted(along[node] - seen):
            if other not in seen:
                visit(other, along, into)
        into.append(node)

    for node in (node for node in sorted(edges) if node not in seen):
        visit(node, edges, order)
    seen.clear()
    for node in (node for node in reversed(order) if node not in seen):
        visit(node, back, component := [])
        found.append(sorted(component))
    return sorted((each for each in found if len(each) > 1), key=lambda each: (-len(each), each))


def pieces(text: str) -> collections.Counter[str]:
    """Counts each of `WORDS` in a text."""
    found = collections.Counter(piece.lower() for piece in PIECE.findall(text))
    return collections.Counter({word: found[word] for word in WORDS})


def names_of(module: Module) -> str:
    """Returns all occurrences of names in the code of a module, joined by spaces."""
    tokens = tokenize.generate_tokens(io.StringIO(module.text).readline)
    return " ".join(token.string for token in tokens if token.type == tokenize.NAME)


def functions(module: Module) -> Iterator[tuple[int, str]]:
    """Yields (number of lines, location) for every function."""
    for node in module.nodes:
        if isinstance(node, FUNCTIONS):
            yield (
                (node.end_lineno or node.lineno) - node.lineno + 1,
                f"{module.where}:{node.lineno} {node.name}",
            )


def seconds(root: Path, *words: str) -> float:
    """Returns the median seconds of a Python process with these arguments and the checkout on its
    path."""
    environment = {**os.environ, "PYTHONPATH": str(root)}
    found = []
    for _ in range(REPEATS + 1):
        began = time.perf_counter()
        subprocess.run(
            [sys.executable, *words], cwd=root, env=environment, capture_output=True, check=True
        )
        found.append(time.perf_counter() - began)
    return round(statistics.median(found[1:]), 3)


def import_figures(modules: list[Module]) -> dict:
    """Returns the import circles of modules and rooms, with and without imports inside
    functions."""
    rooms, found = {module.name: module.room for module in modules}, {}
    for key, inside in (("at_import", False), ("with_functions", True)):
        edges = graph(modules, inside)
        found[f"module_circles_{key}"] = circles(edges)
        found[f"room_circles_{key}"] = circles(between_rooms(edges, rooms))
    return found


def modules_of(root: Path) -> list[Module]:
    """Returns the files of the package."""
    return [Module(path, root) for path in sorted((root / PACKAGE).rglob("*.py"))]


def measure(root: Path) -> dict:
    """Returns all figures as JSON values."""
    modules = modules_of(root)
    return {
        **sizes(modules, root),
        **import_figures(modules),
        "habits": habits.habits(modules),
        "seconds": {
            "import": seconds(root, "-c", f"import {PACKAGE}"),
            "help": seconds(root, "-m", f"{PACKAGE}.cli.main", "--help"),
        },
    }


def sizes(modules: list[Module], root: Path) -> dict:
    """Returns the figures of lines, calls and words."""
    tests = sum(
        len(path.read_text(encoding="utf-8").splitlines())
        for path in sorted((root / "tests").rglob("*.py"))
    )
    nodes = (node for module in modules for node in module.nodes if isinstance(node, ast.Call))
    called = collections.Counter(node.func.id for node in nodes if isinstance(node.func, ast.Name))
    folders: dict[str, list[str]] = collections.defaultdict(list)
    for module in modules:
        if not module.is_package:
            folders[module.path.name].append(module.where.rpartition("/")[0])
    spoken = sum((pieces(module.text) for module in modules), collections.Counter())
    named = sum((pieces(names_of(module)) for module in modules), collections.Counter())
    lengths_of_files = sorted(((module.lines, module.where) for module in modules), reverse=True)
    lengths = sorted((found for module in modules for found in functions(module)), reverse=True)
    return {
        "lines": {PACKAGE: sum(module.lines for module in modules), "tests": tests},
        "files": len(modules),
        "calls": {name: called[name] for name in CALLS},
        "doubled_names": {name: where for name, where in sorted(folders.items()) if len(where) > 1},
        "words": {word: spoken[word] for word in WORDS},
        "words_in_names": {word: named[word] for word in WORDS},
        "longest_file": lengths_of_files[0],
        "files_over": sum(lines > LONG_FILE for lines, _ in lengths_of_files),
        "longest_function": lengths[0],
        "functions_over": sum(lines > LONG_FUNCTION for lines, _ in lengths),
    }


def rows(found: dict) -> Iterator[tuple[str, object]]:
    """Yields the figures as table rows (name, value), then each circle and each duplicate file
    name."""
    yield from (
        (f"lines of Python in {name}/", f"{lines:,}") for name, lines in found["lines"].items()
    )
    yield f"files in {PACKAGE}/", found["files"]
    yield from ((f"calls of {name}", count) for name, count in found["calls"].items())
    for what in ("module", "room"):
        for key, remark in (
            ("at_import", "at import"),
            ("with_functions", "with imports in functions"),
        ):
            each = found[f"{what}_circles_{key}"]
            yield (
                f"circles of {what}s, {remark}",
                f"{len(each)} ({sum(map(len, each))} {what}s)" if each else 0,
            )
            yield from (("", " ".join(names)) for names in each)
    yield "file names in two folders or more", len(found["doubled_names"])
    yield from ((f"  {name}", " ".join(where)) for name, where in found["doubled_names"].items())
    yield f"words: {', '.join(WORDS)}", sum(found["words"].values())
    yield "", " ".join(f"{word} {count}" for word, count in found["words"].items())
    yield "  of these in names of the code", sum(found["words_in_names"].values())
    yield "longest file", "{} lines, {}".format(*found["longest_file"])
    yield f"files over {LONG_FILE} lines", found["files_over"]
    yield "longest function", "{} lines, {}".format(*found["longest_function"])
    yield f"functions over {LONG_FUNCTION} lines", found["functions_over"]
    yield from habits.rows(found["habits"])
    yield f"seconds of `import {PACKAGE}`", found["seconds"]["import"]
    yield f"seconds of `{PACKAGE}.cli.main --help`", found["seconds"]["help"]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "root", nargs="?", type=Path, default=Path(__file__).parents[1], metavar="ROOT"
    )
    parser.add_argument(
        "--json", action="store_true", help="one JSON document in place of the table"
    )
    args = parser.parse_args()
    root = args.root.resolve()
    if not (root / PACKAGE / "__init__.py").is_file():
        parser.error(f"{args.root} has no {PACKAGE}/; give the folder of a checkout")
    found = measure(root)
    if args.json:
        print(json.dumps(found, indent=1))
        return 0
    table = list(rows(found))
    width = max(len(label) for label, _ in table)
    print("\n".join(f"{label:{width}}  {value}" for label, value in table))
    return 0


if __name__ == "__main__":
    sys.exit(main())
