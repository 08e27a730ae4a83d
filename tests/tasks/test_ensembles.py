"""Ensembles: the mean of several models' scores in numpy, through every kind of task that has such scores; what has none."""

import dataclasses
import json
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

import ptm_jax
from ptm_jax.cli.main import main
from ptm_jax.core import spec, towers
from ptm_jax.core.errors import UserError
from ptm_jax.core.paths import flatten, unflatten
from ptm_jax.data.labelled import Labelled
from ptm_jax.data.questions import Questions
from ptm_jax.data.tables import Source
from ptm_jax.data.tagged import Tagged
from ptm_jax.nn.answer_heads import AnswerHead
from ptm_jax.tasks import evaluating, finetuning
from ptm_jax.tasks.catalogue import catalogue
from ptm_jax.tasks.ensembles import Ensemble
from ptm_jax.tasks.pretrained import Pretrained
from ptm_jax.train import imported

sys.path.append(str(Path(__file__).parents[1] / "tasks"))
from test_finetuning import published, written  # noqa: E402, F401

TEXTS = ["a good film", "the plot was not bad but the end was sad"]


@pytest.fixture(scope="module")
def models_of(published):  # noqa: F811
    """Three models of a kind, each with parameters of its own."""

    def made(head, classes, examples=None, **given):
        system = finetuning.with_head(str(published), classes, head, **given)
        system = dataclasses.replace(system, examples=examples)
        shapes = towers.abstract(system.towers, {"input_ids": np.zeros((4, 16), np.int32)})
        tokenizer, found = ptm_jax.load(published).tokenizer, []
        for seed in range(3):
            draw = np.random.default_rng(seed)
            params = jax.tree.map(lambda leaf: draw.normal(size=leaf.shape).astype(np.float32), shapes)
            found.append(Pretrained(system, params, tokenizer))
        return found

    return made


def test_classes_have_the_geometric_mean_of_their_probabilities(models_of, tmp_path):
    models = models_of("classify", 2, Labelled(labels=("0", "1")))
    each = np.array([[list(answer.values()) for answer in model.classify(TEXTS)] for model in models])
    mean = np.exp(np.log(each).mean(0))
    expected = mean / mean.sum(-1, keepdims=True)
    found = Ensemble(models).classify(TEXTS)
    np.testing.assert_allclose([list(answer.values()) for answer in found], expected, rtol=1e-5)
    assert np.ptp(each, 0).max() > 0.01  # they differ, so the mean is none of them
    data = written(tmp_path / "sst2", count=4, dev=9)
    said = [evaluating.evaluate(one, catalogue.get("sst2"), Source(str(data / "dev.tsv"))).said for one in models]
    mean = np.mean([[np.log(list(row.scores.values())) for row in one] for one in said], 0)
    both = evaluating.evaluate(Ensemble(models), catalogue.get("sst2"), Source(str(data / "dev.tsv"))).said
    assert [row.label for row in both] == ["01"[row.argmax()] for row in mean]


def test_numbers_tags_choices_and_spans_have_the_mean(models_of):
    ids = np.random.default_rng(0).integers(5, 20, (4, 9))
    for head, classes, examples in (
        ("classify", 1, None), ("tag", 3, Tagged(labels=("O", "B-a", "I-a"))), ("choose", 2, None), ("span", 2, Questions()),
    ):  # fmt: skip
        models = models_of(head, classes, examples)
        each = [model(ids, np.ones_like(ids)).scores[head] for model in models]
        found = Ensemble(models)(ids, np.ones_like(ids)).scores[head]
        assert isinstance(found, tuple) == (head == "span")
        for place, part in enumerate(found if isinstance(found, tuple) else (found,)):
            parts = [one[place] if isinstance(one, tuple) else one for one in each]
            np.testing.assert_allclose(part, sum(np.float64(one) for one in parts) / 3, rtol=1e-5, atol=1e-6)


