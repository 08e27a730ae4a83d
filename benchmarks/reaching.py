"""The test files that reach a line of the package through imports, the closest first."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks import house

FILES = 24
"""Number of test files of a line that are chosen by imports."""
LAWS = ("laws/test_laws_*.py", "systems/test_catalogue.py")
"""Test files that find the classes in registries; they come after the chosen files."""
NO_WITNESS = (
    "test_house.py",
    "test_import_law.py",
    "test_docs.py",
    "test_contributing.py",
    "test_notebooks.py",
)
"""Test files that read the source as text."""


class Tree:
    """The imports of the package and its tests."""

    def __init__(self, root: Path):
        files = sorted((root / house.PACKAGE).rglob("*.py"))
        modules = [house.Module(path, root) for path in files]
        modules += [
            house.Module(path, root / "tests") for path in sorted((root / "tests").rglob("*.py"))
        ]
        self.modules = {module.name: module for module in modules}
        self.root = root
        laws = (path for name in LAWS for path in sorted((root / "tests").glob(name)))
        self.laws = [path.relative_to(root).as_posix() for path in laws]
        self.edges = house.graph(modules, functions=True)
        self._public(modules[: len(files)], modules)

    def _public(self, package: Sequence[house.Module], modules: Sequence[house.Module]) -> None:
        """Adds what imports do not show: the files of classes that are imported by the name of
        their room (`from ptm_jax.nn import Dense`, or `nn.Dense`), and the files of a folder, which
        its registry opens."""
        for targets in self.edges.values():
            targets |= {target.rpartition(".")[0] for target in targets if target.count(".") > 1}
        for module in package:
            if module.name.count(".") > 1:
                self.edges[module.name.rpartition(".")[0]].add(module.name)
        definers: dict[str, list[str]] = {}
        for module in package:
            for node in module.tree.body:
                if isinstance(node, ast.ClassDef):
                    definers.setdefault(node.name, []).append(module.name)
        for module in modules:
            packages = dict(_packages(module, self.modules))
            uses = [(base, name) for base, name, _ in house.imports(module) if name]
            uses += [
                (packages[node.value.id], node.attr)
                for node in ast.walk(module.tree)
                if isinstance(node, ast.Attribute)
                and isinstance(node.value, ast.Name)
                and node.value.id in packages
            ]
            for base, name in uses:
                inside = [d for d in definers.get(name, ()) if d.startswith(f"{base}.")]
                self.edges[module.name].update(inside)

    def distances(self, module: str) -> dict[str, int]:
        """Returns {module: imports on the shortest path to `module`}."""
        importers: dict[str, set[str]] = {}
        for name, targets in self.edges.items():
            for target in targets:
                importers.setdefault(target, set()).add(name)
        distances, border = {module: 0}, [module]
        while border:
            name = border.pop(0)
            for importer in sorted(importers.get(name, set()) - distances.keys()):
                distances[importer] = distances[name] + 1
                border.append(importer)
        return distances

    def names(self, file: str, line: int) -> set[str]:
        """Returns the names of the classes and functions around a line and of the module's others
        that use them; those of more than three letters."""
        body = self.modules[_dotted(file)].tree.body
        uses = {name: _words(node) for node in body for name in _defined(node)}
        around = [node for node in body if node.lineno <= line <= node.end_lineno]
        names = {name for node in around for name in _defined(node)}
        while more := {name for name, words in uses.items() if words & names} - names:
            names |= more
        inner = {
            node.name
            for node in ast.walk(around[0] if around else ast.Module([], []))
            if isinstance(node, ast.FunctionDef) and node.lineno <= line <= node.end_lineno
        }
        return {name for name in names | inner if len(name) > 3 and not name.startswith("__")}

    def tests(self, file: str, line: int) -> list[str]:
        """Returns the test files that reach a line: first the files that import its module and
        mention a name that uses it, then other importers, then the others that mention it; those of
        the module's name or room before others; the laws last."""
        names = self.names(file, line)
        room, stem = file.split("/")[1], Path(file).stem[:6]
        ranked = []
        for name, distance in self.distances(_dotted(file)).items():
            module = self.modules[name]
            if not module.path.name.startswith("test_") or module.path.name in NO_WITNESS:
                continue
            mentions = bool(names & set(re.findall(r"\w+", module.text)))
            far = 2 - (room in name.split(".")) - 2 * (stem in module.path.stem)
            tier = 2 * (distance > 1) + (not mentions)
            path = module.path.relative_to(self.root).as_posix()
            ranked.append((tier, far, distance, module.lines, path))
        closest = [path for *_, path in sorted(ranked)]
        return list(dict.fromkeys([*closest[:FILES], *self.laws]))


def _packages(module: house.Module, modules: dict[str, house.Module]) -> Iterator[tuple[str, str]]:
    """Yields (name in the module, package) for each package that it imports."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                target = f"{node.module}.{alias.name}"
                if target in modules and modules[target].is_package:
                    yield alias.asname or alias.name, target


def _dotted(file: str) -> str:
    return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _defined(node: ast.stmt) -> Sequence[str]:
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return [node.name]
    if isinstance(node, (ast.Assign, ast.AnnAssign)):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return [name.id for t in targets for name in ast.walk(t) if isinstance(name, ast.Name)]
    return []


def _words(node: ast.AST) -> set[str]:
    return {name.id for name in ast.walk(node) if isinstance(name, ast.Name)}
