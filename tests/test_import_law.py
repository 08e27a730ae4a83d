"""The import law over the syntax trees: who may import whom, where Linen lives, and what stays out of the start-up."""

import ast
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import ptm_jax

PACKAGE = "ptm_jax"
ROOT = Path(ptm_jax.__file__).parent

MODEL = {"core", "mesh", "kernels", "nn"}
SLOTS = {
    "core",
    "mesh",
    "kernels",
    "data",
    "corruptions",
    "objectives",
    "convert",
    "nn",
    "encoders",
    "adapt",
    "compress",
}
LAW = {
    "core": set(),
    "mesh": {"core"},
    "kernels": {"core"},
    "data": {"core"},
    "corruptions": {"core"},
    "objectives": {"core"},
    "convert": SLOTS - {"convert"} | {"systems"},
    "nn": {"core", "mesh", "kernels"},
    "encoders": MODEL,
    "adapt": MODEL | {"corruptions", "encoders", "objectives"},
    "compress": MODEL | {"objectives"},
    "systems": SLOTS - {"convert"},
    "train": SLOTS | {"systems"},
    "plan": SLOTS | {"systems", "train"},
    "launch": {"core", "mesh"},
    "tasks": SLOTS | {"systems"},
    "analysis": SLOTS | {"systems"},
    "bench": SLOTS | {"systems", "train", "tasks"},
}
LINEN = {"nn", "encoders", "adapt"}
OUTSIDE = {"configs", "launch", "tests"}
HEAVY = {"tensorflow", "torch", "transformers"}


def imports(tree: ast.AST, module: str, is_package: bool) -> Iterator[tuple[str, int, bool]]:
    """(dotted name, line, inside a function) of everything a module imports; `from a import b` gives a.b."""
    inner = {
        id(node)
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for node in ast.walk(function)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno, id(node) in inner
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = module.split(".")[: len(module.split(".")) - node.level + is_package]
                base = ".".join([*parents, *([base] if base else [])])
            for alias in node.names:
                yield f"{base}.{alias.name}", node.lineno, id(node) in inner


def broken(source: str, module: str, is_package: bool = False) -> list[str]:
    """What a module of the package does against the law, one line each."""
    folder = module.split(".")[1] if module.count(".") else ""
    found = []
    if module.rsplit(".", 1)[-1] == "utils":
        found.append(f"{module}: a utils.py")
    for name, line, in_function in imports(ast.parse(source), module, is_package):
        parts = name.split(".")
        where = f"{module}:{line} imports {name}"
        if parts[0] in OUTSIDE:
            found.append(f"{where}, which is outside the package")
        elif parts[0] == PACKAGE and len(parts) > 1 and folder in LAW:
            if parts[1] != folder and parts[1] not in LAW[folder]:
                found.append(f"{where}; {folder} may import {', '.join(sorted(LAW[folder])) or 'nothing of ours'}")
        elif parts[:2] == ["flax", "nnx"]:
            found.append(f"{where}; nnx is not used")
        elif parts == ["flax"] or parts[:2] == ["flax", "linen"]:
            if folder not in LINEN:
                found.append(f"{where}; Linen lives in {', '.join(sorted(LINEN))}")
        elif parts[0] in HEAVY and not in_function:
            found.append(f"{where} at the top level")
    return found


def modules() -> Iterator[tuple[str, Path]]:
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT.parent).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def test_every_folder_has_a_law():
    folders = {path.parent.relative_to(ROOT).parts[0] for path in ROOT.rglob("*.py") if path.parent != ROOT}
    assert folders <= {*LAW, "cli"}, "give the new folder its line in LAW"


def test_the_package_keeps_the_law():
    found = [
        line
        for name, path in modules()
        for line in broken(path.read_text(encoding="utf-8"), name, path.name == "__init__.py")
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("ptm_jax.core.bad", "import ptm_jax.data.prepare"),
        ("ptm_jax.core.bad", "from ptm_jax import data"),
        ("ptm_jax.core.bad", "from ..nn import blocks"),
        ("ptm_jax.core.bad", "def f():\n    from ptm_jax.train import loop"),
        ("ptm_jax.nn.bad", "from ptm_jax.encoders import transformer"),
        ("ptm_jax.objectives.bad", "from ptm_jax.corruptions import token"),
        ("ptm_jax.systems.bad", "from ptm_jax.train import loop"),
        ("ptm_jax.train.bad", "from ptm_jax.cli import main"),
        ("ptm_jax.train.bad", "from ptm_jax.bench import suite"),
        ("ptm_jax.train.bad", "import tests.core"),
        ("ptm_jax.cli.bad", "from configs import quickstart"),
        ("ptm_jax.core.bad", "import flax.linen as nn"),
        ("ptm_jax.systems.bad", "from flax import linen"),
        ("ptm_jax.train.bad", "import flax"),
        ("ptm_jax.nn.bad", "from flax import nnx"),
        ("ptm_jax.convert.bad", "import torch"),
        ("ptm_jax.data.bad", "try:\n    import tensorflow.io\nexcept ImportError:\n    pass"),
        ("ptm_jax.convert.bad", "class A:\n    import transformers"),
        ("ptm_jax.nn.utils", ""),
    ],
)
def test_the_law_can_be_broken(module, source):
    assert len(broken(source, module)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("ptm_jax.core.good", "import jax\nfrom ptm_jax.core import paths\nfrom . import types"),
        ("ptm_jax.encoders.good", "import flax.linen as nn\nfrom flax.core import FrozenDict\nfrom ..nn import blocks"),
        ("ptm_jax.cli.good", "import ptm_jax.train.loop\nimport ptm_jax"),
        ("ptm_jax.convert.good", "def pickle(path):\n    import torch"),
    ],
)
def test_the_law_lets_the_lawful_pass(module, source):
    assert not broken(source, module)


def test_relative_imports_of_a_package_start_at_itself():
    assert broken("from ..data import prepare", "ptm_jax.core", is_package=True)
    assert not broken("from . import types", "ptm_jax.core", is_package=True)


def test_importing_the_package_is_quick_and_light():
    code = f"import sys, ptm_jax; print(*({HEAVY!r} & set(sys.modules)))"
    seconds = []
    for _ in range(3):
        began = time.perf_counter()
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        seconds.append(time.perf_counter() - began)
        assert not done.stdout.strip()
    assert statistics.median(seconds) < 1.0
