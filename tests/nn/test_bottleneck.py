"""MobileBERT's layers beside definitions in numpy: trigrams that know documents, blocks in a bottleneck."""

import jax
import jax.numpy as jnp
import numpy as np

from ptm_jax.core.paths import flatten
from ptm_jax.core.types import Visibility, Vocab
from ptm_jax.nn.attention.multihead import Attention
from ptm_jax.nn.blocks import Block, FeedForward
from ptm_jax.nn.bottleneck import Bottleneck, Expansion, FeedForwards, Narrowing, ScaleShift, WideAttention
from ptm_jax.nn.heads.vocabulary import MLMHead
from ptm_jax.nn.initializers import Normal
from ptm_jax.nn.layers import Context

DRAW = np.random.default_rng(0)
X = DRAW.normal(size=(1, 4, 6)).astype(np.float32)


def test_trigrams_stay_in_their_document():
    segments = np.array([[1, 1, 2, 0]])
    module = Expansion(5, initializer=Normal(1.0))
    out, params = module.init_with_output(jax.random.key(0), X, {"segment_ids": jnp.asarray(segments)})
    kernel = np.asarray(params["params"]["dense"]["kernel"])
    zero = np.zeros(6)
    next_, last = [X[0, 1], zero, X[0, 3], zero], [zero, X[0, 0], zero, X[0, 2]]  # padding is read, another document is not
    expected = np.concatenate([next_, X[0], last], -1) @ kernel
    np.testing.assert_allclose(out[0], expected, atol=1e-5)
    alone, _ = module.init_with_output(jax.random.key(0), X, {})
    np.testing.assert_allclose(alone[0, 1], np.concatenate([X[0, 2], X[0, 1], X[0, 0]]) @ kernel, atol=1e-5)


def softmax(a):
    return np.exp(a) / np.exp(a).sum(-1, keepdims=True)


def test_a_bottleneck_is_its_definition():
    """Queries and keys from a narrow view of their own, values from the states, two feed-forward layers."""
    ffn = FeedForward(5, "relu", initializer=Normal(0.5))
    attention = Attention(heads=1, width=3, initializer=Normal(0.5))
    wide = WideAttention(attention, Narrowing(3, ScaleShift(), initializer=Normal(0.5)))
    cross = FeedForwards((ffn.clone(),), (ScaleShift(),))
    block = Block(attention=wide, ffn=ffn, attention_norm=ScaleShift(), ffn_norm=ScaleShift(), cross=cross)
    narrow = Narrowing(3, ScaleShift(), initializer=Normal(0.5))
    module = Bottleneck(block, narrow, norm=ScaleShift(), initializer=Normal(0.5))
    context = Context(Visibility(jnp.ones((1, 4), jnp.int32), jnp.ones((1, 4), jnp.int32)), jnp.arange(1))
    params = jax.jit(lambda: module.init(jax.random.key(0), X, context)["params"])()
    noise = lambda a: a + DRAW.normal(size=a.shape).astype(np.float32) * 0.3
    params = jax.tree.map(noise, params)
    out, maps, _ = jax.jit(lambda params: module.apply({"params": params}, X, context))(params)
    p = {k: np.asarray(v) for k, v in flatten(params).items()}

    def dense(name, x):
        kernel, bias = p[f"{name}/kernel"], p[f"{name}/bias"].reshape(-1)
        return x @ kernel.reshape(x.shape[-1], -1) + bias

    norm = lambda name, x: x * p[f"{name}/scale"] + p[f"{name}/bias"]
    within = lambda name, x: norm(f"{name}/norm", dense(f"{name}/dense", x))
    forward = lambda name, x: dense(f"{name}/down", np.maximum(dense(f"{name}/up", x), 0))
    x, inner = X[0], "block/attention/attention"
    h, shared = within("narrow", x), within("block/attention/shared", x)
    scores = dense(f"{inner}/query", shared) @ dense(f"{inner}/key", shared).T / 3**0.5
    np.testing.assert_allclose(maps[0, 0], softmax(scores), atol=1e-5)
    h = norm("block/attention_norm", h + dense(f"{inner}/out", softmax(scores) @ dense(f"{inner}/value", x)))
    h = norm("block/cross/norms_0", h + forward("block/cross/ffns_0", h))
    h = norm("block/ffn_norm", h + forward("block/ffn", h))
    np.testing.assert_allclose(out[0], norm("norm", x + dense("widen", h)), atol=1e-4)


def test_a_vocabulary_head_wider_than_its_table():
    table = jnp.asarray(DRAW.normal(size=(7, 2)), jnp.float32)
    head = MLMHead(Vocab(size=7), width=6, initializer=Normal(0.5))
    readout, params = head.init_with_output(jax.random.key(0), X, table=table)
    assert params["params"]["rest"].shape == (7, 4) and readout.features.shape == X.shape
    whole = np.concatenate([table, params["params"]["rest"]], -1)
    np.testing.assert_allclose(readout.logits(), np.asarray(readout.features) @ whole.T, atol=1e-5)
