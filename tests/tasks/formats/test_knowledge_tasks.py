"""Files of the knowledge tasks (row 246) in every published form, and their scores against
scikit-learn and by hand."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from sklearn.metrics import f1_score

from ptm_jax.core.errors import UserError
from ptm_jax.inference.text.classifying import Prediction
from ptm_jax.tasks.catalogue import catalogue
from ptm_jax.tasks.formats.taskdata import Remarks
from ptm_jax.tasks.kinds import classification, entity_typing
from ptm_jax.tasks.metrics import measures

ERNIE = {"text": "Ann met Bob.", "label": "NA", "ann": [["Q1", 0, 3, 0.5]]}
"""thunlp/ERNIE, data/tacred and data/fewrel: run_tacred.py reads these fields."""
WORDS = "c\tN\t2-0\tHe read a book\tbook it\nrun\tV\t1-1\tI run\tWe ran\n"
"""pilehvar/WiC: word, part of speech, places of the word, two texts."""
XML = """<?xml version="1.0" encoding="UTF-8" ?>
<corpus lang="en" source="s"><text id="d0"><sentence id="d0.s0">
<wf lemma="the" pos="DET">The</wf><instance id="d0.s0.t0" lemma="hat" pos="NOUN">hat</instance>
<wf lemma="be" pos="VERB">is</wf><instance id="d0.s0.t1" lemma="new" pos="ADJ">new</instance>
<instance id="d0.s0.t2" lemma="xyzzy" pos="NOUN">xyzzy</instance>
</sentence></text></corpus>
"""
"""Raganato et al. 2017, NAME.data.xml."""
INDEX = (
    "hat%1:06:01:: 00000002 2 0\nhat%1:06:00:: 00000001 1 4\nnew%5:00:00:recent:00 00000003 1 9\n"
)
NOUNS = "  1 licence\n" + "".join(
    f"0000000{n} 06 n 01 hat 0 000 | {gloss}\n"
    for n, gloss in ((1, 'worn on the head; "he had a hat"'), (2, "a role"))
)
ADJECTIVES = "00000003 00 s 01 new 0 000 | not old\n"
KEYS = (
    "d0.s0.t0 hat%1:06:01::\nd0.s0.t1 new%5:00:00:recent:00 new%3:00:00::\nd0.s0.t2 "
    "xyzzy%1:06:00::\n"
)


def read(task, path, **more):
    return list(catalogue.get(task).examples.read(path, **more))


@pytest.mark.parametrize("task", ["tacred", "fewrel"])
def test_pairs_of_ernie(tmp_path, task):
    file = tmp_path / "dev.json"
    file.write_text(json.dumps([{**ERNIE, "ents": [["Bob", 8, 11, 1.0], ["Ann", 1, 3, 1.0]]}]))
    (found,) = read(task, file)
    assert (found.first, found.label) == (
        "[E2] Ann [/E2] met [E1] Bob [/E1].",
        "NA",
    ) and found.place.endswith("entry 1")
    file.write_text(json.dumps([{**ERNIE, "ents": [["Bob", 8, 13], ["Ann", 0, 3]]}]))
    with pytest.raises(
        UserError, match="dev.json: entry 1: the mention from 8 to 13 lies outside the 12"
    ):
        read(task, file)


def test_open_entity_of_the_authors_has_finer_types(tmp_path):
    line = {
        "left_context_token": [],
        "mention_span": "He",
        "right_context_token": ["left"],
        "y_str": ["person", "leader"],
    }
    (tmp_path / "dev.json").write_text(json.dumps(line) + "\n")
    remarks = Remarks()
    (found,) = read("open_entity", tmp_path / "dev.json", remarks=remarks)
    assert (found.text, found.labels) == ("[E1] He [/E1] left", {"person"}) and sum(
        remarks.values()
    ) == 1
    assert read("figer", tmp_path / "dev.json")[0].labels == {"person", "leader"}


def test_figer_has_a_type_at_least_and_is_compared_by_the_exact_ones():
    task = catalogue.get("figer")
    assert (task.examples.least, task.batch, task.length, task.metrics[0]) == (
        1,
        2048,
        256,
        "strict",
    )
    scores = np.array([[-2.0, -1.0, -3.0], [0.5, -1.0, 0.1]])
    for least, wanted in ((1, [{"b"}, {"a", "c"}]), (0, [set(), {"a", "c"}])):
        spec = SimpleNamespace(labels=("a", "b", "c"), least=least)
        assert [entity_typing.chosen(spec, row) for row in scores] == wanted
    gold = [SimpleNamespace(labels=frozenset(some)) for some in ("b", "a")]
    assert entity_typing.strict(gold, [frozenset("b"), frozenset("ac")]) == {"exact": 0.5}


def test_the_original_files_of_wic(tmp_path):
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "train.data.txt").write_text(WORDS)
    unknown = read("wic", tmp_path / "train" / "train.data.txt", labels=False)
    (tmp_path / "train" / "train.gold.txt").write_text("T\nF\n")
    for path in (tmp_path / "train", tmp_path / "train" / "train.data.txt"):
        found = read("wic", path)
        assert [one[:3] for one in found] == [
            ("He read * a * book", "* book * it", "true"),
            ("I * run *", "We * ran *", "false"),
        ]
        assert [one.index for one in found] == [0, 1] and found[1].place.endswith(
            "train.data.txt:2"
        )
    assert [one.label for one in unknown] == [None, None]
    (tmp_path / "train" / "train.gold.txt").write_text("T\n")
    with pytest.raises(UserError, match="2 lines and .*gold.txt has 1"):
        read("wic", tmp_path / "train")
    (tmp_path / "bad.data.txt").write_text("run\tV\t1-9\tI run\tWe ran\n")
    with pytest.raises(UserError, match="bad.data.txt:1: the word from .* outside sentence2"):
        read("wic", tmp_path / "bad.data.txt", labels=False)


def test_senses_of_the_framework_with_wordnet(tmp_path):
    files = {"semcor.data.xml": XML, "semcor.gold.key.txt": KEYS, "index.sense": INDEX}
    for name, text in {**files, "data.noun": NOUNS, "data.adj": ADJECTIVES}.items():
        (tmp_path / name).write_text(text)
    found = read("wsd", tmp_path / "semcor.data.xml")
    assert [(one.first, one.second, one.label) for one in found] == [
        ("The [E1] hat [/E1] is new xyzzy", "hat: worn on the head", "0"),
        ("The [E1] hat [/E1] is new xyzzy", "hat: a role", "1"),
        ("The hat is [E1] new [/E1] xyzzy", "new: not old", "1"),
        ("The hat is new [E1] xyzzy [/E1]", "xyzzy:", "0"),
    ]
    guesses = [Prediction("", {"1": score}) for score in (0.2, 0.7, 0.1, 0.9)]
    assert classification.senses(found, guesses)["f1"] == pytest.approx(
        2 / 3
    )  # a word without a sense is wrong
    lines = list(classification.lines(catalogue.get("wsd"), found, guesses))
    assert lines == ["d0.s0.t0 hat%1:06:01::", "d0.s0.t1 new%5:00:00:recent:00"]
    (tmp_path / "semcor.data.xml").write_text(XML[:200])
    with pytest.raises(UserError, match="semcor.data.xml:3 is damaged or cut off XML"):
        read("wsd", tmp_path / "semcor.data.xml")


def test_tacred_is_scikit_learns_micro_f1_of_the_relations():
    draw = np.random.default_rng(0)
    for none in ("no_relation", "NA"):
        gold, found = (
            draw.choice([none, "a", "b", "c"], 200, p=(0.6, 0.2, 0.1, 0.1)) for _ in range(2)
        )

        def named(labels):
            return [SimpleNamespace(label=label) for label in labels]

        wanted = f1_score(gold, found, labels=["a", "b", "c"], average="micro")
        assert measures.tacred(named(gold), named(found))["micro_f1"] == pytest.approx(wanted)
