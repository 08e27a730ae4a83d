"""Word vectors against plain numpy: loss and every gradient, one update, Huffman's tree, and what
NCE estimates."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax import systems
from ptm_jax.core import facts, spec
from ptm_jax.core.errors import UserError
from ptm_jax.core.recipe import SGD, Adagrad, Constant, Phase
from ptm_jax.core.types import Encoded, Vocab
from ptm_jax.kernels import words
from ptm_jax.kernels.updates import Sampling
from ptm_jax.mesh import rules
from ptm_jax.objectives.vectors.windows import (
    NCE,
    HierarchicalSoftmax,
    NegativeSampling,
    WindowRanking,
)
from ptm_jax.statistics.counts import Counts, noise_of
from ptm_jax.statistics.huffman import Huffman, tree_of
from ptm_jax.training.steps.step import program
from ptm_jax.training.updates import in_place
from support.plain_towers import B, L, V, check, hidden, logistic, states_of

WINDOW = 2
COUNTS = Counts().filled(np.arange(V))
VOCAB = Vocab(size=V, pad=0)
TREE = Huffman().filled(tree_of(np.arange(V)))


def pairs_of(b):
    """(row, centre, neighbour) of every pair."""
    segments = b["segment_ids"]
    for row in range(B):
        for t in range(L):
            for u in range(max(0, t - WINDOW), min(L, t + WINDOW + 1)):
                near = 0 < abs(t - u) <= b["windows"][row, t]
                if near and segments[row, t] > 0 and segments[row, t] == segments[row, u]:
                    yield row, t, u


def definition(loss, predicts):
    """(sum, centres) of `loss(p, b, state, word, row)` over the predictions."""

    def of(p, b):
        states, pairs = states_of(p, b), list(pairs_of(b))
        centres = {(row, t) for row, t, _ in pairs}
        predicted = [(row, t, t) for row, t in centres] if predicts == "centre" else pairs
        total = sum(
            loss(p, b, states[row, t], b["input_ids"][row, u], row) for row, t, u in predicted
        )
        return [(total, len(centres))]

    return of


def score(p, state, row):
    return state @ p["words"][row] + p["word_bias"][row]


def negatives(p, b, state, word, row):
    noise = b["noise_ids"][row]
    against = sum(logistic(score(p, state, n), 0) for n in noise if n != word)
    return logistic(score(p, state, word), 1) + 5 / len(noise) * against


def contrast(p, b, state, word, row):
    noise, share = b["noise_ids"][row], np.maximum(noise_of(COUNTS.values, VOCAB, 1.0), 1e-12)

    def value(n):
        return score(p, state, n) - np.log(3 * share[n])

    return logistic(value(word), 1) + 3 / len(noise) * sum(logistic(value(n), 0) for n in noise)


def branches(p, b, state, word, row):
    way = TREE.values[word]
    return sum(logistic(state @ p["words"][abs(n) - 1], n > 0) for n in way[way != 0])


LOSSES = {
    "negatives": (NegativeSampling, {}, negatives),
    "nce": (NCE, {"vocab": VOCAB, "k": 3, "counts": COUNTS}, contrast),
    "tree": (HierarchicalSoftmax, {"tree": TREE}, branches),
}


@pytest.mark.full
@pytest.mark.parametrize("predicts", ["neighbours", "centre"])
@pytest.mark.parametrize("name", LOSSES)
def test_loss_and_gradient_of_every_objective(name, predicts):
    kind, fields, loss = LOSSES[name]
    check(kind(predicts=predicts, window=WINDOW, **fields), definition(loss, predicts))


def test_a_window_ranks_above_its_copy_with_another_centre():
    def definition(p, b):
        replaced = hidden(p, b["input_ids"], b["segment_ids"], np, own=b["replaced_ids"])
        good, bad = (states @ p["score"][:, 0] for states in (states_of(p, b), replaced))
        centres = b["replaced_weights"] > 0
        return [(np.maximum(0, 1 - good + bad)[centres].sum(), centres.sum())]

    check(WindowRanking(), definition)


def small(name, rows=2, updates=1, **recipe):
    """A system of the catalogue on 12 words of width 4, its parameters and a batch of random
    words."""
    vocab = Vocab(size=15, pad=0, unk=2, eos=1)
    system = spec.with_field(spec.respell(systems.get(name), Vocab, lambda _: vocab), "width", 4)
    phases = (Phase(steps=10, batch=rows, length=20),)
    recipe = dataclasses.replace(system.recipe, phases=phases, updates=updates, **recipe)
    work = program(facts.stand_ins(dataclasses.replace(system, recipe=recipe), vocab), 0)
    draw = np.random.default_rng(0)
    ids = jnp.asarray(draw.integers(3, 15, (rows, 20)), jnp.int32)
    batch = {
        "input_ids": ids,
        "segment_ids": ids // ids,
        "centres": ids // ids,
        "rows": jnp.arange(rows, dtype=jnp.int32),
    }
    state = work.init(batch)

    def fill(leaf):
        return jnp.asarray(draw.normal(0, 0.5, leaf.shape), jnp.float32)

    return work, dataclasses.replace(state, params=jax.tree.map(fill, state.params)), batch


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


@pytest.mark.full
@pytest.mark.parametrize("name", ["skipgram", "cbow"])
def test_a_step_is_the_straightforward_update_of_every_pair(name):
    """word2vec.c's gradients, each of the parameters before the step; CBOW's neighbours get the
    whole error each."""
    work, state, batch = small(name, lr=1.0, optimizer=SGD(), schedule=Constant())
    drawn = jax.tree.map(np.asarray, work._corrupt(batch, "train", 0, None))
    before = {
        "in": state.params["main"]["encoder"]["token"],
        "out": state.params["main"]["heads_context"]["table"],
    }
    before = {part: np.asarray(table, np.float64) for part, table in before.items()}
    change = {part: np.zeros_like(table) for part, table in before.items()}
    centres, ids = 0, drawn["input_ids"]
    for row, noise in enumerate(drawn["noise_ids"]):
        for t, word in enumerate(ids[row]):
            reach = drawn["windows"][row, t]
            near = [u for u in range(max(0, t - reach), min(20, t + reach + 1)) if u != t]
            words, centres = ids[row, near], centres + 1
            for inputs, target in (
                [([word], w) for w in words] if name == "skipgram" else [(words, word)]
            ):
                state_of, error = before["in"][inputs].mean(0), np.zeros(4)
                for n, label, count in [
                    (target, 1, 1),
                    *((n, 0, 5 / 64) for n in noise if n != target),
                ]:
                    slope = count * (label - sigmoid(state_of @ before["out"][n]))
                    error += slope * before["out"][n]
                    change["out"][n] += slope * state_of
                np.add.at(change["in"], inputs, error)
    after = jax.jit(work.step)(state, batch)[0].params["main"]
    np.testing.assert_allclose(
        after["encoder"]["token"], before["in"] + change["in"] / centres, atol=1e-5
    )
    np.testing.assert_allclose(
        after["heads_context"]["table"], before["out"] + change["out"] / centres, atol=1e-5
    )


def test_updates_of_a_step_follow_one_another():
    """A step of two updates is two steps on the halves of its rows, with their rows' draws."""
    work, state, batch = small("skipgram", updates=2, schedule=Constant())
    once = dataclasses.replace(work, system=spec.with_field(work.system, "updates", 1))
    halves = [{name: leaf[row : row + 1] for name, leaf in batch.items()} for row in (0, 1)]
    found, _ = jax.jit(work.step)(state, batch)
    alone = jax.jit(once.step)
    middle, _ = alone(state, halves[0])
    last, _ = alone(dataclasses.replace(middle, step=state.step), halves[1])
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), found.params, last.params
    )
    assert int(found.step) == 1


