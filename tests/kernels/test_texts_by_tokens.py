"""The largest score of each word, and MaxSim: against their definitions, and what they keep."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.core.precision import Precision
from ptm_jax.kernels import maxsim
from ptm_jax.kernels.token_maximum import largest_scores

B, L, D, V = 3, 7, 8, 1300


def drawn(*shapes):
    draw = np.random.default_rng(0)
    return [jnp.asarray(draw.normal(size=shape), jnp.float32) for shape in shapes]


def close(fast, slow, operands):
    """Compares a function and its gradients with the definition."""
    numbers = range(len(operands))
    pairs = zip(
        jax.tree.leaves(jax.value_and_grad(fast, numbers)(*operands)),
        jax.tree.leaves(jax.value_and_grad(slow, numbers)(*operands)),
        strict=True,
    )
    for one, other in pairs:
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("biased", [True, False])
def test_sparse_weights_are_their_definition(biased):
    """Several blocks of words, the last of another size; the third row has no token."""
    features, table, bias, grad = drawn((B, L, D), (V, D), (V,), (B, V))
    real = jnp.asarray(np.random.default_rng(1).random((B, L)) > 0.3).at[2].set(False)

    def fast(features, table, *bias):
        scores = largest_scores(features, table, *(bias or [None]), real, Precision())
        return (jnp.log1p(jax.nn.relu(scores)) * grad).sum()

    def slow(features, table, *bias):
        logits = jnp.einsum("bld,vd->blv", features, table, precision="highest") + sum(bias)
        return ((jnp.log1p(jax.nn.relu(logits)) * real[..., None]).max(1) * grad).sum()

    close(fast, slow, (features, table, bias)[: 2 + biased])


def test_no_logits_of_all_tokens_are_kept():
    """The largest array of the gradient's program is the table, not rows by tokens by words."""
    rows, length, words = 64, 128, 8192
    operands = (
        jax.ShapeDtypeStruct((rows, length, D), jnp.float32),
        jax.ShapeDtypeStruct((words, D), jnp.float32),
    )
    real = jax.ShapeDtypeStruct((rows, length), bool)

    def loss(features, table, real):
        return largest_scores(features, table, None, real, Precision()).sum()

    program = jax.jit(jax.grad(loss, (0, 1))).lower(*operands, real).compile()
    assert program.memory_analysis().temp_size_in_bytes < rows * length * words * 4 / 8


@pytest.mark.parametrize("products", [1 << 22, 250, 1])
def test_maxsim_is_its_definition(products, monkeypatch):
    """One block of documents, several of which the last is filled up, one a document. A document
    without tokens has the score 0."""
    monkeypatch.setattr(maxsim, "PRODUCTS", products)
    queries, documents, grad = drawn((5, 4, 8), (9, 6, 8), (5, 9))
    draw = np.random.default_rng(2)
    asked, real = (jnp.asarray(draw.random(s) > 0.3, jnp.float32) for s in ((5, 4), (9, 6)))
    real = real.at[3].set(0)

    def slow(queries, documents):
        products = jnp.einsum("nqf,mtf->nmqt", queries, documents, precision="highest")
        best = jnp.where(real[None, :, None] > 0, products, -1e30).max(-1)
        best = jnp.where(real.any(-1)[None, :, None], best, 0) * asked[:, None]
        return (best.sum(-1) * grad).sum()

    close(lambda q, d: (maxsim.matrix(q, asked, d, real) * grad).sum(), slow, (queries, documents))
    scores = maxsim.matrix(queries, asked, documents, real)
    pairs = maxsim.paired(queries, asked, documents[:5], real[:5])
    np.testing.assert_allclose(pairs, np.diagonal(scores), rtol=1e-5, atol=1e-6)


def test_maxsim_keeps_no_products_of_all_texts():
    """64 by 64 texts of 64 tokens have 67 MB of products; the gradient's program has a block."""
    shapes = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((64, 64, 8), (64, 64))]

    def loss(queries, asked, documents, real):
        return maxsim.matrix(queries, asked, documents, real).sum()

    program = jax.jit(jax.grad(loss, (0, 2))).lower(*shapes, *shapes).compile()
    assert program.memory_analysis().temp_size_in_bytes < 64**4 * 4
    assert "64,64,64,64" not in program.as_text()
