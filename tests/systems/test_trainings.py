"""The ledger of trainings: what a hash covers, what is due and overdue."""

import ast
import json
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from ptm_jax import systems
from ptm_jax.core import spec
from ptm_jax.systems.survey import rows as survey
from ptm_jax.systems.survey import trainings
from support import rewriting

BERT = systems.get("bert_mini")


def entries(monkeypatch, **hashes):
    """A ledger in which trainings passed on days 1, 2, ..."""
    ledger = {
        name: {"hash": text, "date": f"2026-01-{day:02}", "commit": "0000000", "seconds": 1.0}
        for day, (name, text) in enumerate(hashes.items(), 1)
    }
    monkeypatch.setattr(trainings, "recorded", lambda: ledger)


def code(text):
    return [*trainings._code(ast.parse(text))]


def test_layout_comments_and_docstrings_are_no_code():
    one = code('"""One."""\n\ndef f(a, b=1):\n    """Two."""\n    return a + b  # three\n')
    assert one == code("def f(\n    a,\n    b=1,\n):\n    return (a + b)\n")
    assert one != code("def f(a, b=1):\n    return a - b\n")
    assert one != code("def f(a, b=2):\n    return a + b\n")
    assert code("f(a, [])") != code("f(a)"), "an empty list is a value"


def test_a_record_reaches_what_its_classes_import_and_no_more():
    reached = trainings.reached(trainings._modules(BERT))
    assert reached >= {
        "ptm_jax.encoders.transformer.transformer",
        "ptm_jax.nn.attention.multihead",
        "ptm_jax.kernels.reference",
        "ptm_jax.core.types",
    }
    rooms = {name.split(".")[1] for name in reached if "." in name}
    assert not rooms & {"cli", "tasks", "inference", "convert", "bench"}
    glove = trainings.reached(trainings._modules(systems.get("glove_mini")))
    assert "ptm_jax.nn.attention.multihead" not in glove


def test_the_hash_changes_with_the_record_and_with_each_source(monkeypatch):
    before = trainings.fingerprint(BERT)
    assert before == trainings.fingerprint(BERT)
    assert before != trainings.fingerprint(spec.override(BERT, {"recipe.lr": "0.5"}))
    digest = trainings._digest
    for module in ("ptm_jax.nn.attention.multihead", "ptm_jax.objectives.text.language"):
        monkeypatch.setattr(
            trainings, "_digest", lambda name, at=module: "x" if name == at else digest(name)
        )
        assert trainings.fingerprint(BERT) != before
    monkeypatch.setattr(trainings, "_digest", lambda name: "x" if "glove" in name else digest(name))
    assert trainings.fingerprint(BERT) == before


def test_what_is_due_comes_in_the_order_of_its_last_pass(monkeypatch):
    names = ("gpt_mini", "bert_mini", "glove_mini", "t5_mini")
    records = {name: systems.get(name) for name in names}
    done = trainings.fingerprint(records["bert_mini"])
    entries(monkeypatch, glove_mini="old", bert_mini=done, gpt_mini="old")
    assert trainings.due(records) == ["t5_mini", "glove_mini", "gpt_mini"]


@pytest.mark.parametrize(
    "text, commits, late",
    [("old", 501, True), ("", 501, True), ("old", 500, False), ("old", None, False)],
)
def test_overdue(monkeypatch, text, commits, late):
    entries(monkeypatch, bert_mini=text)
    monkeypatch.setattr(trainings, "_commits_since", lambda commit: commits)
    assert trainings.overdue(BERT) == late
    entries(monkeypatch, bert_mini=trainings.fingerprint(BERT))
    assert not trainings.overdue(BERT)
    entries(monkeypatch)
    assert not trainings.overdue(BERT)


def test_commits_are_counted_where_there_is_a_checkout(monkeypatch, tmp_path):
    monkeypatch.setattr(trainings, "PACKAGE", tmp_path / "ptm_jax")
    assert trainings._commits_since("HEAD") is None


def test_passes_are_merged_and_the_others_stay():
    text = '{"a": {"hash": "1"}, "b": {"hash": "2"}}'
    merged = trainings.merged(text, {"b": {"hash": "3"}})
    assert json.loads(merged) == {"a": {"hash": "1"}, "b": {"hash": "3"}}
    assert json.loads(trainings.merged("", {"b": {"hash": "3"}})) == {"b": {"hash": "3"}}


def test_each_word_of_a_training_has_an_entry():
    words = {name for name, earned in survey.status().items() if "trains" in earned}
    assert words <= {*trainings.recorded()} <= {*systems.names(), "bert_pairs"}


def test_writers_of_one_file_lose_nothing(tmp_path):
    file = tmp_path / "lines"

    def add(number):
        rewriting.rewrite(file, lambda text: (time.sleep(0.01), f"{text}{number}\n")[1])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(add, range(8)))
    assert sorted(file.read_text().split()) == [*"01234567"] and [*tmp_path.iterdir()] == [file]