def test_nce_estimates_the_log_probabilities_of_a_softmax_model():
    """Expected noise in place of draws: the optimum of NCE is log p itself, without a
    normaliser."""
    draw = np.random.default_rng(0)
    counts = np.concatenate([[0], draw.integers(1, 50, V - 1)])
    noise = noise_of(counts, VOCAB, 1.0)
    logits = draw.normal(0, 1, V)
    p = np.exp(logits) * (noise > 0)
    p /= p.sum()
    objective = NCE(vocab=VOCAB, window=1, k=10, counts=Counts().filled(counts), predicts="centre")

    class Scores:
        """A tower whose every state is 1: words have one score each."""

        def __init__(self, scores):
            self.scores = scores

        def __call__(self, batch, key):
            return Encoded(jnp.ones((*batch["input_ids"].shape, 1)))

        def head(self, name, ids):
            return self.scores[ids][..., None], jnp.zeros(ids.shape)

    words = np.repeat(np.arange(V), np.round(p * 2000).astype(int))
    drawn = np.repeat(np.arange(V), np.round(noise * 100).astype(int))
    there, share = (np.bincount(x, minlength=V)[1:] / len(x) for x in (words, drawn))
    batch = {"input_ids": jnp.asarray(np.stack([words, words], 1), jnp.int32)}
    batch["noise_ids"] = jnp.tile(jnp.asarray(drawn, jnp.int32), (len(words), 1))
    scores, step = (
        jnp.zeros(V),
        jax.jit(jax.grad(lambda s, batch: objective({"main": Scores(s)}, batch, None).value())),
    )
    for _ in range(60):
        scores = scores.at[1:].add(-step(scores, batch)[1:] / there)
    expected = np.log(there) + np.log(noise[1:] / share)  # the noise as drawn
    np.testing.assert_allclose(scores[1:], expected, atol=1e-2)
    assert abs(np.exp(np.asarray(scores[1:]) - np.log(noise[1:] / share)).sum() - 1) < 1e-2, (
        "normalised without a sum"
    )


