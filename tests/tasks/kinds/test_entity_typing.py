"""Types of mentions: the formats of Open Entity and FIGER, the measures by hand, TACRED's score."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from ptm_jax.core.errors import UserError
from ptm_jax.tasks.catalogue import catalogue
from ptm_jax.tasks.kinds import entity_typing
from ptm_jax.tasks.metrics import measures


def test_the_two_published_formats(tmp_path):
    ernie = {"sent": "She saw Paris.", "start": 8, "end": 13, "labels": ["place", "location"], "ents": []}
    authors = {
        "left_context_token": ["She", "saw"],
        "mention_span": "Paris",
        "right_context_token": ["."],
        "y_str": ["place"],
    }
    spec = catalogue.get("open_entity").examples
    for name, text in (("test.json", json.dumps([ernie])), ("dev.json", json.dumps(authors) + "\n")):
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
    assert np.array_equal(
        found.encode(SimpleNamespace(encode_batch=lambda texts: [np.arange(3)]), [first])[0]["label"], [1, 1]
    )


def test_measures_by_hand():
    """Two of three types found are right, of four; the second mention is all right, the third has none."""
    gold = [{"a", "b", "c"}, {"a"}, set()]
    found = [frozenset({"a", "d"}), frozenset({"a"}), frozenset()]
    got = entity_typing.typing([SimpleNamespace(labels=frozenset(g)) for g in gold], found)
    precision, recall = 2 / 3, 2 / 4
    assert got["precision"] == pytest.approx(precision) and got["recall"] == pytest.approx(recall)
    assert got["micro_f1"] == pytest.approx(2 * precision * recall / (precision + recall))
    macro = (1 / 2 + 1) / 2, (1 / 3 + 1) / 2
    assert got["macro_f1"] == pytest.approx(2 * macro[0] * macro[1] / sum(macro)) and got["exact"] == pytest.approx(2 / 3)


def test_the_score_of_tacred_leaves_no_relation_out():
    gold = ["per:title", "no_relation", "per:title", "org:founded", "no_relation"]
    found = ["per:title", "per:title", "no_relation", "per:title", "no_relation"]
    named = lambda labels: [SimpleNamespace(label=label) for label in labels]
    got = measures.tacred(named(gold), named(found))
    assert got == {"micro_f1": pytest.approx(1 / 3), "precision": pytest.approx(1 / 3), "recall": pytest.approx(1 / 3)}
