"""Heads of keys that several queries share, norms of queries and keys, soft caps of scores and
logits, gated layers: definitions in numpy, decoding, meshes and kernels."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.core.errors import UserError
from ptm_jax.core.types import Visibility, Vocab
from ptm_jax.encoders.transformer.transformer import transformer
from ptm_jax.kernels import cross_entropy
from ptm_jax.kernels.attention import candidates, splash
from ptm_jax.kernels.attention.arguments import Arguments
from ptm_jax.kernels.cross_entropy import tpu
from ptm_jax.nn.attention.multihead import Attention
from ptm_jax.nn.attention.rotary import Rotary
from ptm_jax.nn.blocks import FeedForward
from ptm_jax.nn.heads.transformed import TransformedMean
from ptm_jax.nn.heads.vocabulary import LMHead, SoftCapped, TwoLayerHead
from ptm_jax.nn.initializers import Normal
from ptm_jax.nn.layers import Context, RMSNorm
from support import bare_layers

B, L, D, H, G, K = 2, 7, 12, 4, 2, 6
STD = Normal(0.6)
LAYER = Attention(
    heads=H, width=D, head_width=K, key_heads=G, qk_norm=RMSNorm(1e-5), cap=1.5, bias=False,
    rotary=Rotary(theta=50.0, interleave=True), initializer=STD,
)  # fmt: skip


def rms(x, scale, eps=1e-5):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * scale


def turned(x, theta=50.0):
    angles = np.arange(x.shape[0])[:, None, None] * theta ** -(np.arange(0, K, 2) / K)
    y = (x[..., ::2] + 1j * x[..., 1::2]) * np.exp(1j * angles)
    return np.stack([y.real, y.imag], -1).reshape(x.shape)


def definition(x, p, sees):
    """One row x [L, D]: loops over heads; query head h reads key head h // (H / G)."""
    q, k, v = (np.einsum("ld,dhk->lhk", x, p[name]["kernel"]) for name in ("query", "key", "value"))
    q, k = (turned(rms(y, p[f"{n}_norm"]["scale"])) for n, y in (("query", q), ("key", k)))
    out = np.zeros(x.shape)
    for head in range(H):
        scores = q[:, head] @ k[:, head * G // H].T / np.sqrt(K)
        scores = np.where(sees, np.exp(1.5 * np.tanh(scores / 1.5)), 0.0)
        weights = scores / np.maximum(scores.sum(-1, keepdims=True), 1e-30)
        out += weights @ v[:, head * G // H] @ p["out"]["kernel"][head]
    return out


@pytest.fixture(scope="module")
def drawn():
    x = jax.random.normal(jax.random.key(1), (B, L, D))
    segments = jnp.array([[1] * L, [1] * 5 + [0, 0]], jnp.int32)
    context = Context(visibility=Visibility(jnp.maximum(segments, 1), segments), rows=jnp.arange(B))
    params = bare_layers.begun(LAYER, x, context)
    params["query_norm"]["scale"] *= 1.7
    params["key_norm"]["scale"] += 0.3
    return x, context, params


@pytest.mark.parametrize("impl", ["reference", "xla"])
def test_the_layer_is_its_definition(drawn, impl):
    x, context, params = drawn
    assert params["key"]["kernel"].shape == (D, G, K) and params["key_norm"]["scale"].shape == (K,)
    layer = dataclasses.replace(LAYER, impl=impl)
    out, probabilities, _ = bare_layers.run(layer, params, x, context)
    p = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
    for row in range(B):
        sees = np.asarray(context.visibility.k_segments[row] > 0)[None]
        expected = definition(np.asarray(x[row], np.float64), p, sees)
        np.testing.assert_allclose(out[row], expected, atol=2e-5)
    assert (probabilities is not None) == (impl == "reference")


def test_every_kernel_computes_the_cap_or_says_why_not(drawn):
    """The chooser passes over what refuses; a named implementation raises in one line."""
    x, context, params = drawn
    q = jnp.zeros((1, 256, 2, 64), jnp.bfloat16)
    ones = jnp.ones((1, 256), jnp.int32)
    args = Arguments(Visibility(ones, ones), 0.1, cap=30.0)
    for name in ("native", "pallas", "splash", "cudnn"):
        for one in candidates.CANDIDATES:
            if one.name == name:
                assert "no soft cap" in one.load().refusal(q, q, args)
    assert "cap" in candidates.class_of(q, q, args).extras
    assert splash.refusal(q, q, dataclasses.replace(args, cap=None)) != splash.refusal(q, q, args)
    with pytest.raises(UserError, match="soft cap"):
        dataclasses.replace(LAYER, impl="native").apply({"params": params}, x, context)


@pytest.mark.parametrize("key_heads", [pytest.param(1, marks=pytest.mark.full), 2])
def test_step_by_step_equals_the_whole_row(key_heads):
    """The cache holds key_heads heads of turned and normed keys."""
    sizes = dict(vocab=Vocab(size=30), layers=2, width=D, heads=H, hidden=10, dropout=0.0)
    core = transformer(**sizes, direction="causal", initializer=STD)
    layer = dataclasses.replace(LAYER, head_width=None, key_heads=key_heads, rotary=None)
    block = dataclasses.replace(core.stack.block, attention=layer)
    core = dataclasses.replace(core, stack=dataclasses.replace(core.stack, block=block))
    ids = np.random.default_rng(0).integers(0, 30, (2, 9)).astype(np.int32)
    params = jax.jit(core.init)(jax.random.key(0), {"input_ids": ids})
    run = jax.jit(lambda ids, cache: core.apply(params, {"input_ids": ids}, cache=cache))
    whole, cache, parts = run(ids, None).hidden, core.empty_cache(2, 12), []
    assert cache.layers.key.shape == (2, 2, 12, key_heads, D // H)
    for start, end in ((0, 4), (4, 5), (5, 9)):
        encoded = run(ids[:, start:end], cache)
        cache, _ = encoded.cache, parts.append(encoded.hidden)
    np.testing.assert_allclose(np.concatenate(parts, 1), whole, atol=1e-5)


def test_heads_that_do_not_divide_are_refused(drawn):
    x, context, _ = drawn
    with pytest.raises(ValueError, match="4 heads are not a multiple of 3 heads of keys"):
        dataclasses.replace(LAYER, key_heads=3).init(jax.random.key(0), x, context)


@pytest.mark.parametrize("order", ["gate first", "gate last"])
def test_gated_layers_in_both_orders_of_halves(order):
    """silu(x A) * x B: `up` is A in either order of a published [A, B] or [B, A]."""
    x = np.random.default_rng(3).normal(size=(B, L, D)).astype(np.float32)
    halves = np.random.default_rng(4).normal(size=(2, D, 10)).astype(np.float32)
    down = np.random.default_rng(5).normal(size=(10, D)).astype(np.float32)
    a, b = halves if order == "gate first" else halves[::-1]
    layer = FeedForward(10, "silu", gated=True, bias=False)
    params = {"up": {"kernel": a}, "gate": {"kernel": b}, "down": {"kernel": down}}
    out = layer.apply({"params": params}, x, Context(visibility=None, rows=None))
    inner = x @ a
    np.testing.assert_allclose(out, (inner / (1 + np.exp(-inner)) * (x @ b)) @ down, atol=1e-3)


def test_capped_logits_and_their_loss():
    """cap tanh(z / cap) on both paths of the cross-entropy, with gradients, and at a temperature of
    distillation."""
    draw = np.random.default_rng(6)
    hidden, table = draw.normal(size=(5, D)), draw.normal(size=(700, D))
    labels = draw.integers(0, 700, 5)
    head = SoftCapped(LMHead(vocab=Vocab(size=700)), cap=2.0)
    assert head.shares_table and head.scores_words

    def readout(hidden):
        return head.apply({}, hidden, table=jnp.asarray(table, jnp.float32))

    z = 2.0 * np.tanh(hidden @ table.T / 2.0)
    p = np.exp(z) / np.exp(z).sum(-1, keepdims=True)
    nll = -np.log(p[np.arange(5), labels])
    slope = (p - np.eye(700)[labels]) * (1 - (z / 2.0) ** 2) @ table
    for impl in ("reference", "xla"):

        def loss(hidden, impl=impl):
            return dataclasses.replace(readout(hidden), impl=impl).nll(labels).sum()

        value, grad = jax.jit(jax.value_and_grad(loss))(jnp.asarray(hidden, jnp.float32))
        np.testing.assert_allclose(value, nll.sum(), rtol=1e-5)
        np.testing.assert_allclose(grad, slope, atol=1e-4)
    one = readout(jnp.asarray(hidden, jnp.float32))
    np.testing.assert_allclose(one.logits(), z, atol=1e-5)
    other = dataclasses.replace(one.linear, features=one.features[::-1])
    q = np.exp(z[::-1] / 3.0) / np.exp(z[::-1] / 3.0).sum(-1, keepdims=True)
    r = np.exp(z / 3.0) / np.exp(z / 3.0).sum(-1, keepdims=True)
    divergence = cross_entropy.distillation(one.linear, other, temperature=3.0)
    np.testing.assert_allclose(divergence, (q * np.log(q / r)).sum(-1), atol=1e-5)
    assert "no soft cap" in tpu.refusal("tpu", D, True)


def test_a_cap_keeps_the_paths_of_its_head():
    hidden, table = jnp.ones((1, 1, D)), jnp.ones((9, D))
    head = TwoLayerHead(vocab=Vocab(size=9), hidden=5, initializer=STD)
    plain, capped = (
        one.init(jax.random.key(0), hidden, table=table)
        for one in (head, SoftCapped(head, cap=1.0))
    )
    assert jax.tree.structure(plain) == jax.tree.structure(capped)
    p = jax.tree.map(np.asarray, plain["params"])

    def act(x):
        return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))

    features = act(act(np.ones(D) @ p["first"]["kernel"]) @ p["second"]["kernel"])
    logits = head.apply(plain, hidden, table=table).logits()[0, 0]
    np.testing.assert_allclose(logits, p["table"] @ features, atol=1e-5)
    with pytest.raises(ValueError, match="above 0"):
        SoftCapped(head, cap=0.0).init(jax.random.key(0), hidden, table=table)


def test_late_pooling_is_the_mean_of_the_tokens_logits():
    """A linear layer on the mean of transformed states is the mean of its results."""
    hidden = np.random.default_rng(7).normal(size=(2, 4, D)).astype(np.float32)
    where = jnp.array([[1, 1, 1, 1], [1, 1, 0, 0]], jnp.float32)
    summary = TransformedMean("tanh", at="mean", initializer=STD)
    params = summary.init(jax.random.key(0), hidden, where)
    p, w = params["params"]["dense"], np.random.default_rng(8).normal(size=(D, 3))
    logits = (np.tanh(hidden @ p["kernel"] + p["bias"]) @ w) * np.asarray(where)[..., None]
    expected = logits.sum(1) / np.asarray(where).sum(1)[:, None]
    np.testing.assert_allclose(summary.apply(params, hidden, where) @ w, expected, atol=1e-5)
