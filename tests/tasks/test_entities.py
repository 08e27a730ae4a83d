"""Entities: by hand, and against seqeval on random tags in every scheme."""

import random
import warnings

import pytest

from ptm_jax.core.errors import UserError
from ptm_jax.inference.text.tags import SCHEMES, entities
from ptm_jax.tasks.metrics.entities import entity_scores, surface_scores


@pytest.mark.parametrize(
    ("scheme", "tags", "wanted"),
    [
        ("lenient", "B-P I-P O I-L I-P", [("P", 0, 2), ("L", 3, 4), ("P", 4, 5)]),
        ("lenient", "B-P E-P S-L O", [("P", 0, 2), ("L", 2, 3)]),
        ("lenient", "B I O", [("_", 0, 2)]),
        ("IOB2", "B-P I-P O I-L I-P", [("P", 0, 2)]),
        ("IOB2", "B-P I-L B-P B-P", [("P", 0, 1), ("P", 2, 3), ("P", 3, 4)]),
        ("IOB1", "I-P I-P B-P O I-L", [("P", 0, 2), ("P", 2, 3), ("L", 4, 5)]),
        ("IOBES", "B-P I-P E-P S-L B-P O", [("P", 0, 3), ("L", 3, 4)]),
        ("BILOU", "B-P I-P L-P U-L B-P O", [("P", 0, 3), ("L", 3, 4)]),
        ("IOE2", "I-P E-P E-L O I-P", [("P", 0, 2), ("L", 2, 3)]),
        ("lenient", "", []),
    ],
)
def test_by_hand(scheme, tags, wanted):
    assert entities(tags.split(), scheme) == wanted


def test_scores_and_surfaces():
    gold, predicted = [["B-P", "I-P", "O"], ["B-P", "O"]], [["B-P", "O", "O"], ["B-P", "O"]]
    found = entity_scores(gold, predicted)
    assert found == {"f1": 0.5, "precision": 0.5, "recall": 0.5}
    words = [["a", "b", "c"], ["a", "d"]]
    assert surface_scores(words, gold, predicted) == {
        "surface_f1": pytest.approx(2 / 3)
    }  # {ab, a} and {a}
    assert entity_scores([["O"]], [["O"]])["f1"] == 0.0
    with pytest.raises(UserError, match="unknown scheme 'IOB'.*Did you mean 'IOB"):
        entities(["O"], "IOB")


@pytest.mark.full
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.status("Named entities by first piece", "matches")
def test_against_seqeval(scheme):
    seqeval = pytest.importorskip("seqeval.metrics")
    from seqeval import scheme as schemes

    draw = random.Random(7)
    prefixes = {
        "lenient": "BIES",
        "IOB1": "BI",
        "IOB2": "BI",
        "IOE1": "IE",
        "IOE2": "IE",
        "IOBES": "BIES",
        "BILOU": "BILU",
    }
    kinds = [f"{prefix}-{kind}" for prefix in prefixes[scheme] for kind in ("PER", "LOC")] + [
        "O"
    ] * 2
    strict = {} if scheme == "lenient" else {"mode": "strict", "scheme": getattr(schemes, scheme)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # nothing found in a sample of two sentences
        for _ in range(150):
            sizes = [draw.randint(1, 9) for _ in range(draw.randint(1, 3))]
            gold, predicted = (
                [[draw.choice(kinds) for _ in range(n)] for n in sizes] for _ in range(2)
            )
            found = entity_scores(gold, predicted, scheme)
            for name, score in (
                ("f1", "f1_score"),
                ("precision", "precision_score"),
                ("recall", "recall_score"),
            ):
                assert found[name] == pytest.approx(
                    getattr(seqeval, score)(gold, predicted, **strict)
                ), (gold, predicted)
