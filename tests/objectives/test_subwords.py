"""fastText's update of words and n-grams against plain numpy; a sparse step is the dense one; the
rows of a word."""

import dataclasses
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax import systems
from ptm_jax.core import facts, spec
from ptm_jax.core.recipe import SGD, Constant, Phase
from ptm_jax.core.types import Vocab
from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec
from ptm_jax.data.tokenizers.vocabularies import make
from ptm_jax.kernels import words
from ptm_jax.kernels.updates import Sampling
from ptm_jax.mesh import rules
from ptm_jax.objectives.vectors.windows import NegativeSampling
from ptm_jax.statistics.hashed_ngrams import ngrams_of
from ptm_jax.statistics.subwords import HashedNGrams
from ptm_jax.training.steps.step import program
from ptm_jax.training.updates import in_place

ROWS = [[], [], [], [1, 4, 1], [9], [2, 3, 4, 5], [], [0, 11], [11], [7, 8], [6, 6], [10]]
"""The n-grams of 12 words in 12 buckets; the first three are special."""
VALUES = np.concatenate([[0], np.cumsum([len(row) for row in ROWS]), sum(ROWS, [])]).astype(
    np.int32
)


def small(name, rows=1, updates=1, width=4, limit=None):
    """A system on the words of `ROWS`, with random parameters, and a batch of random words."""
    vocab = Vocab(size=len(ROWS), pad=0, eos=1, unk=2)
    system = spec.with_field(
        spec.respell(systems.get(name), Vocab, lambda _: vocab), "width", width
    )
    system = facts.stand_ins(spec.with_field(system, "buckets", 12), vocab)
    system = spec.respell(system, HashedNGrams, lambda fact: fact.filled(VALUES))
    phases = (Phase(steps=10, batch=rows, length=20),)
    fields = {
        "optimizer": SGD(row_limit=limit),
        "schedule": Constant(),
        "lr": 1.0,
        "updates": updates,
    }
    recipe = dataclasses.replace(system.recipe, phases=phases, **fields)
    work, draw = program(dataclasses.replace(system, recipe=recipe), 0), np.random.default_rng(0)
    ids = jnp.asarray(draw.integers(3, len(ROWS), (rows, 20)), jnp.int32)
    batch = {
        "input_ids": ids,
        "segment_ids": ids // ids,
        "centres": ids // ids,
        "rows": jnp.arange(rows, dtype=jnp.int32),
    }

    def fill(leaf):
        return jnp.asarray(draw.normal(0, 0.5, leaf.shape), jnp.float32)

    state = work.init(batch)
    return work, dataclasses.replace(state, params=jax.tree.map(fill, state.params)), batch


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def native_of(work):
    """The program with the kernel."""
    if why := words.refusal("sampling"):
        pytest.skip(f"no native kernel here: {why}")
    native = in_place.kernel_of(work.system, rules.make_mesh(devices=jax.devices()[:1]))
    tables = ("main/encoder/token", "main/heads_context/table", "main/encoder/ngrams")
    assert isinstance(native.settings, Sampling) and native.paths == tables
    assert native.settings.pieces is not None
    return dataclasses.replace(work, native=native)


@pytest.mark.full
@pytest.mark.parametrize(("name", "limit"), [("fasttext", 0.25), ("fasttext_cbow", None)])
def test_the_native_step_is_the_plain_one_whatever_the_threads(name, limit):
    """Two updates of two rows: the kernel against XLA; one thread and three have the same bits.
    Rows keep to the limit."""
    work, state, batch = small(name, rows=4, updates=2, width=21, limit=limit)
    batch["segment_ids"] = batch["segment_ids"].at[1, 12:].set(2).at[2, 15:].set(0)
    plain, expected = jax.jit(work.step)(state, batch)
    native = native_of(work)
    found, metrics = jax.jit(native.step)(state, batch)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=2e-6, rtol=1e-5),
        found.params,
        plain.params,
    )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), metrics, expected)
    encoder, drawn = found.params["main"]["encoder"], work._corrupt(batch, "train", 0, None)
    tables = encoder["token"], found.params["main"]["heads_context"]["table"], encoder["ngrams"]
    sizes = {
        "updates": 2,
        "window": 5,
        "k": 5,
        "means": name == "fasttext_cbow",
        "pieces": VALUES,
        "limit": limit,
    }
    changes = jax.tree.map(lambda a, b: np.linalg.norm(a - b, axis=-1), found.params, state.params)
    longest = max(map(np.max, jax.tree.leaves(changes)))
    assert longest > 0.5 if limit is None else 0.25 < longest < 0.5 + 1e-5

    def run(threads):
        return words.descend(tables, drawn, jnp.float32(1), threads=threads, **sizes)

    jax.tree.map(
        np.testing.assert_array_equal,
        jax.jit(run, static_argnums=0)(1),
        jax.jit(run, static_argnums=0)(3),
    )


