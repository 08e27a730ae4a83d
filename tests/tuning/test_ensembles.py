"""Ensembles: the mean of several models' scores in numpy, through every kind of task that has such
scores; what has none."""

import dataclasses
import json

import numpy as np
import pytest

import ptm_jax
from ptm_jax.cli.main import main
from ptm_jax.core.errors import UserError
from ptm_jax.core.paths import flatten, unflatten
from ptm_jax.inference.pretrained import Pretrained
from ptm_jax.nn.heads.questions.answers import AnswerHead
from ptm_jax.tasks import evaluating
from ptm_jax.tasks.catalogue import catalogue
from ptm_jax.tasks.formats.choices import Choices
from ptm_jax.tasks.formats.labelled import Labelled
from ptm_jax.tasks.formats.questions import Questions
from ptm_jax.tasks.formats.tabular import Source
from ptm_jax.tasks.formats.tagged import Tagged
from ptm_jax.tuning.ensembles import Ensemble
from support.tiny_checkpoint import written
from support.tiny_models import drawn, save_run

TEXTS = ["a good film", "the plot was not bad but the end was sad"]


@pytest.fixture
def three(models_of):
    """Three models of a kind, each with parameters of its own."""
    return lambda examples: models_of(examples, 3, 1.0)


@pytest.mark.full
def test_classes_have_the_geometric_mean_of_their_probabilities(three, tmp_path):
    models = three(Labelled())
    each = np.array(
        [[list(answer.values()) for answer in model.classify(TEXTS)] for model in models]
    )
    mean = np.exp(np.log(each).mean(0))
    expected = mean / mean.sum(-1, keepdims=True)
    found = Ensemble(models).classify(TEXTS)
    np.testing.assert_allclose([list(answer.values()) for answer in found], expected, rtol=1e-5)
    assert np.ptp(each, 0).max() > 0.01  # they differ, so the mean is none of them
    data = written(tmp_path / "sst2", count=4, dev=9)

    def predictions_of(one):
        return evaluating.evaluate(
            one, catalogue.get("sst2"), Source(str(data / "dev.tsv"))
        ).predictions

    predicted = [predictions_of(one) for one in models]
    mean = np.mean([[np.log(list(row.scores.values())) for row in one] for one in predicted], 0)
    both = predictions_of(Ensemble(models))
    assert [row.label for row in both] == ["01"[row.argmax()] for row in mean]


@pytest.mark.full
def test_numbers_tags_choices_and_spans_have_the_mean(three):
    ids = np.random.default_rng(0).integers(5, 20, (4, 9))
    tags = Tagged(labels=("O", "B-a", "I-a"))
    for head, examples in (
        ("classify", Labelled(labels=())),
        ("tag", tags),
        ("choose", Choices()),
        ("span", Questions()),
    ):
        models = three(examples)
        each = [model(ids, np.ones_like(ids)).scores[head] for model in models]
        found = Ensemble(models)(ids, np.ones_like(ids)).scores[head]
        assert isinstance(found, tuple) == (head == "span")
        for place, part in enumerate(found if isinstance(found, tuple) else (found,)):
            parts = [one[place] if isinstance(one, tuple) else one for one in each]
            np.testing.assert_allclose(
                part, sum(np.float64(one) for one in parts) / 3, rtol=1e-5, atol=1e-6
            )


@pytest.mark.full
def test_tags_and_answers_are_those_of_the_mean(three):
    """Who is surer is heard."""
    models = three(Tagged(labels=("O", "B-a", "I-a")))

    def sure(model, of, by):
        flat = flatten(model.params)
        (name,) = (path for path in flat if path.endswith("heads_tag/classes/bias"))
        return dataclasses.replace(
            model, params=unflatten({**flat, name: by * np.eye(3, dtype=np.float32)[of]})
        )

    for weights, tag in (((900, 500), "O"), ((500, 900), "B-a")):
        both = Ensemble(
            [
                sure(model, of, by)
                for of, (model, by) in enumerate(zip(models, weights, strict=False))
            ]
        )
        assert both.tag(TEXTS) == [[(word, tag) for word in text.split()] for text in TEXTS]
    one, _, other = three(Questions(stride=4))
    asked = ["is the film good"], ["a good film is funny and the plot was not bad"]
    (mine,), (its,) = one.answer(*asked), Ensemble([one, one]).answer(*asked)
    assert mine.text == its.text and mine.null == pytest.approx(its.null, abs=1e-4)
    assert Ensemble([one, other]).answer(*asked)[0].null != pytest.approx(mine.null, abs=1e-4)


