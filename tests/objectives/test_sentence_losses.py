"""Losses of groups of texts: their definitions in numpy, with gradients, and their refusals."""

import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.inference.text.vectors import pooled
from ptm_jax.nn.heads.text_vector import MODES, TextVector
from ptm_jax.objectives.sentences.cosent import AnglE, CoSENT, SimilarityError
from ptm_jax.objectives.sentences.margins import MarginError, SoftRanking, Triplet
from ptm_jax.objectives.sentences.multiple_negatives import MultipleNegatives
from ptm_jax.objectives.sentences.similarities import CosineScore, Dot, Euclidean, Manhattan
from support.plain_towers import L, V, check, hidden

GROUPS = 4
EVERY = ("query_to_doc", "query_to_query", "doc_to_query", "doc_to_doc")


def batch_of(texts=3, seed=5, absent=()):
    """Groups of texts in random rows; the last group and the rows `absent` are without tokens."""
    draw, rows = np.random.default_rng(seed), GROUPS * texts
    real = (np.arange(L) < draw.integers(2, L, (rows, 1))) & (np.arange(rows) < rows - texts)[
        :, None
    ]
    real[list(absent)] = False
    scores = np.repeat(draw.random((GROUPS, texts - 1)), texts, 0)
    return {
        "input_ids": jnp.asarray(draw.integers(0, V, (rows, L)), jnp.int32),
        "segment_ids": jnp.asarray(real, jnp.int32),
        "rows": jnp.arange(rows),
        "text_scores": jnp.asarray(scores, jnp.float32),
    }


def texts_of(p, b):
    """Vectors [K, G - 1, D] of the texts of the groups that have tokens, and their numbers.
    The vector of an absent negative is NaN."""
    rows = hidden(p, b["input_ids"], b["segment_ids"], np)[:, 0] @ p["match"]
    rows = np.where(np.asarray(b["segment_ids"]).any(1, keepdims=True), rows, np.nan)
    size = b["text_scores"].shape[1] + 1
    return (
        rows.reshape(GROUPS, size, -1)[:-1].swapaxes(0, 1),
        b["text_scores"][::size][:-1].T,
    )


def cosine(a, b):
    return a @ b / (np.linalg.norm(a) * np.linalg.norm(b))


def distance(a, b):
    return -np.linalg.norm(a - b + 1e-6)


def ranked(directions, partition, scale=20.0):
    def definition(p, b):
        (queries, *documents), _ = texts_of(p, b)
        count, total = len(queries), 0.0
        for i in range(count):
            positive = documents[0][i]
            parts = {
                "query_to_doc": [cosine(queries[i], d) for text in documents for d in text],
                "doc_to_query": [cosine(positive, q) for q in queries],
                "query_to_query": [cosine(queries[i], queries[j]) for j in range(count) if j != i],
                "doc_to_doc": [
                    cosine(positive, text[j]) for text in documents for j in range(count) if j != i
                ],
            }
            sums = [np.nansum(np.exp(scale * np.array(parts[name]))) for name in directions]
            over = np.log(sum(sums)) if partition == "joint" else np.mean(np.log(sums))
            total += over - scale * cosine(queries[i], positive)
        return [(total, count)]

    return definition


def simcse(p, b):
    """Supervised SimCSE: Gao et al. 2021, arXiv 2104.08821, Eq. 5, with temperature 0.05."""
    (anchors, positives, negatives), _ = texts_of(p, b)
    total = 0.0
    for i, anchor in enumerate(anchors):
        of_positives = [np.exp(cosine(anchor, other) / 0.05) for other in positives]
        of_negatives = [np.exp(cosine(anchor, other) / 0.05) for other in negatives]
        total -= np.log(of_positives[i] / (sum(of_positives) + sum(of_negatives)))
    return [(total, len(anchors))]


def own(p, b):
    (queries, *documents), _ = texts_of(p, b)
    scores = 20 * np.array([[cosine(q, d) for q, d in zip(queries, text, strict=True)]
                            for text in documents])  # fmt: skip
    return [((np.log(np.nansum(np.exp(scores), 0)) - scores[0]).sum(), len(queries))]


