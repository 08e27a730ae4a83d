"""Task heads against numpy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.core.types import Encoded, Vocab
from ptm_jax.nn.heads.pooling import AttentiveSummary, Summary, last_of, last_token
from ptm_jax.nn.heads.pretraining import BoundaryHead, Detector, Score
from ptm_jax.nn.heads.task_heads import ChoiceHead, SequenceHead, SpanHead, SummaryHead, TokenHead
from support.bare_layers import dense, drawn, norm, run
from support.by_hand import gelu

B, L, D, V = 4, 6, 8, 11
HIDDEN = np.random.default_rng(0).normal(size=(B, L, D)).astype(np.float32)
FIRST = HIDDEN[:, 0]


def begin(head, *inputs, **options):
    """(result, parameters)."""
    params = drawn(head, *inputs, **options)
    return run(head, params, *inputs, **options), params


def test_the_boundary_head_reads_both_ends_and_the_place():
    left, right, offset = (
        HIDDEN[:, :2],
        HIDDEN[:, 2:4],
        np.asarray([[0, 1], [2, 30], [3, 0], [1, 2]]),
    )
    table = np.random.default_rng(1).normal(size=(V, 5)).astype(np.float32)
    head = BoundaryHead(vocab=Vocab(size=V), places=4, place_width=3)
    readout, p = begin(head, left, right, offset, table=table)
    h = np.concatenate([left, right, p["place"][np.minimum(offset, 3)]], -1)
    for name in ("first", "second"):
        h = norm(gelu(dense(p[name], h)), p[f"{name}_norm"])
    np.testing.assert_allclose(readout.logits(), h @ table.T + p["bias"], atol=1e-4)
    assert BoundaryHead(vocab=Vocab(size=V)).place_width == 200


@pytest.mark.parametrize("activation", ["gelu", "tanh", "none"])
@pytest.mark.parametrize("where", [np.array([5, 0, 3, 1]), None], ids=["placed", "first"])
def test_a_summary_reads_one_token(activation, where):
    found, p = begin(SequenceHead(3, Summary(activation)), HIDDEN, where)
    x = HIDDEN[np.arange(B), 0 if where is None else where]
    if activation != "none":
        x = {"gelu": gelu, "tanh": np.tanh}[activation](dense(p["summary"]["dense"], x))
    np.testing.assert_allclose(found, dense(p["classes"], x), atol=1e-5)


def test_a_summary_may_be_a_mean_under_attention():
    """softmax(v tanh(W h + b)) over the tokens of the text; given weights take its place."""
    real = np.arange(L) < np.array([6, 1, 3, 4])[:, None]
    found, p = begin(SequenceHead(3, AttentiveSummary(5)), HIDDEN, real)
    scores = np.tanh(dense(p["summary"]["units"], HIDDEN)) @ p["summary"]["score"]
    powers = np.exp(scores) * real
    weights = powers / powers.sum(-1, keepdims=True)
    means = np.einsum("bl,bld->bd", weights, HIDDEN)
    np.testing.assert_allclose(found, dense(p["classes"], means), atol=1e-5)
    again = run(SequenceHead(3, AttentiveSummary(5)), p, HIDDEN, weights.astype(np.float32))
    np.testing.assert_allclose(again, found, atol=1e-5)


def test_a_summary_may_be_a_mean_and_may_be_bare():
    segments = np.array([[1, 1, 0, 0, 0, 0], [1] * 6, [1] * 6, [0, 1, 1, 1, 1, 1]])
    bare = Summary("tanh", at="mean", project=False)
    inputs = bare.reads(Encoded(HIDDEN), {"input_ids": segments, "segment_ids": segments})
    means = [states[real > 0].mean(0) for states, real in zip(HIDDEN, segments, strict=True)]
    np.testing.assert_allclose(bare.apply({}, *inputs), np.tanh(means), rtol=1e-4)
    head = SummaryHead(Summary("identity", width=3))
    found, p = begin(head, HIDDEN)
    np.testing.assert_allclose(found, dense(p["summary"]["dense"], FIRST), atol=1e-5)
    assert head.classes == 3


def test_where_a_summary_lies():
    segments = jnp.asarray([[1, 1, 2, 2, 0, 0], [0, 0, 1, 1, 1, 1], [0] * 6])
    np.testing.assert_array_equal(last_token(segments), [3, 5, 0])
    ids = jnp.asarray([[2, 7, 2, 1, 1, 1], [0, 3, 4, 5, 6, 2], [0, 0, 0, 0, 0, 0]])
    np.testing.assert_array_equal(last_of(ids, 2), [2, 5, 0])


def test_choices_of_a_question_lie_together():
    found, p = begin(ChoiceHead(2), HIDDEN)
    pooled = np.tanh(dense(p["summary"]["dense"], FIRST))
    np.testing.assert_allclose(found, dense(p["score"], pooled)[:, 0].reshape(2, 2), atol=1e-5)
    with pytest.raises(ValueError, match="not questions of 3"):
        ChoiceHead(3).init(jax.random.key(0), HIDDEN)


@pytest.mark.parametrize(
    ("head", "x", "definition"),
    [
        (Detector(), HIDDEN, lambda p, x: dense(p["score"], gelu(dense(p["dense"], x)))[..., 0]),
        (TokenHead(3), HIDDEN, lambda p, x: dense(p["classes"], x)),
        (SpanHead(), HIDDEN, lambda p, x: np.moveaxis(dense(p["ends"], x), -1, 0)),
        (Score(), FIRST, lambda p, x: dense(p["dense"], x)[:, 0]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_dense_heads_are_their_definitions(head, x, definition):
    found, p = begin(head, x)
    np.testing.assert_allclose(found, definition(p, x), atol=1e-5)


def test_concat_pooling_is_the_last_state_the_maximum_and_the_mean():
    segments = np.array([[1] * 6, [1, 1, 0, 0, 0, 0], [1, 1, 1, 1, 0, 0], [1, 0, 0, 0, 0, 0]])
    summary = Summary("none", at="concat")
    found = summary.apply(
        {}, *summary.reads(Encoded(jnp.asarray(HIDDEN)), {"segment_ids": jnp.asarray(segments)})
    )
    for row, length in enumerate(segments.sum(1)):
        states = HIDDEN[row, :length]
        np.testing.assert_allclose(
            found[row], np.concatenate([states[-1], states.max(0), states.mean(0)]), atol=1e-6
        )
