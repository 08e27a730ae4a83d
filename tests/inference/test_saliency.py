"""Saliency: finite differences, completeness, planted evidence, faithfulness by hand."""

import numpy as np
import pytest

import ptm_jax
from benchmarks import saliency
from ptm_jax.core.errors import UserError
from ptm_jax.inference.saliency import attention_pages, attributions, faithfulness, predicted
from ptm_jax.inference.text import answering
from support import tiny_checkpoint

TEXT = "the film was [MASK] and very long"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("masked")
    return tiny_checkpoint.write(path, architectures=["BertForMaskedLM"], vocab=84, scale=0.5)


@pytest.mark.full
def test_gradients_are_finite_differences_and_scores_add_up(folder):
    model = ptm_jax.load(folder)
    function = attributions.function_of(model, TEXT)
    words = function.words(function.ids)
    (gradient,) = function.gradients(np.zeros((1, *words.shape), np.float32))
    draw = np.random.default_rng(0)
    ((batch, _),) = function._batches(function.ids[None])
    pads = (0, batch["input_ids"].shape[1] - len(function.ids)), (0, 0)

    def value(moves):
        moves = np.pad(moves, pads)[None]
        scores = predicted._scores(function.question, model.weights, batch, moves, function.place)
        return float(scores[0, function.index])

    for _ in range(5):
        step = draw.normal(size=words.shape).astype(np.float32) * 1e-2
        difference = value(step) - value(-step)
        assert difference / 2 == pytest.approx((gradient * step).sum(), rel=2e-2, abs=1e-5)
    result = attributions.attributed(model, TEXT)
    whole, missing = function.values(np.stack([function.ids, function.missing()]))
    assert result.scores.sum() == pytest.approx(whole - missing, abs=1e-4)
    assert result.mask == 3 and result.prediction == pytest.approx(whole)
    difference = words - function.words(function.missing())
    np.testing.assert_allclose(
        attributions.attributed(model, TEXT, "gradient_input").scores,
        (gradient * difference).sum(-1)[function.text], rtol=1e-4,
    )  # fmt: skip

    def log_probability(row):
        logits = np.asarray(model(row[None]).logits, np.float64)[0, function.place]
        return logits[function.index] - np.log(np.exp(logits).sum())

    falls = []
    for place in function.text:
        row = function.ids.copy()
        row[place] = model.vocab.mask
        falls.append(whole - log_probability(row))
    order, figures = function.text[np.argsort(-result.scores)], []
    for count in (1, 1, 1, 2, 3):  # 0.01, 0.05, 0.1, 0.2 and 0.5 of six tokens, rounded up
        without, alone = function.ids.copy(), function.missing()
        without[order[:count]], alone[order[:count]] = model.vocab.mask, function.ids[order[:count]]
        figures.append([np.exp(whole) - np.exp(log_probability(row)) for row in (without, alone)])
    assert len(order) == 6
    np.testing.assert_allclose(
        [*faithfulness.faithfulness(function, result.scores).values()],
        np.mean(figures, 0),
        atol=1e-5,
    )
    np.testing.assert_allclose(
        attributions.attributed(model, TEXT, "occlusion").scores, falls, atol=1e-4
    )
    with pytest.raises(UserError, match="unknown method 'lame'.*Did you mean 'lime'"):
        attributions.attributed(model, TEXT, "lame")
    with pytest.raises(UserError, match="'zebra crossing' is no single token"):
        attributions.attributed(model, TEXT, target="zebra crossing")


@pytest.mark.full
def test_methods_find_planted_evidence(tmp_path):
    """Five words of twenty are for the class, three against it: gradients without sign and
    attention do not tell them apart."""
    table = saliency.measured(saliency.trained(tmp_path / "run"), texts=8)
    precision = {method: figures["precision at 5"] for method, figures in table.items()}
    assert min(precision[m] for m in ("integrated_gradients", "occlusion")) >= 0.75, precision
    assert max(precision[m] for m in ("gradient", "attention")) <= 0.65, precision
    best, worst = table["integrated_gradients"], table["gradient"]
    assert best["comprehensiveness"] > worst["comprehensiveness"] + 0.1
    assert best["sufficiency"] < worst["sufficiency"] - 0.05


@pytest.mark.full
def test_answers_are_explained(tmp_path):
    """The log-probability of the first and the last token of the answer, by the model's scores."""
    folder = tiny_checkpoint.write(
        tmp_path, architectures=["BertForQuestionAnswering"], vocab=84, scale=0.5
    )
    model = ptm_jax.load(folder)
    question, passage = "the film was bad", "a long story but the end was very good"
    function = predicted.function_of(model, question, "the end", passage)
    (record,) = answering.records_of(model.tokenizer, [question], [passage])
    ids, types = model.tokenizer.frame(record["question"], record["ids"])
    first = len(ids) - 1 - len(record["ids"]) + 4

    def value(ids):
        output = model(np.array(ids)[None], token_type_ids=np.array(types)[None])
        starts, ends = (np.float64(one[0]) for one in output.scores["span"])
        logs = [one - np.log(np.exp(one).sum()) for one in (starts, ends)]
        return logs[0][first] + logs[1][first + 1]

    assert (function.place, function.index, function.target) == (first, first + 1, "the end")
    falls = []
    for place in function.text:
        row = np.array(ids)
        row[place] = model.vocab.mask
        falls.append(value(ids) - value(row))
    options = {"target": "17:24", "pair": passage}
    result = attributions.attributed(model, question, "occlusion", **options)
    np.testing.assert_allclose(result.scores, falls, atol=1e-4)
    assert result.prediction == pytest.approx(value(ids), abs=1e-4) and len(falls) == 13
    whole = attributions.attributed(model, question, **options).scores.sum()
    assert whole == pytest.approx(value(ids) - value(function.missing()), abs=1e-3)
    answer = attributions.attributed(model, question, "gradient", pair=passage)
    assert answer.target == model.answer([question], [passage])[0].best[0].text
    maps = model(np.array(ids)[None], None, np.array(types)[None], attention=True).attention[:, 0]
    for method, wanted in (
        ("attention", maps[-1].mean(0)),
        ("rollout", attention_pages.rollout(maps)),
    ):
        scores = attributions.attributed(model, question, method, **options).scores
        rows = wanted[[first, first + 1]].mean(0)
        np.testing.assert_allclose(scores, rows[function.text], atol=1e-5)
    for target, pair, message in (
        (None, None, "answers questions; give the passage"),
        ("zebra", passage, "the passage has no 'zebra'"),
        ("90:99", passage, "has no tokens in the passage"),
        (None, "a film " * 40, "longer than 64 tokens; shorten the passage"),
    ):
        with pytest.raises(UserError, match=message):
            predicted.function_of(model, question, target, pair)


def test_ridge_regression_is_scikit_learns():
    from sklearn.linear_model import Ridge

    draw = np.random.default_rng(3)
    inputs = draw.integers(0, 2, (40, 6)).astype(float)
    values, weights = draw.normal(size=40), draw.uniform(0.1, 1, 40)
    wanted = Ridge(alpha=attributions.RIDGE).fit(inputs, values, weights).coef_
    np.testing.assert_allclose(attributions._ridge(inputs, values, weights), wanted, rtol=1e-8)
