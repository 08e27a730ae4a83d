"""Saliency: finite differences, completeness, planted evidence, faithfulness by hand."""

import numpy as np
import pytest

import ptm_jax
from ptm_jax.core.errors import UserError
from ptm_jax.inference.saliency import attributions, faithfulness
from support import tiny_checkpoint

TEXT = "the film was [MASK] and very long"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("masked")
    return tiny_checkpoint.write(path, architectures=["BertForMaskedLM"], vocab=84, scale=0.5)


@pytest.fixture(scope="module")
def evidence(tmp_path_factory):
    """A classifier of texts by the words `good` and `bad`, or neither of them, among others."""
    path = tmp_path_factory.mktemp("evidence")
    checkpoint = tiny_checkpoint.write(path / "begin", vocab=84, scale=0.1)
    draw = np.random.default_rng(0)
    others = [word for word in tiny_checkpoint.WORDS if word not in ("good", "bad")]
    lines = []
    for n in range(240):
        words = [*draw.choice(others, 8), *(["bad"], ["good"], [])[n % 3]]
        lines.append(" ".join(draw.permutation(words)))
    return ptm_jax.finetune(
        str(checkpoint), lines, ["no", "yes", "neither"] * 80, workdir=path / "run", epochs=12,
        batch=16, length=32, lr=5e-3, quiet=True,
    )  # fmt: skip


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
        scores = attributions._scores(
            function.question, model.weights, batch, moves, function.place
        )
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
    falls = []
    for place in function.text:
        row = function.ids.copy()
        row[place] = model.vocab.mask
        logits = np.asarray(model(row[None]).logits, np.float64)[0, function.place]
        falls.append(whole - (logits[function.index] - np.log(np.exp(logits).sum())))
    np.testing.assert_allclose(
        attributions.attributed(model, TEXT, "occlusion").scores, falls, atol=1e-4
    )
    with pytest.raises(UserError, match="unknown method 'lame'.*Did you mean 'lime'"):
        attributions.attributed(model, TEXT, "lame")
    with pytest.raises(UserError, match="'zebra crossing' is no single token"):
        attributions.attributed(model, TEXT, target="zebra crossing")


@pytest.mark.full
def test_methods_find_planted_evidence(evidence, capsys):
    """The word that decides has the first rank; the figures of faithfulness say so, too."""
    draw = np.random.default_rng(1)
    others = [word for word in tiny_checkpoint.WORDS if word not in ("good", "bad")]
    right = dict.fromkeys(attributions.METHODS, 0)
    for n in range(8):
        word = ("bad", "good")[n % 2]
        text = " ".join(draw.permutation([*draw.choice(others, 7), word]))
        target = ("no", "yes")[n % 2]
        for method in right:
            result = attributions.attributed(evidence, text, method, steps=16, samples=128)
            assert result.target == target
            right[method] += result.pieces[int(np.argmax(result.scores))] == word
    assert min(right[m] for m in ("integrated_gradients", "occlusion", "lime")) == 8, right
    assert min(right.values()) >= 6, right
    function = attributions.function_of(evidence, text)
    best = np.array([piece == word for piece in result.pieces], float)
    good, wrong = (faithfulness.faithfulness(function, scores) for scores in (best, -best))
    assert good["comprehensiveness"] > 0.5 > wrong["comprehensiveness"]
    assert good["sufficiency"] < 0.2 < wrong["sufficiency"]


def test_ridge_regression_is_scikit_learns():
    from sklearn.linear_model import Ridge

    draw = np.random.default_rng(3)
    inputs = draw.integers(0, 2, (40, 6)).astype(float)
    values, weights = draw.normal(size=40), draw.uniform(0.1, 1, 40)
    wanted = Ridge(alpha=attributions.RIDGE).fit(inputs, values, weights).coef_
    np.testing.assert_allclose(attributions._ridge(inputs, values, weights), wanted, rtol=1e-8)
