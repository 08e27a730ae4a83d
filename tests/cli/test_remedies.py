"""A remedy names options that its command has, and that the user can change."""

import ast
import dataclasses
import importlib
import re
from pathlib import Path

import pytest

from ptm_jax.cli import main
from ptm_jax.cli.models import predict_files, predict_tables
from ptm_jax.cli.runs import own_table, tuning
from ptm_jax.core.errors import UserError
from ptm_jax.data.corpora import prepare
from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec

COMMANDS = {name: importlib.import_module(module) for name, (module, _) in main.COMMANDS.items()}
PARTS = {"predict": (predict_files, predict_tables), "train": (own_table, tuning)}
"""Other files of a command."""


def messages(module):
    """The texts of the errors that a file raises."""
    for node in ast.walk(ast.parse(Path(module.__file__).read_text())):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "UserError":
            parts = [part.value for part in ast.walk(node) if isinstance(part, ast.Constant)]
            yield re.sub("`[^`]*`", "", " ".join(part for part in parts if isinstance(part, str)))


@pytest.mark.parametrize("name", COMMANDS)
def test_errors_of_a_command_name_its_own_options(name):
    module = COMMANDS[name]
    if not hasattr(module, "Args"):
        pytest.skip("no options")
    known = {"--" + field.name.replace("_", "-") for field in dataclasses.fields(module.Args)}
    for message in [one for part in (module, *PARTS.get(name, ())) for one in messages(part)]:
        assert {*re.findall("--[a-z][a-z-]*[a-z]", message)} <= known, message


LACKING = {
    "a table, without a model": (("train", "--data", "TEXT"), "a model to fine-tune (--init)"),
    "a model, without a table": (("train", "--init", "MODEL"), "add a table of yours as --data"),
    "a task, without data": (
        ("train", "--init", "MODEL", "--task", "sst2"), "--task needs the task's data (--data)\n",
    ),
    "a column, without a model": (
        ("train", "--data", "TEXT", "--text-column", "a"), "needs the model (--init)\n",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LACKING)
def test_what_is_lacking_is_named_alone(name, text, tmp_path, one_line):
    words, message = LACKING[name]
    places = {"TEXT": str(text), "MODEL": "none"}
    words = [places.get(word, word) for word in words]
    assert message in one_line(*words, "--workdir", tmp_path / "run")


def test_a_corpus_is_refused_by_the_option_that_named_it(text, tmp_path, one_line):
    """The folder of a workdir's corpus is not of `--out`."""
    (tmp_path / "run" / "data").mkdir(parents=True)
    (tmp_path / "run" / "data" / "notes").touch()
    err = one_line("train", "bert_mini", "--data", text, "--workdir", tmp_path / "run")
    assert "choose another --workdir or delete it" in err and "--out" not in err
    with pytest.raises(UserError, match="choose another --out or delete it"):
        spec = TokenizerSpec(kind="wordpiece", vocab=200)
        prepare.prepare([str(text)], tmp_path / "run" / "data", tokenizer=spec)