@pytest.mark.full
def test_what_is_no_ensemble_raises(three, published):
    models, wider = three(Labelled()), three(Labelled(labels=("0", "1", "2")))
    bare = ptm_jax.load(published)
    words = dataclasses.replace(models[0], tokenizer=None)
    turned = dataclasses.replace(models[0].system, examples=Labelled(labels=("1", "0")))
    named = dataclasses.replace(models[0], system=turned)
    for given, line in (
        (models[:1], "an ensemble of 1; give at least two"),
        (
            [models[0], models[1], wider[0]],
            r"model 3 has other heads \(classify of 3 classes; classify of 2 classes\)",
        ),
        ([models[0], bare], r"model 2 has other heads \(none; classify of 2 classes\)"),
        ([models[0], words], "model 2 has other words than the first"),
        ([models[0], named], r"model 2 has other classes \(1, 0; 0, 1\)"),
    ):
        with pytest.raises(UserError, match=line):
            Ensemble(given)
    tower = models[0].system.towers["main"]
    system = dataclasses.replace(
        models[0].system, towers={"main": dataclasses.replace(tower, heads={"span": AnswerHead()})}
    )
    in_steps = [
        Pretrained(
            system,
            drawn(system, batch={"input_ids": np.zeros((4, 16), np.int32)}),
            models[0].tokenizer,
        )
    ] * 2
    with pytest.raises(UserError, match=r"answers in steps \(head 'span'\)"):
        Ensemble(in_steps).answer(["is it good"], ["a good film"])


@pytest.mark.full
def test_by_command(three, tmp_path, capsys):
    models = three(Labelled())
    first, *rest = (
        str(save_run(tmp_path / f"seed_{number}", model)) for number, model in enumerate(models)
    )
    assert (
        main(
            [
                "predict",
                first,
                "--ensemble",
                *rest,
                "--task",
                "classify",
                "--text",
                TEXTS[0],
                "--json",
            ]
        )
        == 0
    )
    (answer,) = json.loads(capsys.readouterr().out)
    assert answer["labels"] == pytest.approx(Ensemble(models).classify(TEXTS[:1])[0], rel=1e-5)
    data = written(tmp_path / "sst2", count=4, dev=9)
    words = [
        "--task",
        "sst2",
        "--data",
        str(data),
        "--predictions",
        str(tmp_path / "predicted.tsv"),
    ]
    assert main(["evaluate", first, "--ensemble", *rest, *words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    expected = evaluating.evaluate(
        Ensemble(models), catalogue.get("sst2"), Source(str(data / "dev.tsv"))
    )
    assert found["metrics"] == pytest.approx(expected.metrics)
    rows = (tmp_path / "predicted.tsv").read_text().splitlines()[1:]
    assert [row.split("\t")[1] for row in rows] == [one.label for one in expected.predictions]
    assert (
        main(
            [
                "predict",
                first,
                "--ensemble",
                *rest,
                "--task",
                "sst2",
                "--input",
                str(data / "dev.tsv"),
            ]
        )
        == 0
    )
    assert capsys.readouterr().out.splitlines()[1:] == rows
    for words, line in (
        (
            ["predict", first, "--ensemble", *rest, "--task", "fill-mask", "--text", "x"],
            "--ensemble is not for --task fill-mask",
        ),
        (
            ["evaluate", first, "--ensemble", rest[0], "--adapter", "x", "--task", "sst2"],
            "--adapter needs a single model",
        ),
        (
            [
                "evaluate",
                first,
                "--ensemble",
                "nowhere/at/all",
                "--task",
                "sst2",
                "--data",
                str(data),
            ],
            "nowhere/at/all",
        ),
    ):
        assert main(words) == 1
        assert line in capsys.readouterr().err