def angle(a, b):
    """|sum of the parts of the quotient of two complex vectors of length 1|."""
    a, b = a / np.linalg.norm(a), b / np.linalg.norm(b)
    a, b = (x[: len(x) // 2] + 1j * x[len(x) // 2 :] for x in (a, b))
    product = (a * b.conj()).sum()
    return abs(product.real + product.imag)


def ordered(similarity):
    def definition(p, b):
        (first, second, *_), (numbers, *_) = texts_of(p, b)
        s = [similarity(x, y) for x, y in zip(first, second, strict=True)]
        apart = [np.exp(20 * (s[i] - s[j])) for i in range(len(s)) for j in range(len(s))
                 if numbers[i] < numbers[j]]  # fmt: skip
        return [(len(s) * np.log(1 + sum(apart)), len(s))]

    return definition


def squared(p, b):
    (first, second, *_), (numbers, *_) = texts_of(p, b)
    found = np.array([cosine(x, y) for x, y in zip(first, second, strict=True)])
    return [(((found - numbers) ** 2).sum(), len(found))]


def triplets(p, b):
    (a, positive, *negatives), _ = texts_of(p, b)
    terms = [np.maximum(0.0, 5 - distance(a[i], positive[i]) + distance(a[i], text[i]))
             for text in negatives for i in range(len(a))]  # fmt: skip
    return [(np.nansum(terms), np.isfinite(terms).sum())]


def margins(p, b):
    (a, positive, *negatives), scores = texts_of(p, b)
    terms = [
        (a[i] @ positive[i] - a[i] @ text[i] - (scores[0][i] - scores[n][i])) ** 2
        for n, text in enumerate(negatives, 1)
        for i in range(len(a))
    ]
    return [(np.nansum(terms), np.isfinite(terms).sum())]


def soft(p, b):
    (a, *others), scores = texts_of(p, b)
    total = 0.0
    for i in range(len(a)):
        model = np.exp([a[i] @ text[i] / 2 for text in others])
        teacher = np.where(np.isfinite(model), np.exp(scores[:, i] / 0.5), np.nan)
        model, teacher = model / np.nansum(model), teacher / np.nansum(teacher)
        total += 4 * np.nansum(teacher * np.log(teacher / model))
    return [(total, len(a))]


SYMMETRIC = {"directions": EVERY[:1] + EVERY[2:3], "partition": "per_direction"}
CASES = {
    "pairs": (MultipleNegatives(), ranked(EVERY[:1], "joint"), 2),
    "negatives": (MultipleNegatives(), ranked(EVERY[:1], "joint"), 4),
    "supervised simcse": (MultipleNegatives(), simcse, 3),
    "symmetric": (MultipleNegatives(**SYMMETRIC), ranked(*SYMMETRIC.values()), 3),
    "every direction": (MultipleNegatives(directions=EVERY), ranked(EVERY, "joint"), 3),
    "own negatives": (MultipleNegatives(in_batch=False), own, 4),
    "cosent": (CoSENT(), ordered(cosine), 2),
    "angle": (AnglE(), ordered(angle), 2),
    "error": (SimilarityError(), squared, 2),
    "triplets": (Triplet(), triplets, 4),
    "margins": (MarginError(), margins, 4),
    "soft": (SoftRanking(temperature=2.0, teacher_temperature=0.5), soft, 4),
}


@pytest.mark.parametrize("name", CASES)
def test_a_loss_is_its_definition(name):
    objective, definition, texts = CASES[name]
    check(objective, definition, batch=batch_of(texts), leaves=("match",))


@pytest.mark.parametrize("name", ["negatives", "every direction", "own negatives", "triplets",
                                  "margins", "soft"])  # fmt: skip
def test_an_absent_negative_is_in_no_loss(name):
    """Of three groups one has two negatives, one has one, and one has none."""
    objective, definition, _ = CASES[name]
    check(objective, definition, batch=batch_of(4, 6, absent=(7, 10, 11)), leaves=("match",))


@pytest.mark.parametrize("similarity", [CosineScore(), Dot(), Euclidean(), Manhattan()])
def test_a_matrix_has_the_scores_of_all_pairs(similarity):
    draw = np.random.default_rng(0)
    a, b = (jnp.asarray(draw.normal(size=(n, 6)), jnp.float32) for n in (3, 4))
    pairs = [[similarity.paired(x, y) for y in b] for x in a]
    np.testing.assert_allclose(similarity.matrix(a, b), pairs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("mode", MODES)
def test_the_head_pools_as_encode_does(mode):
    draw = np.random.default_rng(1)
    hidden = draw.normal(size=(3, 5, 4)).astype(np.float32)
    mask = np.arange(5) < [[5], [2], [1]]
    found = TextVector(modes=(mode,)).apply({}, hidden, jnp.asarray(mask))
    np.testing.assert_allclose(found, pooled(mode, hidden, mask), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"scale": 0}, "above 0"),
        ({"directions": ("query_to_dog",)}, "query_to_doc"),
        ({"directions": ("doc_to_query",)}, "need query_to_doc"),
        ({"directions": EVERY, "partition": "per_direction"}, "partition='joint'"),
        ({"in_batch": False, "directions": EVERY}, "leave directions out"),
    ],
)
def test_settings_that_give_no_loss_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        MultipleNegatives(**fields)


def test_negatives_of_its_own_are_needed():
    for loss in (MultipleNegatives(in_batch=False), Triplet(), MarginError()):
        with pytest.raises(ValueError, match="no negatives"):
            loss.judged(jnp.zeros((8, 4)), batch_of(2))
