"""Task heads against numpy, and the published ones against transformers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

from ptm_jax.core.types import Vocab
from ptm_jax.encoders.model import Model
from ptm_jax.encoders.transformer import Transformer
from ptm_jax.nn.attention.multihead import Attention
from ptm_jax.nn.blocks import Block, FeedForward, Stack
from ptm_jax.nn.embeddings.summed import Embeddings
from ptm_jax.nn.heads.tasks import (
    BoundaryHead,
    ChoiceHead,
    Detector,
    Score,
    SequenceHead,
    SpanHead,
    Summary,
    TokenHead,
    last_of,
    last_token,
)
from ptm_jax.nn.initializers import Normal

B, L, D, V = 4, 6, 8, 11
HIDDEN = jax.random.normal(jax.random.key(0), (B, L, D))
TABLE = jax.random.normal(jax.random.key(1), (V, 5))
WIDE = Normal(0.5)


def begin(head, *inputs, **options):
    """(result, parameters as float64)."""

    @jax.jit
    def run(inputs, options):
        params = head.init(jax.random.key(2), *inputs, **options)["params"]
        params = jax.tree.map(lambda leaf: leaf + 0.1, params)
        return head.apply({"params": params}, *inputs, **options), params

    found, params = run(inputs, options)
    return found, jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)


def gelu(x):
    return 0.5 * x * (1 + scipy.special.erf(x / np.sqrt(2)))


def dense(p, x):
    return x @ p["kernel"] + p["bias"]


def norm(p, x):
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-12) * p["scale"] + p["bias"]


def test_the_boundary_head_reads_both_ends_and_the_place():
    left, right, offset = HIDDEN[:, :2], HIDDEN[:, 2:4], jnp.asarray([[0, 1], [2, 30], [3, 0], [1, 2]])
    head = BoundaryHead(vocab=Vocab(size=V), places=4, place_width=3, initializer=WIDE)
    readout, p = begin(head, left, right, offset, table=TABLE)
    place = p["place"][np.minimum(offset, 3)]
    h = np.concatenate([left, right, place], -1)
    for name in ("first", "second"):
        h = norm(p[f"{name}_norm"], gelu(dense(p[name], h)))
    np.testing.assert_allclose(readout.logits(), h @ np.asarray(TABLE, np.float64).T + p["bias"], atol=1e-4)
    assert BoundaryHead(vocab=Vocab(size=V)).place_width == 200


def test_the_detector_scores_every_token():
    found, p = begin(Detector(initializer=WIDE), HIDDEN)
    expected = dense(p["score"], gelu(dense(p["dense"], np.asarray(HIDDEN, np.float64))))[..., 0]
    assert found.shape == (B, L)
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("activation", ["gelu", "tanh", "none"])
@pytest.mark.parametrize("placed", [True, False])
def test_a_summary_reads_one_token(activation, placed):
    where = jnp.asarray([5, 0, 3, 1]) if placed else None
    found, p = begin(SequenceHead(3, Summary(activation, initializer=WIDE), initializer=WIDE), HIDDEN, where)
    x = np.asarray(HIDDEN, np.float64)[np.arange(B), where if placed else 0]
    if activation != "none":
        x = {"gelu": gelu, "tanh": np.tanh}[activation](dense(p["summary"]["dense"], x))
    np.testing.assert_allclose(found, dense(p["classes"], x), atol=1e-5)


def test_where_a_summary_lies():
    segments = jnp.asarray([[1, 1, 2, 2, 0, 0], [0, 0, 1, 1, 1, 1], [0] * 6])
    np.testing.assert_array_equal(last_token(segments), [3, 5, 0])
    ids = jnp.asarray([[2, 7, 2, 1, 1, 1], [0, 3, 4, 5, 6, 2], [0, 0, 0, 0, 0, 0]])
    np.testing.assert_array_equal(last_of(ids, 2), [2, 5, 0])


def test_choices_of_a_question_lie_together():
    found, p = begin(ChoiceHead(2, initializer=WIDE), HIDDEN)
    pooled = np.tanh(dense(p["summary"]["dense"], np.asarray(HIDDEN[:, 0], np.float64)))
    np.testing.assert_allclose(found, dense(p["score"], pooled)[:, 0].reshape(2, 2), atol=1e-5)
    with pytest.raises(ValueError, match="not questions of 3"):
        ChoiceHead(3).init(jax.random.key(0), HIDDEN)


def test_tokens_spans_and_scores():
    tokens, p = begin(TokenHead(3, initializer=WIDE), HIDDEN)
    np.testing.assert_allclose(tokens, dense(p["classes"], np.asarray(HIDDEN, np.float64)), atol=1e-5)
    (first, last), p = begin(SpanHead(initializer=WIDE), HIDDEN)
    ends = dense(p["ends"], np.asarray(HIDDEN, np.float64))
    np.testing.assert_allclose(jnp.stack([first, last], -1), ends, atol=1e-5)
    score, p = begin(Score(WIDE), HIDDEN[:, 0])
    np.testing.assert_allclose(score, dense(p["dense"], np.asarray(HIDDEN[:, 0], np.float64))[:, 0], atol=1e-5)


def test_every_head_can_be_initialised_by_a_tower():
    heads = {
        "sbo": BoundaryHead(vocab=Vocab(size=V)),
        "rtd": Detector(),
        "summary": Summary(),
        "score": Score(),
        "sequence": SequenceHead(3),
        "token": TokenHead(3),
        "choice": ChoiceHead(2),
        "span": SpanHead(),
        "next": SequenceHead(2),
    }
    stack = Stack(block=Block(attention=Attention(heads=2, width=D), ffn=FeedForward(8)), layers=1)
    module = Model(encoder=Transformer(embed=Embeddings(vocab=Vocab(size=V), width=D), stack=stack), heads=heads)
    batch = {"input_ids": jnp.zeros((3, 5), jnp.int32)}
    shapes = jax.eval_shape(lambda: module.init(jax.random.key(0), batch, method="initialise"))["params"]
    assert set(shapes) == {"encoder", *(f"heads_{name}" for name in heads)}
