"""Knowledge attention with a threshold against its definition in numpy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.core.types import Visibility
from ptm_jax.nn.attention.multihead import Attention
from ptm_jax.nn.blocks import Block, FeedForward, Stack
from ptm_jax.nn.knowledge.knowbert import KAR, Spans
from ptm_jax.nn.layers import Context, LayerNorm
from support.numpy_layers import block, dense, norm

B, L, S, C, D, W = 2, 7, 3, 3, 8, 6


def layer(threshold):
    def norms():
        return {"attention_norm": LayerNorm(), "ffn_norm": LayerNorm()}

    def one():
        return Block(attention=Attention(heads=2, width=W), ffn=FeedForward(hidden=10), **norms())

    return KAR(
        spans=Stack(block=one(), layers=1), words=one(), width=W, hidden=5, threshold=threshold
    )


def given():
    draw = np.random.default_rng(3)
    spans = Spans(
        first=np.array([[0, 2, 5], [1, 0, 0]]),
        last=np.array([[1, 2, 6], [3, 0, 0]]),
        segments=np.array([[1, 1, 1], [1, 0, 0]]),
        candidates=np.array([[[1, 2, 3], [4, 5, 0], [6, 0, 0]], [[7, 2, 0], [0, 0, 0], [0, 0, 0]]]),
        priors=draw.uniform(0, 1, (B, S, C)),
    )
    return (
        draw.normal(size=(B, L, D)),
        spans,
        draw.normal(size=(8, W)),
        np.array([[1] * L, [1] * 5 + [0] * 2]),
    )


def defined(p, states, spans, entities, threshold, row):
    """kb/knowbert.py: the states of a row, the scores of its mentions, and how many mentions are
    linked to nothing."""
    words, used = dense(states, p["project"]), spans.segments[row] > 0
    pooled = []
    for first, last in zip(spans.first[row][used], spans.last[row][used], strict=True):
        part = words[first : last + 1]
        share = np.exp(dense(part, p["pool"]))
        pooled.append((share / share.sum() * part).sum(0))
    mentions = norm(np.array(pooled), p["span_norm"], 1e-5)
    everything = np.ones((len(mentions), len(mentions)), bool)
    mentions = block(mentions, everything, jax.tree.map(lambda leaf: leaf[0], p["spans"]["block"]))
    known, scores, nothing = [], [], 0
    for mention, some, priors in zip(
        mentions, spans.candidates[row][used], spans.priors[row][used], strict=True
    ):
        vectors = norm(entities[some[some > 0]], p["entity_norm"], 1e-5)
        both = np.stack([vectors @ mention / np.sqrt(W), priors[some > 0]], -1)
        score = dense(np.maximum(dense(both, p["match"]), 0), p["score"])[:, 0]
        over = np.ones(len(score), bool) if threshold is None else score >= threshold
        weights = np.exp(score[over])
        known.append(
            mention + (weights @ vectors[over] / weights.sum() if over.any() else entities[0])
        )
        scores.append(score)
        nothing += not over.any()
    known = norm(np.array(known), p["mention_norm"], 1e-5)
    attended = block(words, np.ones((len(words), len(known)), bool), p["words"], known)
    return norm(states + dense(attended, p["back"]), p["out_norm"], 1e-5), scores, nothing


@pytest.mark.parametrize("threshold", [None, 0.0])
def test_candidates_below_the_threshold_have_no_weight(threshold):
    """A mention whose candidates are all below it gets the vector of no entity, row 0 of the
    table."""
    made, (states, spans, entities, segments) = layer(threshold), given()
    context = Context(
        visibility=Visibility(jnp.maximum(segments, 1), segments), rows=jnp.arange(B), train=False
    )
    shapes = jax.eval_shape(lambda: made.init(jax.random.key(0), states, spans, entities, context))[
        "params"
    ]
    draw = np.random.default_rng(2)
    params = jax.tree.map(lambda leaf: draw.normal(0, 0.6, leaf.shape), shapes)
    found, scores = jax.jit(
        lambda: made.apply(
            {"params": params}, jnp.float32(states), spans, jnp.float32(entities), context
        )
    )()
    below = nothing = 0
    for row in range(B):
        wanted, several, none = defined(params, states[row], spans, entities, threshold, row)
        real = segments[row] > 0
        np.testing.assert_allclose(found[row][real], wanted[real], atol=2e-5)
        for number, its in enumerate(several):
            np.testing.assert_allclose(scores[row, number][: len(its)], its, atol=2e-5)
            assert (np.asarray(scores[row, number])[len(its) :] == -1e4).all()
            below += (its < 0).any() and (its >= 0).any()
        nothing += none
    assert threshold is None or (below and nothing), "the mentions cover both cases"
