"""Commands of a table: run once, recorded, gone on with; their figures beside the words that gave
them."""

import importlib.util
import json
import subprocess
import types
from pathlib import Path

import pytest

FILE = Path(__file__).parents[2] / "configs" / "compare" / "commands.py"
commands = importlib.util.module_from_spec(
    spec := importlib.util.spec_from_file_location("commands", FILE)
)
spec.loader.exec_module(commands)


@pytest.fixture
def asked(monkeypatch):
    """The commands that were run; a command whose words end with 'bad' fails."""
    found = []

    def run(command, **options):
        found.append(command[3:] if "-m" in command else command[1:])
        return types.SimpleNamespace(
            returncode=int("bad" in command), stdout=json.dumps({"score": len(found)})
        )

    monkeypatch.setattr(subprocess, "run", run)
    return found


def test_what_is_missing_is_run_and_kept(asked, tmp_path, capsys):
    tables = []
    words = {"a": ["train", "a"], "b": ["train", "b"]}
    given = {
        "facts": lambda name, found: {"name": name, **found},
        "write": lambda results: tables.append(list(results)),
    }

    def call(*only):
        return commands.recorded(
            "task", words, only, tmp_path / "runs", words=words.__getitem__, **given
        )

    assert call("a") == {
        "a": {"before": [], "words": ["train", "a"], "minutes": 0.0, "name": "a", "score": 1}
    }
    assert list(call()) == ["a", "b"] and asked == [
        ["train", "a", "--json"],
        ["train", "b", "--json"],
    ]
    assert json.loads((tmp_path / "runs" / "results.json").read_text())["b"]["score"] == 2
    words["a"] = ["train", "a", "--epochs", "2"]
    assert call()["a"]["score"] == 3 and tables[0] == ["a"] and tables[-1] == ["a", "b"]
    assert "ptm train a --epochs 2" in capsys.readouterr().err
    words["b"] = ["train", "bad"]
    with pytest.raises(SystemExit):
        call()
    with pytest.raises(SystemExit, match="unknown task 'c'; there are: a, b"):
        call("c")


def test_what_comes_before_is_run_before(asked, tmp_path):
    before = {"a": [["ptm", "train", "first"], ["python", "made.py"]], "b": [["python", "bad"]]}
    words = {"a": ["train", "a"], "b": ["train", "b"]}
    given = {
        "facts": lambda name, found: found,
        "write": lambda results: None,
        "before": before.__getitem__,
    }

    def call(*only):
        return commands.recorded(
            "way", words, only, tmp_path / "runs", words=words.__getitem__, **given
        )

    assert call("a")["a"] == {
        "before": before["a"],
        "words": ["train", "a"],
        "minutes": 0.0,
        "score": 3,
    }
    assert asked == [["train", "first"], ["made.py"], ["train", "a", "--json"]]
    assert call("a") and len(asked) == 3
    with pytest.raises(SystemExit):
        call("b")
    assert asked[-1] == ["bad"]
