"""`ptm show NAME --files`: each part stands in the file and line that the table names."""

import ast
import json
from pathlib import Path

import pytest

from ptm_jax import systems
from ptm_jax.cli.main import main
from ptm_jax.core import spec

ROOT = Path(__file__).resolve().parents[2]
SYSTEMS = ("bert_base", "luke_base", "electra_mini", "t5_base", "skipgram", "rntn_mini", "kglm")
LISTED = ("system", "golden text", "test", "size or support", "checkpoint")


@pytest.fixture
def files(capsys):
    def call(*words):
        status = main(["show", *words, "--files"])
        out, err = capsys.readouterr()
        assert status == 0, err
        return json.loads(out) if "--json" in words else out

    return call


def definitions(file):
    """{line: name} of the classes and functions of a file."""
    nodes = ast.walk(ast.parse((ROOT / file).read_text(encoding="utf8")))
    kinds = ast.ClassDef | ast.FunctionDef
    return {node.lineno: node.name for node in nodes if isinstance(node, kinds)}


@pytest.mark.parametrize("name", SYSTEMS)
def test_each_class_is_defined_where_it_is_said_to_stand(name, files):
    places = files(name, "--json")
    parts = [one for one in places if one["slot"] not in LISTED]
    for one in parts:
        assert definitions(one["file"])[one["line"]] == one["value"], one
    record = dict(spec.walk(systems.get(name)))
    assert all(type(record[one["slot"]]).__name__ == one["value"] for one in parts)
    shown = {one["value"] for one in parts}
    expected = {type(part) for path, part in record.items() if path}
    assert shown == {kind.__name__ for kind in expected if kind.__module__.startswith("ptm_jax.")}


@pytest.mark.parametrize("name", SYSTEMS)
def test_entry_golden_text_and_tests_name_the_system(name, files):
    places = [one for one in files(name, "--json") if one["slot"] in LISTED[:4]]
    assert [one["slot"] for one in places[:2]] == ["system", "golden text"]
    for one in places[2:]:
        text = (ROOT / one["file"]).read_text(encoding="utf8").splitlines()[one["line"] - 1]
        assert f'"{name}"' in text, one
    assert (ROOT / places[1]["file"]).name == f"{name}.txt"
    assert not name.endswith("_base") or any("sizes" in one["file"] for one in places[2:])


def test_the_checkpoint_family_is_the_file_that_reads_it(files):
    families = {name: files(name, "--json") for name in ("bert_base", "gpt2", "kglm")}
    shown = {
        name: [one["file"] for one in places if one["slot"] == "checkpoint"]
        for name, places in families.items()
    }
    folder = "ptm_jax/convert/families"
    assert shown == {"bert_base": [f"{folder}/bert.py"], "gpt2": [f"{folder}/gpt.py"], "kglm": []}


def test_the_table_and_what_has_no_files(files, capsys):
    lines = files("bert_base").splitlines()
    assert lines[0].split() == ["part", "class", "or", "name", "file"]
    assert any(line.split()[1:2] == ["TokenMasking"] for line in lines if "corruption" in line)
    assert main(["show", "bert_base", "--files", "--diff", "gpt"]) == 1
    assert "give one of them" in capsys.readouterr().err
