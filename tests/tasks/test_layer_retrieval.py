"""Retrieval by the vectors of each layer, against numpy."""

import dataclasses

import numpy as np
import pytest

from ptm_jax.core.errors import UserError
from ptm_jax.runs.evaluations import Request
from ptm_jax.tasks import layer_retrieval
from support import tiny_models

PAIRS = list(zip(tiny_models.TEXTS, [*tiny_models.TEXTS[3:], *tiny_models.TEXTS[:3]], strict=True))


def by_hand(model, source, target):
    """The mean over all tokens of a row, the nearest by the cosine, a row at a time."""
    sides = []
    for texts in (source, target):
        vectors = []
        for text in texts:
            ids = model._tokenizer().encode(text)
            vectors.append(np.asarray(model(np.array([ids]), layers=True).layers)[:, 0].mean(1))
        vectors = np.stack(vectors, 1)
        sides.append(vectors / np.linalg.norm(vectors, axis=-1, keepdims=True))
    scores = np.einsum("nad,nbd->nab", *sides)
    own = np.arange(len(source))
    return np.stack([(scores.argmax(2) == own).mean(1), (scores.argmax(1) == own).mean(1)], 1)


@pytest.mark.full
@pytest.mark.status("ptm evaluate --task layer_retrieval", "built")
def test_every_layer_finds_translations_as_in_numpy(tmp_path, monkeypatch):
    model = tiny_models.build("roberta")
    monkeypatch.setattr(layer_retrieval, "load", lambda path: model)
    monkeypatch.setattr(layer_retrieval, "best_checkpoint", lambda path: path)
    for name, side in zip(("x.de", "x.en"), zip(*PAIRS, strict=True), strict=True):
        (tmp_path / name).write_text("\n".join(side) + "\n")
    source, plot = f"language:de-en={tmp_path}/x", tmp_path / "layers.png"
    request = Request(task="layer_retrieval", model="m", data=(source,), plot=str(plot))
    report = layer_retrieval.report(request)
    want = by_hand(model, *zip(*PAIRS, strict=True))
    np.testing.assert_allclose(report.document["layers"]["de-en"], want)
    assert report.document["metrics"]["accuracy"] == want.mean(1).max()
    assert report.table[0] == ["layer", "de-en", "en-de"] and len(report.table) == 4
    assert plot.stat().st_size > 1000
    with pytest.raises(UserError, match="name a .png"):
        layer_retrieval.report(dataclasses.replace(request, plot=str(tmp_path / "a.xyz")))


def test_the_nearest_of_the_other_side_counts():
    first = np.array([[1.0, 0], [0, 1], [1, 1]])
    second = np.array([[2.0, 0.1], [1, 1], [0.1, 1]])
    assert layer_retrieval.found(first, second) == pytest.approx((1 / 3, 1 / 3))
    assert layer_retrieval.found(first, first) == (1, 1)


@pytest.mark.parametrize("data", [(), ("a.txt",), ("language:de=a.txt",)])
def test_other_data_are_refused(data):
    with pytest.raises(UserError, match="give translations|has no language"):
        layer_retrieval.report(Request(task="layer_retrieval", model="m", data=data))


def test_misaligned_files_are_named_with_the_line(tmp_path, monkeypatch):
    monkeypatch.setattr(layer_retrieval, "load", lambda path: None)
    monkeypatch.setattr(layer_retrieval, "best_checkpoint", lambda path: path)
    (tmp_path / "x.de").write_text("eins\n\ndrei\n")
    (tmp_path / "x.en").write_text("one\ntwo\nthree\n")
    request = Request(task="layer_retrieval", model="m", data=(f"language:de-en={tmp_path}/x",))
    with pytest.raises(UserError, match=r"x.de.*line 2 is empty, and line 2 of x.en has text"):
        layer_retrieval.report(request)
    with pytest.raises(UserError, match="unknown language code 'dee'.*de"):
        layer_retrieval.report(dataclasses.replace(request, data=("language:dee-en=x",)))
