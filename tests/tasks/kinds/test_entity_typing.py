"""Types of mentions: the formats of Open Entity and FIGER, the measures by hand, TACRED's score."""

import dataclasses
import json
from types import SimpleNamespace

import numpy as np
import pytest

from ptm_jax import systems
from ptm_jax.core.errors import UserError
from ptm_jax.tasks.catalogue import catalogue
from ptm_jax.tasks.formats.labelled import Example
from ptm_jax.tasks.formats.marked import Mention, framed, placed
from ptm_jax.tasks.kinds import entity_typing
from ptm_jax.tasks.kinds.base import kind_of
from ptm_jax.tasks.metrics import measures
from ptm_jax.tuning import finetuning
from support.marking import marked, tokenizer


def test_places_of_marked_entities_are_those_of_their_tokens():
    text = "She saw [E2] new Paris [/E2], and [E1] Bob [/E1] left."
    own = tokenizer(text)
    record = placed(own, [text], 2)[0]
    ids, _ = own.frame(record["first"])
    assert np.array_equal(record["first"], own.encode_batch([text])[0])
    for number in (1, 2):
        places = framed(own, record["mention_places"], 99)[number - 1]
        assert places[places >= 0].tolist() == marked(own, ids, number)
        cut = framed(own, record["mention_places"], 20)[number - 1]
        assert np.array_equal(cut, np.where(places <= 20, places, -1))


def test_the_marks_of_ernie_are_pieces_of_berts_vocabulary():
    """The texts of thunlp/ERNIE: run_typing.py has a Chinese full stop for [ENT], run_fewrel.py #
    for [HD], $ for [TL]."""
    typed = dataclasses.replace(catalogue.get("open_entity").examples, marks="ernie")
    pairs = dataclasses.replace(catalogue.get("tacred").examples, labels=("a",), marks="ernie")
    cases = {
        typed: (
            Mention("She saw [E1] new Paris [/E1].", frozenset(), ""),
            "She saw \u3002 new Paris \u3002.",
            ["\u3002 new Paris \u3002"],
        ),
        pairs: (
            Example("[E2] Ann [/E2] met [E1] Bob # [/E1] $.", None, "a", ""),
            "$ Ann $ met # Bob # # $.",
            ["# Bob # #", "$ Ann $"],
        ),
    }
    for spec, (example, text, inside) in cases.items():
        assert next(iter(spec.texts(example))) == text
        own = tokenizer(text)
        (record,) = spec.encode(own, [example])
        assert np.array_equal(record["first"], own.encode_batch([text])[0])
        for places, expected in zip(record["mention_places"], inside, strict=True):
            assert own.decode(record["first"][places[places >= 0]]).strip() == expected
    with pytest.raises(
        UserError, match="unknown marks 'erny'; there are: entities, ernie. Did you mean"
    ):
        dataclasses.replace(typed, marks="erny")


def test_an_encoder_beside_entities_takes_the_heads_that_read_them():
    """LUKE reads entities at the marks of tacred and open_entity, and words elsewhere; BERT reads
    words."""
    luke, bert = (systems.get(name) for name in ("luke_mini", "bert_mini"))
    heads = {
        "open_entity": ("typed", "classify"),
        "tacred": ("related", "classify"),
        "mr": ("classify", "classify"),
    }
    for name, expected in heads.items():
        examples = catalogue.get(name).examples
        examples = (
            dataclasses.replace(examples, labels=("a", "b"))
            if examples.labels == "found"
            else examples
        )
        for system, head in zip((luke, bert), expected, strict=True):
            made = finetuning.headed(system, examples)
            kind = kind_of(examples, made.towers["main"].encoder)
            assert [*made.towers["main"].heads] == [head] == [kind.head] and kind.objective(
                examples
            ).head == head


@pytest.mark.status("open_entity", "built")
@pytest.mark.status("figer", "built")
def test_the_two_published_formats(tmp_path):
    ernie = {
        "sent": "She saw Paris.",
        "start": 8,
        "end": 13,
        "labels": ["place", "location"],
        "ents": [],
    }
    authors = {
        "left_context_token": ["She", "saw"],
        "mention_span": "Paris",
        "right_context_token": ["."],
        "y_str": ["place"],
    }
    spec = catalogue.get("open_entity").examples
    for name, text in (
        ("test.json", json.dumps([ernie])),
        ("dev.json", json.dumps(authors) + "\n"),
    ):
        (tmp_path / name).write_text(text)
    first, second = (next(iter(spec.read(tmp_path / name))) for name in ("test.json", "dev.json"))
    assert first.text == "She saw [E1] Paris [/E1]." and first.labels == {"place", "location"}
    assert second.text == "She saw [E1] Paris [/E1] ." and second.labels == {"place"}
    (tmp_path / "bad.json").write_text(json.dumps([{**ernie, "end": 99}]))
    with pytest.raises(UserError, match="lies outside the 14 characters"):
        list(spec.read(tmp_path / "bad.json"))
    (tmp_path / "bad.json").write_text(json.dumps([{**ernie, "labels": ["plaice"]}]))
    with pytest.raises(UserError, match="'plaice' is unknown. Did you mean"):
        list(spec.read(tmp_path / "bad.json"))
    found = catalogue.get("figer").examples.settled([str(tmp_path / "test.json")] * 2)
    assert found.labels == ("location", "place")
    record = found.encode(tokenizer(first.text), [first])[0]
    assert np.array_equal(record["label"], [1, 1]) and record["mention_places"].shape == (1, 30)


def test_measures_by_hand():
    """Two of three types found are right, of four; the second mention is all right, the third has
    none."""
    gold = [{"a", "b", "c"}, {"a"}, set()]
    found = [frozenset({"a", "d"}), frozenset({"a"}), frozenset()]
    got = entity_typing.typing([SimpleNamespace(labels=frozenset(g)) for g in gold], found)
    precision, recall = 2 / 3, 2 / 4
    assert got["precision"] == pytest.approx(precision) and got["recall"] == pytest.approx(recall)
    assert got["micro_f1"] == pytest.approx(2 * precision * recall / (precision + recall))
    macro = (1 / 2 + 1) / 2, (1 / 3 + 1) / 2
    assert got["macro_f1"] == pytest.approx(2 * macro[0] * macro[1] / sum(macro)) and got[
        "exact"
    ] == pytest.approx(2 / 3)


def test_the_score_of_tacred_leaves_no_relation_out():
    gold = ["per:title", "no_relation", "per:title", "org:founded", "no_relation"]
    found = ["per:title", "per:title", "no_relation", "per:title", "no_relation"]

    def named(labels):
        return [SimpleNamespace(label=label) for label in labels]

    got = measures.tacred(named(gold), named(found))
    assert got == {
        "micro_f1": pytest.approx(1 / 3),
        "precision": pytest.approx(1 / 3),
        "recall": pytest.approx(1 / 3),
    }
