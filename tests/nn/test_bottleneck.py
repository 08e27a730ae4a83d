"""MobileBERT's layers beside definitions in numpy: trigrams that know documents, blocks in a
bottleneck."""

import jax.numpy as jnp
import numpy as np

from ptm_jax.core.paths import flatten
from ptm_jax.core.types import Vocab
from ptm_jax.nn.attention.multihead import Attention
from ptm_jax.nn.blocks import Block, FeedForward
from ptm_jax.nn.bottleneck import (
    Bottleneck,
    Expansion,
    FeedForwards,
    Narrowing,
    ScaleShift,
    WideAttention,
)
from ptm_jax.nn.heads.vocabulary import MLMHead
from support.bare_layers import context_of, drawn, run
from support.by_hand import softmax

DRAW = np.random.default_rng(0)
X = DRAW.normal(size=(1, 4, 6)).astype(np.float32)


def test_trigrams_stay_in_their_document():
    segments = np.array([[1, 1, 2, 0]])
    module = Expansion(5)
    params = drawn(module, X, {})
    out, kernel = run(module, params, X, {"segment_ids": segments}), params["dense"]["kernel"]
    zero = np.zeros(6)
    next_, last = (
        [X[0, 1], zero, X[0, 3], zero],
        [zero, X[0, 0], zero, X[0, 2]],
    )  # padding is read, another document is not
    expected = np.concatenate([next_, X[0], last], -1) @ kernel
    np.testing.assert_allclose(out[0], expected + params["dense"]["bias"], atol=1e-5)
    alone, expected = (
        run(module, params, X, {})[0, 1],
        np.concatenate([X[0, 2], X[0, 1], X[0, 0]]) @ kernel,
    )
    np.testing.assert_allclose(alone, expected + params["dense"]["bias"], atol=1e-5)


def test_trigrams_do_not_read_the_slots_of_the_bucket():
    """Three tokens in a bucket of five give what they give alone; the caller's own padding (segment
    0) is read."""
    module, row = Expansion(5), X[:, :3]
    params = drawn(module, X, {})
    alone, longer = run(module, params, row, {}), np.concatenate([row, X[:, :2]], 1)
    found = run(
        module,
        params,
        longer,
        {"in_row": np.array([[1, 1, 1, 0, 0]]), "segment_ids": np.array([[1, 1, 0, 0, 0]])},
    )
    np.testing.assert_allclose(found[:, :3], alone, atol=1e-6)


def test_a_bottleneck_is_its_definition():
    """Queries and keys from a narrow view of their own, values from the states, two feed-forward
    layers."""
    ffn = FeedForward(5, "relu")
    wide = WideAttention(Attention(heads=1, width=3), Narrowing(3, ScaleShift()))
    cross = FeedForwards((ffn.clone(),), (ScaleShift(),))
    block = Block(
        attention=wide, ffn=ffn, attention_norm=ScaleShift(), ffn_norm=ScaleShift(), cross=cross
    )
    module = Bottleneck(block, Narrowing(3, ScaleShift()), norm=ScaleShift())
    params = drawn(module, X, context_of(1, 4))
    out, maps, _ = run(module, params, X, context_of(1, 4))
    p = flatten(params)

    def dense(name, x):
        kernel, bias = p[f"{name}/kernel"], p[f"{name}/bias"].reshape(-1)
        return x @ kernel.reshape(x.shape[-1], -1) + bias

    def norm(name, x):
        return x * p[f"{name}/scale"] + p[f"{name}/bias"]

    def within(name, x):
        return norm(f"{name}/norm", dense(f"{name}/dense", x))

    def forward(name, x):
        return dense(f"{name}/down", np.maximum(dense(f"{name}/up", x), 0))

    x, inner = X[0], "block/attention/attention"
    h, shared = within("narrow", x), within("block/attention/shared", x)
    scores = dense(f"{inner}/query", shared) @ dense(f"{inner}/key", shared).T / 3**0.5
    np.testing.assert_allclose(maps[0, 0], softmax(scores), atol=1e-5)
    h = norm(
        "block/attention_norm",
        h + dense(f"{inner}/out", softmax(scores) @ dense(f"{inner}/value", x)),
    )
    h = norm("block/cross/norms_0", h + forward("block/cross/ffns_0", h))
    h = norm("block/ffn_norm", h + forward("block/ffn", h))
    np.testing.assert_allclose(out[0], norm("norm", x + dense("widen", h)), atol=1e-4)


def test_a_vocabulary_head_wider_than_its_table():
    table = jnp.asarray(DRAW.normal(size=(7, 2)), jnp.float32)
    head = MLMHead(Vocab(size=7), width=6)
    params = drawn(head, X, table=table)
    readout = run(head, params, X, table=table)
    assert params["rest"].shape == (7, 4) and readout.features.shape == X.shape
    whole = np.concatenate([table, params["rest"]], -1)
    np.testing.assert_allclose(
        readout.logits(), np.asarray(readout.features) @ whole.T + params["bias"], atol=1e-5
    )
