"""The retrospective reader: its rows, its losses by hand, and the two scores weighed at last."""

import json

import jax.numpy as jnp
import numpy as np
import pytest

import ptm_jax
from ptm_jax.cli.main import main
from ptm_jax.core.errors import UserError
from ptm_jax.core.types import Encoded
from ptm_jax.inference.text import answering
from ptm_jax.nn.heads.questions.answers import VerifiedSpanHead
from ptm_jax.nn.initializers import Normal
from ptm_jax.objectives.tasks.answers import VerifiedSpan
from ptm_jax.tasks import evaluating
from ptm_jax.tasks.catalogue import catalogue
from ptm_jax.tasks.formats.questions import Answerable, Asked, VerifiedQuestions
from ptm_jax.tasks.kinds import retrospective
from ptm_jax.tasks.kinds.base import kind_of
from ptm_jax.tasks.metrics import squad
from support.by_hand import dense, head_of, tower_with

TEXT = "the film is a good story and the plot was not bad but the end was very long and sad"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("squad") / "dev.json"
    asked = [
        ("what is long", [("the end", TEXT.index("the end"))]),
        ("who is sad", []),
        ("what is good", [("story", 19)]),
    ]
    rows = [
        {
            "id": f"q{n}",
            "question": question,
            "answers": [{"text": t, "answer_start": at} for t, at in found],
        }
        for n, (question, found) in enumerate(asked)
    ]
    path.write_text(
        json.dumps({"data": [{"paragraphs": [{"context": TEXT, "qas": rows}]}]}, indent=1)
    )
    return path


@pytest.mark.status("squad2_sketchy", "built")
@pytest.mark.status("squad2_retro", "built")
def test_rows_without_the_answer_are_marked(published, data):
    tokenizer, examples = ptm_jax.load(published).tokenizer, VerifiedQuestions(stride=4)
    found = list(examples.read(data))
    records = examples.encode(tokenizer, found)
    groups, _ = examples.features(tokenizer, records, 24)
    classes, _ = Answerable(stride=4).features(tokenizer, records, 24)
    windows, _ = examples.windows(tokenizer, records, 24)
    for window, (row,), (one,) in zip(windows, groups, classes, strict=True):
        first, last = records[window.record]["answer"]
        held = window.first <= first and last < window.first + window.size and first >= 0
        assert row["no_answer"] == one["label"] == int(not held) and (
            row["answer_start"] == window.cls
        ) == (not held)
    assert 0 < sum(row["no_answer"] for (row,) in groups) < len(groups)
    assert set(one) == set(Answerable().spec(24, tokenizer.vocab)) and Answerable().frequencies(
        records
    ) == [2, 1]


def test_the_loss_weighs_span_and_check():
    """Eq. 9 in plain numpy; a row that fills a batch has no weight."""
    draw = np.random.default_rng(0)
    h = draw.normal(size=(3, 5, 4)).astype(np.float32)
    head = VerifiedSpanHead(initializer=Normal(0.7))
    segments = jnp.array([[1] * 5, [1] * 5, [0] * 5])
    rows = {
        "input_ids": segments, "segment_ids": segments, "answer_start": jnp.array([2, 0, -1]),
        "answer_end": jnp.array([3, 0, -1]), "no_answer": jnp.array([0, 1, 0]),
    }  # fmt: skip
    inputs = head.reads(Encoded(jnp.asarray(h)), rows)
    p, (start, end, none) = head_of(head, *inputs)
    np.testing.assert_allclose(none, dense(p, "none", h[:, 0]), atol=1e-5)
    loss = VerifiedSpan(alpha1=0.3, alpha2=0.8).of(
        tower_with("verified", (start, end, none)), Encoded(jnp.asarray(h)), rows
    )

    def nll(scores, places):
        return np.mean(
            [np.log(np.exp(s).sum()) - s[n] for s, n in zip(scores, places, strict=True)]
        )

    span = (nll(np.asarray(start)[:2], (2, 0)) + nll(np.asarray(end)[:2], (3, 0))) / 2
    check = np.mean(np.log1p(np.exp(np.array([1, -1]) * np.asarray(none)[:2, 0])))
    np.testing.assert_allclose(float(loss.value()), 0.3 * span + 0.8 * check, rtol=1e-5)


