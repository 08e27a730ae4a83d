"""Every config is a run that can begin: it loads, nothing refuses it, and its notebook's commands
are understood."""

import ast
import re
import shlex
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest
import tyro

from ptm_jax import systems
from ptm_jax.cli import options, target
from ptm_jax.cli.runs import train
from ptm_jax.core.system import Experiment, System, refusal
from ptm_jax.mesh.rules import ACTIVATIONS, AXES, TABLES, as_axes

ROOT = Path(__file__).resolve().parents[1]
CONFIGS = sorted((ROOT / "configs").glob("*.py"))


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch):
    """Commands are given from there, and a config's folder leaves the search path again."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "path", [*sys.path])


def test_every_import_of_a_program_is_there():
    """Also of those inside functions, in configs and benchmarks that no test runs."""
    programs = [*(ROOT / "configs").rglob("*.py"), *(ROOT / "benchmarks").rglob("*.py")]
    imports = {
        (node.module, alias.name)
        for path in programs
        for node in ast.walk(ast.parse(path.read_text(encoding="utf8")))
        if isinstance(node, ast.ImportFrom) and node.module.startswith("ptm_jax")
        for alias in node.names
    }
    missing = [
        (module, name)
        for module, name in sorted(imports)
        if not find_spec(module)
        or not (hasattr(import_module(module), name) or find_spec(f"{module}.{name}"))
    ]
    assert not missing and len(imports) > 50


def notebook(path: Path) -> str:
    """The module's docstring."""
    return path.read_text(encoding="utf8").split('"""')[1]


def system_of(path: Path) -> System:
    value = target.load_file(str(path))
    return value.system if isinstance(value, Experiment) else value


def rows_in(text: str) -> set[int]:
    return {int(row) for row in re.findall(r"\bRow\s+(\d+)\.", text)}


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_a_config_loads_and_nothing_refuses_it(path):
    system = system_of(path)
    assert refusal(system) is None
    if named := rows_in(notebook(path)):
        assert named == set(system.rows)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_its_notebook_names_the_paper_systems_and_commands_that_are_understood(path):
    text = notebook(path)
    sizes = re.search(r"^Sizes: (.*?)(?=^[A-Z]\w+: |\Z)", text, re.M | re.S)
    named = re.findall(r"`(?:ptm train )?([a-z]\w*)`", sizes[1] if sizes else "")
    assert {*named} <= {*systems.names()}
    assert re.search(r"^Paper: [A-Z].*\b20[12]\d", text, re.M)
    commands = [
        shlex.split(line)[2:]
        for line in re.findall(r"^    (ptm train .+)$", text.replace("\\\n", ""), re.M)
    ]
    targets = []
    for words in commands:
        args = tyro.cli(train.Args, args=words)
        targets.append(args.target)
        target.resolve(args.target, options.pairs(args.set), experiment=True)
        axes = set(re.findall(r"(\w+)=\d+", args.mesh or ""))
        rules = TABLES[args.rules or "replicated"]
        assert (
            {axis for name, found in rules if name not in ACTIVATIONS for axis in as_axes(found)}
            <= axes
            <= set(AXES)
        )
    assert f"configs/{path.name}" in targets


def test_every_transformer_of_the_survey_has_a_config():
    catalogued = {
        row for name in systems.names() for row in systems.get(name).rows if 42 <= row <= 66
    }
    covered = {row for path in CONFIGS for row in rows_in(notebook(path))}
    assert catalogued == set(range(42, 67)) and catalogued <= covered
