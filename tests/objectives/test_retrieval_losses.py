"""FLOPS and its schedule, and ranking by MaxSim: values against numpy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.objectives.sentences.late_interaction import MaxSim
from ptm_jax.objectives.sentences.margins import SoftRanking
from ptm_jax.objectives.sentences.multiple_negatives import MultipleNegatives
from ptm_jax.objectives.sentences.similarities import Dot
from ptm_jax.objectives.sentences.sparsity import Sparse

GROUPS, TEXTS, WORDS = 4, 3, 20


def batch(real=None, **fields):
    real = np.ones((GROUPS, TEXTS)) if real is None else real
    scores = np.random.default_rng(5).normal(size=(GROUPS, TEXTS - 1)).astype(np.float32)
    return {
        "input_ids": jnp.ones((GROUPS * TEXTS, 2), jnp.int32),
        "segment_ids": jnp.asarray(np.repeat(real.reshape(-1, 1), 2, 1), jnp.int32),
        "text_scores": jnp.asarray(np.repeat(scores, TEXTS, 0)),
        **fields,
    }


def softmax_nll(scores, places):
    return np.mean([np.log(np.exp(r).sum()) - r[p] for r, p in zip(scores, places, strict=True)])


@pytest.mark.parametrize(("step", "share"), [(0, 0), (1, 1 / 16), (2, 1 / 4), (4, 1), (9, 1)])
def test_flops_grow_with_the_square_of_the_step(step, share):
    draw = np.random.default_rng(0)
    vectors = np.maximum(draw.normal(size=(GROUPS, TEXTS, WORDS)), 0).astype(np.float32)
    real = np.ones((GROUPS, TEXTS))
    real[3] = 0  # a row of padding
    task = MultipleNegatives(scale=1.0, similarity=Dot())
    loss = Sparse(task=task, queries=0.3, documents=0.2, warmup=4)
    flat = jnp.asarray(vectors.reshape(-1, WORDS))
    made = loss.judged(flat, batch(real, step=jnp.int32(step)))
    used = vectors[:3].astype(np.float64)
    documents = used[:, 1:].transpose(1, 0, 2).reshape(-1, WORDS)
    ranking = softmax_nll(used[:, 0] @ documents.T, range(3))
    flops = [np.square(part.mean(0)).sum() for part in (used[:, 0], documents)]
    expected = ranking + share * (0.3 * flops[0] + 0.2 * flops[1])
    assert float(made.value()) == pytest.approx(expected, rel=1e-5)
    words = made.metrics["words_documents"]
    assert float(words.sum / words.weight) == pytest.approx((documents > 0).sum(1).mean())
    evaluated = loss.judged(flat, batch(real))
    assert float(evaluated.value()) == pytest.approx(ranking + 0.3 * flops[0] + 0.2 * flops[1])


@pytest.mark.parametrize("fields", [{"queries": -1.0}, {"documents": np.inf}, {"warmup": -1}])
def test_wrong_weights_are_refused(fields):
    with pytest.raises(ValueError, match="must be|finite"):
        Sparse(task=MultipleNegatives(), **fields)


def test_ranking_and_distillation_by_maxsim():
    """In-batch and hard negatives, and KL over the scores of a group."""
    draw = np.random.default_rng(1)
    tokens = draw.normal(size=(GROUPS * TEXTS, 5, 6)).astype(np.float32)
    real = (draw.random((GROUPS * TEXTS, 5)) > 0.3).astype(np.float32)
    real[:, 0] = 1
    tree = {"tokens": jnp.asarray(tokens), "real": jnp.asarray(real)}

    def score(a, b):
        products = tokens[a].astype(np.float64) @ tokens[b].T
        best = np.where(real[b] > 0, products, -np.inf).max(1)
        return (best * real[a]).sum()

    queries = [TEXTS * g for g in range(GROUPS)]
    documents = [q + k for k in range(1, TEXTS) for q in queries]
    scores = np.array([[score(q, d) for d in documents] for q in queries])
    ranking = MultipleNegatives(scale=0.5, similarity=MaxSim())
    made = jax.jit(ranking.judged)(tree, batch())
    assert float(made.value()) == pytest.approx(softmax_nll(0.5 * scores, range(GROUPS)), rel=1e-5)
    own = scores.reshape(GROUPS, TEXTS - 1, GROUPS)[range(GROUPS), :, range(GROUPS)]
    teacher = np.asarray(batch()["text_scores"])[::TEXTS]

    def logs(x):
        return x - np.log(np.exp(x).sum(1, keepdims=True))

    kl = (np.exp(logs(teacher)) * (logs(teacher) - logs(own))).sum(1).mean()
    distilled = SoftRanking(similarity=MaxSim()).judged(tree, batch())
    assert float(distilled.value()) == pytest.approx(kl, rel=1e-5)