def test_tags_and_answers_are_those_of_the_mean(models_of):
    """Who is surer is heard."""
    models = models_of("tag", 3, Tagged(labels=("O", "B-a", "I-a")))

    def sure(model, of, by):
        flat = flatten(model.params)
        (name,) = (path for path in flat if path.endswith("heads_tag/classes/bias"))
        return dataclasses.replace(model, params=unflatten({**flat, name: by * np.eye(3, dtype=np.float32)[of]}))

    for weights, tag in (((900, 500), "O"), ((500, 900), "B-a")):
        both = Ensemble([sure(model, of, by) for of, (model, by) in enumerate(zip(models, weights, strict=False))])
        assert both.tag(TEXTS) == [[(word, tag) for word in text.split()] for text in TEXTS]
    one, _, other = models_of("span", 2, Questions(stride=4))
    asked = ["is the film good"], ["a good film is funny and the plot was not bad"]
    (mine,), (its,) = one.answer(*asked), Ensemble([one, one]).answer(*asked)
    assert mine.text == its.text and mine.null == pytest.approx(its.null, abs=1e-4)
    assert Ensemble([one, other]).answer(*asked)[0].null != pytest.approx(mine.null, abs=1e-4)


def test_what_is_no_ensemble_is_told(models_of, published):  # noqa: F811
    models, three = models_of("classify", 2, Labelled(labels=("0", "1"))), models_of("classify", 3)
    bare = ptm_jax.load(published)
    words = dataclasses.replace(models[0], tokenizer=None)
    turned = dataclasses.replace(models[0].system, examples=Labelled(labels=("1", "0")))
    named = dataclasses.replace(models[0], system=turned)
    for given, line in (
        (models[:1], "an ensemble of 1; give at least two"),
        ([models[0], models[1], three[0]], r"model 3 has other heads \(classify of 3 classes; classify of 2 classes\)"),
        ([models[0], bare], r"model 2 has other heads \(none; classify of 2 classes\)"),
        ([models[0], words], "model 2 has other words than the first"),
        ([models[0], named], r"model 2 has other classes \(1, 0; 0, 1\)"),
    ):
        with pytest.raises(UserError, match=line):
            Ensemble(given)
    tower = models[0].system.towers["main"]
    system = dataclasses.replace(models[0].system, towers={"main": dataclasses.replace(tower, heads={"span": AnswerHead()})})
    params = towers.init(system.towers, jax.random.key(0), {"input_ids": np.zeros((4, 16), np.int32)})
    in_steps = [Pretrained(system, params, models[0].tokenizer)] * 2
    with pytest.raises(UserError, match=r"answers in steps \(head 'span'\)"):
        Ensemble(in_steps).answer(["is it good"], ["a good film"])


@pytest.fixture
def runs(models_of, tmp_path):
    """Workdirs of three models of sentiment."""
    models, folders = models_of("classify", 2, Labelled(labels=("0", "1"))), []
    for number, model in enumerate(models):
        folders.append(tmp_path / f"seed_{number}")
        record = {"config": {"system": spec.to_json(model.system)}}
        imported.write(folders[-1], record, None, model.params)
        model.tokenizer.save(folders[-1] / "tokenizer")
    return models, list(map(str, folders))


def test_by_command(runs, tmp_path, capsys):
    models, (first, *rest) = runs
    assert main(["predict", first, "--ensemble", *rest, "--task", "classify", "--text", TEXTS[0], "--json"]) == 0
    (told,) = json.loads(capsys.readouterr().out)
    assert told["labels"] == pytest.approx(Ensemble(models).classify(TEXTS[:1])[0], rel=1e-5)
    data = written(tmp_path / "sst2", count=4, dev=9)
    words = ["--task", "sst2", "--data", str(data), "--predictions", str(tmp_path / "said.tsv")]
    assert main(["evaluate", first, "--ensemble", *rest, *words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    expected = evaluating.evaluate(Ensemble(models), catalogue.get("sst2"), Source(str(data / "dev.tsv")))
    assert found["metrics"] == pytest.approx(expected.metrics)
    rows = (tmp_path / "said.tsv").read_text().splitlines()[1:]
    assert [row.split("\t")[1] for row in rows] == [one.label for one in expected.said]
    assert main(["predict", first, "--ensemble", *rest, "--task", "sst2", "--input", str(data / "dev.tsv")]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == rows
    for words, line in (
        (["predict", first, "--ensemble", *rest, "--task", "embed", "--text", "x"], "--ensemble is of --task classify"),
        (["evaluate", first, "--ensemble", *rest], "--ensemble, --beside and --split test are of downstream tasks"),
        (["evaluate", first, "--ensemble", rest[0], "--adapter", "x", "--task", "sst2"], "--adapter is put on one model"),
        (["evaluate", first, "--ensemble", "nowhere/at/all", "--task", "sst2", "--data", str(data)], "nowhere/at/all"),
    ):
        assert main(words) == 1
        assert line in capsys.readouterr().err
