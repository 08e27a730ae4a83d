"""`ptm evaluate --task cluster`: the measure, columns, and wrong tables."""

import types

import numpy as np
import pytest

from ptm_jax.core.errors import UserError
from ptm_jax.runs.evaluations import Request
from ptm_jax.tasks import clustering

NAMES = "red", "green", "blue"


class Corners:
    """A model whose vector of a text is its colour's corner, and a little of its number."""

    system = types.SimpleNamespace(name="corners")

    def encode(self, texts, **options):
        words = [text.split() for text in texts]
        spread = np.random.default_rng(0).normal(size=(len(texts), 3)) / 20
        return np.eye(3)[[NAMES.index(colour) for colour, _ in words]] + spread


def table(path, column="label"):
    rows = [f"{colour} {n}\t{colour}" for n in range(30) for colour in NAMES]
    path.write_text("\n".join([f"text\t{column}", *rows]) + "\n")
    return str(path)


def test_clusters_of_their_labels_have_the_measure_1(tmp_path, monkeypatch):
    monkeypatch.setattr(clustering, "load", lambda path: Corners())
    monkeypatch.setattr(clustering, "has_encoder", lambda model: True)
    path = table(tmp_path / "a.tsv", "colour")
    request = Request(task="cluster", model=str(tmp_path), data=(path,), label_column=("colour",))
    document = clustering.report(request).document
    assert document["metrics"]["v_measure"] == pytest.approx(1.0) and document["clusters"] == 3


def test_the_measure_falls_where_labels_are_of_nothing():
    texts = [f"{colour} {n}" for n in range(30) for colour in NAMES]
    labels = np.random.default_rng(1).permutation([text.split()[0] for text in texts]).tolist()
    figures = clustering.measured(Corners(), texts, labels)
    homogeneity, completeness = figures["homogeneity"], figures["completeness"]
    mean = 2 * homogeneity * completeness / (homogeneity + completeness)
    assert figures["v_measure"] == pytest.approx(mean) and figures["v_measure"] < 0.2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("text\tlabel\na\tx\nb\t\n", "a.tsv:3: the column label is empty"),
        ("text\tlabel\na\tx\nb\tx\n", "texts of one label"),
        ("words\tlabel\na\tx\n", "has no field text"),
    ],
)
def test_a_wrong_table_is_one_line(text, message, tmp_path):
    (tmp_path / "a.tsv").write_text(text)
    with pytest.raises(UserError, match=message) as caught:
        clustering.report(Request(task="cluster", model="m", data=(str(tmp_path / "a.tsv"),)))
    assert "\n" not in str(caught.value)