def test_both_readers_are_weighed():
    """v = beta1 score_diff + beta2 score_ext, against the official decision at a threshold."""
    answers = [
        answering.Answer("a", -2.0, ()),
        answering.Answer("b", 1.0, ()),
        answering.Answer("c", -1.0, ()),
    ]
    found = retrospective.verified(answers, [6.0, -4.0, 0.5], beta1=0.5, beta2=0.25)
    assert [one.null for one in found] == [0.5, -0.5, -0.375] and [one.text for one in found] == [
        "a",
        "b",
        "c",
    ]
    gold, texts = {"x": [], "y": ["y"], "z": ["z"]}, {k: k for k in "xyz"}

    def judge(rows):
        return squad.scores(
            gold, texts, dict(zip("xyz", (r.null for r in rows), strict=True)), threshold=0.0
        )

    assert judge(found)["exact"] == 1 and judge(answers)["exact"] == pytest.approx(1 / 3)


@pytest.fixture(scope="module")
def readers(models_of):
    """Both models, {task: model}."""
    return {
        task: models_of(catalogue.get(task).examples)[0]
        for task in ("squad2_sketchy", "squad2_retro")
    }


@pytest.mark.full
def test_two_models_answer(readers, data):
    intensive, sketchy = readers["squad2_retro"], readers["squad2_sketchy"]
    task, source = catalogue.get("squad2_retro"), evaluating.Source(str(data))
    both = evaluating.evaluate(intensive, task, source, beside=sketchy)
    alone = evaluating.evaluate(intensive, task, source)
    first = evaluating.evaluate(sketchy, catalogue.get("squad2_sketchy"), source)
    assert set(first.metrics) == {"accuracy"} and {"f1", "exact", "best_f1"} <= set(both.metrics)
    for one, half, other in zip(
        both.predictions, alone.predictions, first.predictions, strict=True
    ):
        assert one.null == pytest.approx((half.null + other.number) / 2)
    (found,) = intensive.answer(["what is long"], [TEXT])
    assert found.best and found.best[0].text in TEXT
    with pytest.raises(UserError, match="no head 'span'"):
        sketchy.answer(["what is long"], [TEXT])
    with pytest.raises(UserError, match="leave --beside out"):
        evaluating.evaluate(sketchy, catalogue.get("squad2_sketchy"), source, beside=sketchy)


@pytest.mark.full
def test_two_models_answer_by_command(published, data, tmp_path, capsys):
    for task in ("squad2_sketchy", "squad2_retro"):
        words = [
            "train",
            "--init",
            str(published),
            "--task",
            task,
            "--data",
            str(data),
            str(data),
            "--epochs",
            "1",
        ]
        assert (
            main([*words, "--batch", "4", "--length", "48", "--workdir", str(tmp_path / task)]) == 0
        )
    capsys.readouterr()
    words = ["evaluate", str(tmp_path / "squad2_retro"), "--task", "squad2_retro", "--json"]
    found = []
    for more in ([], ["--beside", str(tmp_path / "squad2_sketchy")]):
        assert main([*words, *more]) == 0
        found.append(json.loads(capsys.readouterr().out)["metrics"])
    assert {"f1", "exact", "best_f1"} <= set(found[0]) == set(found[1])


@pytest.mark.full
def test_a_question_is_unanswerable_where_every_window_scores_it_so(readers):
    model, spec = readers["squad2_sketchy"], Answerable(stride=4)
    asked = [Asked("who is sad", TEXT, (), "f", "1")]
    task = evaluating.Task(name="t", examples=spec)
    found = kind_of(spec).predict(model, task.examples, asked, 16, 8)[0][0]
    tokenizer = model.tokenizer
    windows, _ = spec.windows(tokenizer, spec.encode(tokenizer, asked), 16)
    rows = [
        model(w.ids[None], np.ones_like(w.ids)[None], w.types[None]).scores["classify"][0]
        for w in windows
    ]
    assert len(rows) > 2 and found.number == pytest.approx(
        min(float(row[1] - row[0]) for row in rows), abs=1e-5
    )