@pytest.mark.full
@pytest.mark.parametrize("impl", ["plain", "native"])
@pytest.mark.parametrize("name", ["fasttext", "fasttext_cbow"])
def test_a_step_is_fasttexts_update_of_every_row(name, impl):
    """The state is the mean of a word's row and its n-grams'; each of them gets the whole error."""
    work, state, batch = small(name)
    drawn = jax.tree.map(np.asarray, work._corrupt(batch, "train", 0, None))
    encoder, head = state.params["main"]["encoder"], state.params["main"]["heads_context"]
    tables = [
        np.asarray(table, np.float64)
        for table in (encoder["token"], encoder["ngrams"], head["table"])
    ]
    changes, loss, centres = [np.zeros_like(table) for table in tables], 0.0, 0
    (words, ngrams, out), (d_words, d_ngrams, d_out) = tables, changes
    for row, noise in enumerate(drawn["noise_ids"]):
        for t, word in enumerate(ids := drawn["input_ids"][row]):
            reach, centres = drawn["windows"][row, t], centres + 1
            near = [ids[u] for u in range(max(0, t - reach), min(20, t + reach + 1)) if u != t]
            for inputs, target in (
                [([word], w) for w in near] if name == "fasttext" else [(near, word)]
            ):
                grams = sum((ROWS[w] for w in inputs), [])
                hidden, error = np.concatenate([words[inputs], ngrams[grams]]).mean(0), np.zeros(4)
                for n, label, count in [
                    (target, 1, 1),
                    *((n, 0, 5 / 64) for n in noise if n != target),
                ]:
                    score = hidden @ out[n]
                    loss += count * np.log1p(np.exp(-score if label else score))
                    error += count * (label - sigmoid(score)) * out[n]
                    d_out[n] += count * (label - sigmoid(score)) * hidden
                np.add.at(d_words, inputs, error)
                np.add.at(d_ngrams, grams, error)
    after, metrics = jax.jit((native_of(work) if impl == "native" else work).step)(state, batch)
    np.testing.assert_allclose(metrics["loss"].sum, loss, rtol=1e-5)
    found = after.params["main"]
    for table, before, change in zip(
        (found["encoder"]["token"], found["encoder"]["ngrams"], found["heads_context"]["table"]),
        tables,
        changes,
        strict=True,
    ):
        np.testing.assert_allclose(table, before + change / centres, atol=1e-5)


@pytest.mark.full
def test_sparse_rows_are_those_of_a_dense_step():
    """Two updates of two rows; no row that the batch does not read changes a bit."""
    work, state, batch = small("fasttext", rows=4, updates=2)
    batch["input_ids"] = batch["input_ids"] % 2 + 4  # words 4 and 5
    found, _ = jax.jit(work.step)(state, batch)

    class Dense(NegativeSampling):
        def select(self, system, batch):
            return batch, {}

    dense = dataclasses.replace(work, system=dataclasses.replace(work.system, objective=Dense()))
    expected, _ = jax.jit(dense.step)(state, batch)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), found.params, expected.params
    )

    def changed(name):
        return (found.params["main"]["encoder"][name] != state.params["main"]["encoder"][name]).any(
            1
        )

    assert np.flatnonzero(changed("token")).tolist() == [4, 5]
    assert np.flatnonzero(changed("ngrams")).tolist() == [2, 3, 4, 5, 9]


def test_the_rows_of_a_word_are_its_hashed_ngrams():
    tokenizer = make(TokenizerSpec(kind="word", specials="t5", vocab=6), ["naïve 東京都 a"] * 3)
    fact = HashedNGrams(shortest=2, longest=3, buckets=1000)
    fact = fact.filled(fact.read(types.SimpleNamespace(tokenizer=lambda: tokenizer)))
    rows = np.asarray(fact.of(jnp.arange(6), 6))
    assert not (rows[[tokenizer.id(piece) for piece in tokenizer.special_pieces]] < 1000).any()
    for word in ("naïve", "東京都", "a"):
        own = rows[tokenizer.id(word)]
        assert own[own < 1000].tolist() == ngrams_of([word.encode()], 2, 3, 1000)[0].tolist()
