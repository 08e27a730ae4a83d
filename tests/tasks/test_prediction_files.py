"""A file of predictions by its ending: rows with columns in .csv, .tsv, .jsonl and .json, lines in
any other file; and figures as their library prints them."""

import csv
import json
from pathlib import Path

import pytest

from ptm_jax.core.errors import UserError
from ptm_jax.data.trees.treebanks import Tree
from ptm_jax.inference.text.classifying import Prediction
from ptm_jax.runs.evaluations import Request
from ptm_jax.tasks import evaluating
from ptm_jax.tasks.catalogue import catalogue
from ptm_jax.tasks.formats.choices import Question
from ptm_jax.tasks.formats.conversations import Turn
from ptm_jax.tasks.formats.hops import Hop
from ptm_jax.tasks.formats.marked import Mention
from ptm_jax.tasks.formats.questions import Asked
from ptm_jax.tasks.formats.targets import Written
from ptm_jax.tasks.kinds.base import _KINDS, kind_of
from ptm_jax.tasks.kinds.conversation import Reply
from ptm_jax.tasks.kinds.multihop import HopAnswer
from ptm_jax.training.logs import results
from ptm_jax.training.logs.figures import metric
from ptm_jax.tuning import scoring

SENTENCE = 'Ein "Hund", der\tläuft.'
CHOICE = Prediction("1", {"0": 0.25, "1": 0.75})
NO_ANSWER = Prediction("unanswerable", {"answerable": 0.25, "unanswerable": 0.75})
CASES = {
    "translation": (Written(SENTENCE, "A dog", "x:1", 1), "The dog", ("A dog", "The dog", "")),
    "xsum": (Written(SENTENCE, None, "x:1", 1), "Dogs run", ("", "Dogs run", "")),
    "race": (Question(SENTENCE, ("a", "b"), "0", "x:1", 1), CHOICE, ("0", "1", "0.75")),
    "open_entity": (
        Mention(SENTENCE, frozenset({"time", "place"}), "x:1", 1), frozenset({"group"}),
        ("place, time", "group", ""),
    ),
    "coqa": (
        Turn(SENTENCE, "It runs.", (), "x:1", ("story", 1), gold=("yes", "it does")),
        Reply("no", "no", {}), ("yes", "no", ""),
    ),
    "hotpot": (
        Hop(SENTENCE, (), "Rome", "x:1", "id"), HopAnswer("Oslo", "span", ()),
        ("Rome", "Oslo", ""),
    ),
    "squad2_sketchy": (
        Asked(SENTENCE, "It runs.", (("It", 0),), "x:1", "id"), NO_ANSWER,
        ("answerable", "unanswerable", "0.75"),
    ),
    "parsing": (
        Tree(("Dogs", "run"), (1, -1), ("nsubj", "root"), "x:1"), [(2, "obj"), (0, "root")],
        ("2:nsubj 0:root", "2:obj 0:root", ""),
    ),
}  # fmt: skip
"""{task: (an example, its prediction, (gold, prediction, score) of its row)}."""


@pytest.mark.parametrize("name", CASES)
def test_a_table_has_columns_and_a_text_has_lines(name, tmp_path):
    example, prediction, expected = CASES[name]
    task = catalogue.get(name)
    arguments = (task, [example], [prediction])
    for ending, delimiter in ((".csv", ","), (".tsv", "\t")):
        evaluating.write(tmp_path / f"p{ending}", *arguments)
        with (tmp_path / f"p{ending}").open(newline="", encoding="utf8") as file:
            (row,) = csv.DictReader(file, delimiter=delimiter)
        text = "Dogs run" if name == "parsing" else SENTENCE
        assert row["text"] == text and ("score" in row) == bool(expected[2])
        assert (row["gold"], row["prediction"], row.get("score", "")) == expected
    if Path(task.file).suffix != ".json":
        evaluating.write(tmp_path / "p.json", *arguments)
        assert json.loads((tmp_path / "p.json").read_text())[0]["text"] == text
    evaluating.write(tmp_path / "p.jsonl", *arguments)
    (fields,) = map(json.loads, (tmp_path / "p.jsonl").read_text().splitlines())
    assert str(fields["prediction"]) == expected[1] and fields.get("gold", "") == expected[0]
    evaluating.write(tmp_path / "p.txt", *arguments)
    lines = (tmp_path / "p.txt").read_text().splitlines()
    assert lines == "\n".join(evaluating.lines(*arguments)).split("\n")


def test_a_kind_without_rows_refuses_a_table_before_the_model_is_read(tmp_path):
    kind_of(catalogue.get("translation").examples)  # registers all
    bare = {cls.__name__ for cls, kind in _KINDS.items() if kind.cells is None}
    assert bare & {"RankedTexts", "Candidates", "HopDocuments"} == bare - {"Essays"}
    request = Request(
        task="rank", model="nowhere", data=("lists.jsonl",), predictions=str(tmp_path / "p.csv")
    )
    with pytest.raises(UserError, match=r"predictions of rank are no rows.*ending \.jsonl"):
        scoring.scored(request)


def test_figures_are_printed_as_their_library_prints_them():
    assert [metric(name, 0.2764) for name in ("bleu", "multi30k/chrf", "f1", "heldout/nll")] == [
        "27.6", "27.6", "0.2764", "0.2764",
    ]  # fmt: skip
    assert metric("bleu", None) == ""


def test_texts_without_classes_have_no_frequencies_to_compare_with():
    assert results.compared_with(float("nan"), "nll") is None
    assert results.compared_with(1.5, "nll") == "nll"
