"""Losses of lists: those of sentence-transformers in value and gradient, and by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.core.types import Encoded
from ptm_jax.objectives.sentences import listwise
from ptm_jax.objectives.sentences.listwise import (
    BinaryRelevance,
    LambdaLoss,
    ListMLE,
    ListNet,
    PositionListMLE,
    RankError,
    RankNet,
)

SIZES, MOST = (4, 2, 5, 1), 5
"""Texts of each list; a batch has room for `MOST`."""


def drawn(whole=True, seed=3):
    """Logits, grades and the mask, [G, K]. Whole grades are tied; the order of the data is by
    them."""
    draw = np.random.default_rng(seed)
    real = np.arange(MOST) < np.array(SIZES)[:, None]
    grades = draw.integers(0, 3, real.shape) if whole else draw.normal(size=real.shape)
    return draw.normal(size=real.shape), -np.sort(-grades, 1).astype(np.float64), real


class Tower:
    def __init__(self, logits):
        self.logits = logits

    def read(self, name, encoded, batch, key=None):
        return self.logits.reshape(-1, 1)


def judged(loss, logits, grades, real):
    """Our loss and its gradient [G, K], from rows as a batch has them."""
    rows = jnp.repeat(jnp.asarray(np.where(real, grades, 0.0), jnp.float32), MOST, 0)
    batch = {
        "input_ids": jnp.ones((real.size, 1), jnp.int32),
        "segment_ids": jnp.asarray(real.reshape(-1, 1), jnp.int32),
        listwise.FIELD: rows,
    }

    def value(x):
        return loss.of(Tower(x), Encoded(x[..., None]), batch).value()

    return jax.value_and_grad(value)(jnp.asarray(logits, jnp.float32))


def theirs_of(name):
    """(ours, a function of their module and a model to their loss, whether grades are whole)."""
    schemes = {
        "none": "NoWeightingScheme", "ndcg1": "NDCGLoss1Scheme", "ndcg2": "NDCGLoss2Scheme",
        "lambdarank": "LambdaRankScheme", "ndcg2++": "NDCGLoss2PPScheme",
    }  # fmt: skip
    weighted = {
        f"lambda {word}": (
            LambdaLoss(weighting=word),
            lambda m, model, scheme=scheme: m.LambdaLoss(model, getattr(m, scheme)()),
            True,
        )
        for word, scheme in schemes.items()
    }
    return {
        **weighted,
        "lambda at 2": (LambdaLoss(k=2, sigma=0.5), lambda m, model: m.LambdaLoss(
            model, m.NDCGLoss2PPScheme(), k=2, sigma=0.5), True),
        "rank net": (RankNet(), lambda m, model: m.RankNetLoss(model), True),
        "list net": (ListNet(), lambda m, model: m.ListNetLoss(model), False),
        "list mle": (ListMLE(), lambda m, model: m.ListMLELoss(model), False),
        "list mle by grades": (ListMLE(by_grades=True), lambda m, model: m.ListMLELoss(
            model, respect_input_order=False), False),
        "position mle": (PositionListMLE(), lambda m, model: m.PListMLELoss(model), False),
        "rank error": (RankError(), lambda m, model: m.ADRMSELoss(model), True),
        "rank error 2": (RankError(alpha=2.0), lambda m, model: m.ADRMSELoss(
            model, alpha=2.0), False),
    }[name]  # fmt: skip


NAMES = (
    "lambda none", "lambda ndcg1", "lambda ndcg2", "lambda lambdarank", "lambda ndcg2++",
    "lambda at 2", "rank net", "list net", "list mle", "list mle by grades", "position mle",
    "rank error", "rank error 2",
)  # fmt: skip


@pytest.mark.full
@pytest.mark.parametrize("name", NAMES)
def test_a_loss_and_its_gradient_are_the_library_s(name):
    torch = pytest.importorskip("torch")
    module = pytest.importorskip("sentence_transformers.cross_encoder.losses")
    ours, make, whole = theirs_of(name)
    logits, grades, real = drawn(whole)
    if name == "list mle by grades":  # the order of the data is another one
        logits, grades = logits[:, ::-1].copy(), np.where(real, grades[:, ::-1], 0.0)

    class Model(torch.nn.Module):
        """Its logits are those of the texts, by their numbers."""

        num_labels, device = 1, "cpu"

        def __init__(self):
            super().__init__()
            self.logits = torch.nn.Parameter(torch.tensor(logits, dtype=torch.float32))

        def preprocess(self, pairs, **options):
            return {"pairs": pairs}

        def forward(self, tokens):
            places = [tuple(map(int, text.split())) for _, text in tokens["pairs"]]
            return {"scores": torch.stack([self.logits[place] for place in places])}

    module.lambda_loss.batch_to_device = lambda tokens, device: tokens
    for part in ("list_net", "plist_mle", "adr_mse"):
        getattr(module, part).batch_to_device = lambda tokens, device: tokens
    model = Model()
    docs = [[f"{g} {k}" for k in range(size)] for g, size in enumerate(SIZES)]
    labels = [
        torch.tensor(row[:n], dtype=torch.float32) for row, n in zip(grades, SIZES, strict=True)
    ]
    expected = make(module, model)([["q"] * len(SIZES), docs], labels)
    expected.backward()
    value, slope = judged(ours, logits, grades, real)
    np.testing.assert_allclose(value, expected.item(), rtol=3e-6)
    np.testing.assert_allclose(slope, model.logits.grad.numpy(), rtol=1e-4, atol=1e-6)
    assert np.abs(slope[real & (np.array(SIZES) > 1)[:, None]]).max() > 0


def of_list(loss, logits, grades):
    real = np.arange(MOST) < len(logits)
    logits, grades = (np.pad(np.array(x, float), (0, MOST - len(x))) for x in (logits, grades))
    return float(judged(loss, logits[None], grades[None], real[None])[0])


def test_losses_of_one_list_by_hand():
    logits, grades = [1.0, 3.0, 2.0], [2.0, 0.0, 1.0]
    e = np.exp(logits)
    chance, target = e / e.sum(), np.exp(grades) / np.exp(grades).sum()
    assert of_list(ListNet(), logits, grades) == pytest.approx(-(target * np.log(chance)).sum())
    order = -np.log(chance[0]) - np.log(e[2] / (e[1] + e[2]))
    assert of_list(ListMLE(by_grades=True), logits, grades) == pytest.approx(order)
    places = -np.log(chance[0]) * 3 / 4 - np.log(e[2] / (e[1] + e[2])) / 4
    assert of_list(PositionListMLE(by_grades=True), logits, grades) == pytest.approx(places)
    pairs = [np.log2(1 + np.exp(logits[j] - logits[i])) for i, j in ((0, 1), (0, 2), (2, 1))]
    assert of_list(RankNet(), logits, grades) == pytest.approx(np.mean(pairs))
    y, s = np.array([1.0, 0.0, 0.5]), np.array(logits)
    logistic = np.log1p(np.exp(s)) - s * y
    assert of_list(BinaryRelevance(), logits, y) == pytest.approx(logistic.mean())


def test_lambda_rank_is_the_change_of_ndcg():
    """The weight of a pair is what nDCG loses or gains when the two change their places."""
    logits, grades = np.array([0.5, 2.0, 1.0, -1.0]), np.array([2.0, 0.0, 1.0, 1.0])
    order = np.argsort(-logits)
    discount = 1 / np.log2(np.arange(2, 6))

    def ndcg(places):
        return (2 ** grades[places] - 1) @ discount / ((2 ** (-np.sort(-grades)) - 1) @ discount)

    terms = []
    for a in range(4):
        for b in range(4):
            i, j = order[a], order[b]
            if grades[i] > grades[j]:
                swapped = order.copy()
                swapped[[a, b]] = order[[b, a]]
                change = abs(ndcg(swapped) - ndcg(order))
                terms.append(change * np.log2(1 + np.exp(logits[j] - logits[i])))
    found = of_list(LambdaLoss(weighting="lambdarank"), logits, grades)
    assert found == pytest.approx(np.mean(terms), rel=1e-5)


@pytest.mark.parametrize("fields", [{"sigma": 0.0}, {"k": 0}])
def test_settings_that_do_not_fit(fields):
    with pytest.raises(ValueError, match="at least 1"):
        LambdaLoss(**fields)
