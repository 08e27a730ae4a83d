"""The facts of the README hold."""

import re
from pathlib import Path

from ptm_jax import systems
from ptm_jax.cli.main import COMMANDS
from ptm_jax.core.system import refusal

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf8")


def test_the_example_objective_is_the_file_that_is_tested():
    example = (ROOT / "tests" / "cli" / "example_objective.py").read_text(encoding="utf8").strip()
    assert f"```python\n{example}\n```" in README
    assert len(example.splitlines()) < 20


def test_every_command_is_in_the_table():
    assert set(re.findall(r"^\| `ptm (\w+)", README, re.M)) == set(COMMANDS)


def test_both_commands_are_there_and_make_knows_them():
    makefile = (ROOT / "Makefile").read_text(encoding="utf8")
    for target in ("quickstart", "test", "test-full"):
        assert f"make {target}" in README and f"\n{target}:" in makefile


def test_the_compositions_can_be_trained():
    names = re.findall(r'systems\.get\("(\w+\+\w+)"\)', README)
    assert len(names) >= 3
    for name in names:
        assert refusal(systems.get(name)) is None


def test_systems_that_the_readme_names_exist():
    for name in re.findall(r"\b(?:bert|roberta|gpt2?)_\w+", README):
        assert name in (*systems.names(), "bert_tiny_focal"), name