def test_huffmans_tree_is_the_shortest_code_and_a_distribution():
    counts = np.array([0, 0, 50, 25, 15, 5, 3, 1, 1])
    tree = tree_of(counts)
    lengths = (tree != 0).sum(1)
    assert (
        lengths.tolist() == [0, 0, 1, 2, 3, 4, 5, 6, 6]
        and (counts @ lengths) == 100 + 50 + 25 + 10 + 5 + 2
    )
    p = sigmoid(np.random.default_rng(0).normal(size=len(counts)))

    def turns(way):
        return [p[n - 1] if n > 0 else 1 - p[-n - 1] for n in way if n]

    assert abs(sum(np.prod(turns(way)) for way in tree[2:]) - 1) < 1e-12
    assert (np.abs(tree[2:, 0]) == len(counts[2:]) - 1).all(), "the root is the last node"


@pytest.mark.full
@pytest.mark.parametrize("name", ["skipgram", "cbow"])
def test_the_native_step_is_the_plain_one_whatever_the_threads(name):
    """Two updates of two rows: the kernel against XLA; one thread and three have the same bits."""
    work, state, batch = small(name, rows=4, updates=2, lr=3.0)
    if why := words.refusal("sampling"):
        pytest.skip(f"no native kernel here: {why}")
    batch["segment_ids"] = batch["segment_ids"].at[1, 12:].set(2).at[2, 15:].set(0)
    plain, expected = jax.jit(work.step)(state, batch)
    mesh = rules.make_mesh(devices=jax.devices()[:1])
    native = dataclasses.replace(work, native=in_place.kernel_of(work.system, mesh))
    assert native.native.settings == Sampling(window=5, k=5, means=name == "cbow")
    assert native.native.paths == ("main/encoder/token", "main/heads_context/table")
    found, metrics = jax.jit(native.step)(state, batch)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=2e-6, rtol=1e-5),
        found.params,
        plain.params,
    )
    assert (
        int(found.opt_state["count"]) == int(plain.opt_state["count"]) == 2 and int(found.step) == 1
    )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), metrics, expected)
    drawn = work._corrupt(batch, "train", 0, None)
    tables = (
        found.params["main"]["encoder"]["token"],
        found.params["main"]["heads_context"]["table"],
    )
    sizes = {"updates": 2, "window": 5, "k": 5, "means": name == "cbow"}

    def run(threads):
        return words.descend(tables, drawn, jnp.float32(1), threads=threads, **sizes)

    jax.tree.map(
        np.testing.assert_array_equal,
        jax.jit(run, static_argnums=0)(1),
        jax.jit(run, static_argnums=0)(3),
    )


def test_a_named_kernel_that_cannot_make_the_step_is_refused():
    work, _, _ = small("skipgram", optimizer=Adagrad())
    system = spec.with_field(work.system, "impl", "native")
    with pytest.raises(UserError, match="no updates of Adagrad"):
        in_place.kernel_of(system, rules.make_mesh(devices=jax.devices()[:1]))
