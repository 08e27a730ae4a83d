"""KGLM on a toy graph: the loss against its definition, and sampling against the sum over every
choice of entities."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.nn.heads.knowledge.linked_text import EntityWriter
from ptm_jax.objectives.knowledge.linked_text import LinkedText, SampledText, sampled_nll
from support.corrupting import VOCAB
from support.plain_towers import (
    LEXICAL,
    PlainTower,
    V,
    batch_of,
    check,
    double,
    params_of,
    states_of,
)

pytestmark = pytest.mark.full
PARAMS = {"main": params_of(0, tuple(LEXICAL)), "proposal": params_of(1, tuple(LEXICAL))}


def softmax(x):
    return np.exp(x - x.max()) / np.exp(x - x.max()).sum()


def entity(p, h, b, row, place, earlier):
    """{candidate + 1, or 0: p(e)} of a token from the state h, after the candidates `earlier`."""
    document, ids = b["segment_ids"][row, place], b["linked_entities"][row]
    open_ = [c for c in range(len(ids)) if ids[c] and b["linked_segments"][row, c] == document]
    parents = [c for c in open_ if c + 1 in earlier]
    types = softmax((h @ p["kinds"])[: 3 if parents else 2])
    new = softmax((h @ p["table"].T)[1:])
    found = {0: types[0], **{c + 1: types[1] * new[ids[c] - 1] for c in open_}}
    shares = softmax(np.array([h @ p["table"][ids[c]] for c in parents])) if parents else ()
    for parent, share in zip(parents, shares, strict=True):
        facts = [(0, ids[parent]), *((r, t) for r, t in b["linked_facts"][row, parent] if t)]
        relations = sorted({r for r, _ in facts})
        for relation, chance in zip(relations, softmax((h @ p["parts"])[relations]), strict=True):
            tails = [t for r, t in facts if r == relation]
            for tail, c in itertools.product(tails, open_):
                if ids[c] == tail:
                    found[c + 1] += types[2] * share * chance / len(tails)
    return found


def written(p, h, b, row, place, choice):
    """p(x | e): every way to write the word, among words and tokens of the name."""
    e, name = (
        (b["linked_entities"][row, choice - 1], b["linked_names"][row, choice - 1])
        if choice
        else (0, ())
    )
    words, copies = (
        (h + p["table"][e]) @ p["lm"],
        [(i - 1, h @ p["table"][i - 1]) for i in name if i],
    )
    total = np.exp(words).sum() + sum(np.exp(score) for _, score in copies)
    word = b["input_ids"][row, place]
    return (np.exp(words[word]) + sum(np.exp(score) for i, score in copies if i == word)) / total


def predicted(b, row):
    """The places of a row whose predecessor is of their document."""
    segments = b["segment_ids"][row]
    return [n for n in range(1, len(segments)) if segments[n] and segments[n] == segments[n - 1]]


def chance(p, h, b, row, choices, later):
    """The probability of the choices {place: candidate + 1}, with their words where `later` is 0:
    the state of a choice is that of the token before it, or of the token itself."""
    total = 1.0
    for place, choice in choices.items():
        earlier = {other for at, other in choices.items() if at < place}
        if place not in predicted(b, row):
            continue
        state = h[place - 1 + later]
        total *= entity(p, state, b, row, place, earlier).get(choice, 0.0)
        total *= 1.0 if later else written(p, state, b, row, place, choice)
    return total


def linked_nll(p, b):
    """(the sum of -log p of tokens and entities and -log q of entities, the number of predicted
    tokens)."""
    total, weight = 0.0, 0
    for row in range(len(b["input_ids"])):
        choices = dict(enumerate(b["linked"][row].tolist()))
        del choices[0]
        weight += len(predicted(b, row))
        for later, name in enumerate(("main", "proposal")):
            total -= np.log(chance(p[name], states_of(p[name], b)[row], b, row, choices, later))
    return total, weight


def test_known_entities_are_kglms():
    leaves = "kinds", "parts", "table", "lm"
    check(
        LinkedText(),
        lambda p, b: [linked_nll(p, b)],
        PARAMS,
        towers=("main", "proposal"),
        leaves=leaves,
    )


def test_penalties_of_the_states_are_means_of_squares():
    b = {name: np.array(value) for name, value in batch_of(3).items()}
    towers = {name: PlainTower(jax.tree.map(jnp.asarray, p)) for name, p in PARAMS.items()}
    loss = LinkedText(activation=2.0, change=0.5)(
        towers, {name: jnp.asarray(value) for name, value in b.items()}, None
    )
    states, segments = states_of(PARAMS["main"], b), b["segment_ids"]
    raw, follows = (
        states @ PARAMS["main"]["match"],
        (segments[:, 1:] == segments[:, :-1]) & (segments[:, 1:] > 0),
    )
    size = np.square(states).mean(-1)[segments > 0].mean()
    change = np.square(raw[:, 1:] - raw[:, :-1]).mean(-1)[follows].mean()
    total, weight = linked_nll(double(PARAMS), b)
    np.testing.assert_allclose(loss.value(), total / weight + 2.0 * size + 0.5 * change, rtol=1e-5)


def toy():
    """One row of four tokens and all entities as candidates."""
    batch = {name: np.array(value) for name, value in batch_of(3).items()}
    draw = np.random.default_rng(5)
    batch["segment_ids"][:] = np.array([1, 1, 1, 1, 0, 0])
    several = np.arange(1, V)
    batch["linked_entities"] = np.tile(several, (3, 1)).astype(np.int32)
    batch["linked_segments"] = np.ones((3, V - 1), np.int32)
    batch["linked_names"] = draw.integers(0, V + 1, (3, V - 1, 2)).astype(np.int32)
    batch["linked_facts"] = np.stack(
        [draw.integers(1, 5, (3, V - 1, 3)), draw.integers(0, V, (3, V - 1, 3))], -1
    ).astype(np.int32)
    return batch


def test_sampled_perplexity_agrees_with_the_sum_over_all_choices():
    b = toy()
    # smaller parameters: the proposal is another network, and the ratios of large ones vary much
    params = jax.tree.map(lambda leaf: 0.4 * np.asarray(leaf), PARAMS)
    h = states_of(params["main"], b)[0]
    every = itertools.product(range(V), repeat=3)
    exact = sum(
        chance(params["main"], h, b, 0, dict(enumerate(choices, 1)), 0) for choices in every
    )
    towers = {name: PlainTower(jax.tree.map(jnp.asarray, p)) for name, p in params.items()}
    run = jax.jit(lambda batch, key: sampled_nll(LinkedText(), towers, batch, key, samples=2000))
    found = np.exp([-float(run(b, jax.random.key(seed))[0]) for seed in range(10)])
    error = found.std(ddof=1) / np.sqrt(len(found))
    assert abs(found.mean() - exact) < 4 * error < 0.2 * exact, (found.mean(), exact, error)


def test_the_perplexity_of_rows_is_that_of_their_samples():
    """Rows are sampled by themselves: alone, a row has the same estimate."""
    b = jax.tree.map(jnp.asarray, toy())
    towers = {name: PlainTower(jax.tree.map(jnp.asarray, p)) for name, p in PARAMS.items()}
    key, objective = jax.random.key(3), SampledText(samples=50)
    loss, each = objective(towers, b, key), sampled_nll(objective, towers, b, key, samples=50)
    assert (
        float(loss.weight)
        == sum(len(predicted(jax.tree.map(np.asarray, b), row)) for row in range(3))
        == 9
    )
    np.testing.assert_allclose(loss.sum, each.sum(), rtol=1e-6)
    np.testing.assert_allclose(loss.metrics["nll"].value(), each.mean() / 3, rtol=1e-6)
    alone = sampled_nll(objective, towers, jax.tree.map(lambda x: x[1:2], b), key, samples=50)
    np.testing.assert_allclose(alone, each[1:2], rtol=1e-5)


def test_the_heads_are_their_definition():
    head = EntityWriter(entities=7, relations=3, width=4, vocab=VOCAB)
    draw = np.random.default_rng(0)
    states, table = (
        draw.normal(size=(1, 3, 5)).astype(np.float32),
        draw.normal(size=(VOCAB.size, 5)).astype(np.float32),
    )
    candidates, entities, names = (
        np.array([[1, 6]]),
        np.array([[0, 2, 6]]),
        draw.integers(0, VOCAB.size, (1, 3, 2)),
    )
    inputs = states, candidates, entities, names
    shapes = head.init(jax.random.key(0), *inputs, table=table)["params"]
    p = jax.tree.map(lambda leaf: draw.normal(0, 0.5, leaf.shape).astype(np.float32), shapes)
    found, words, copies = head.apply({"params": p}, *inputs, table=table)

    def dense(name, x):
        return x @ np.asarray(p[name]["kernel"]) + np.asarray(p[name]["bias"])

    vectors, h = np.asarray(p["entities"]), states[0]
    parent, relation = dense("parent", h), dense("relation", h)
    beside = np.where(entities[0][:, None] > 0, vectors[entities[0]], 0)
    both = dense("condense", np.concatenate([h, beside], -1))
    sigmoid, read, lstm = lambda x: 1 / (1 + np.exp(-x)), np.zeros((3, 2, 5)), p["alias"]
    for n in range(3):
        cell, state = np.zeros(5), np.zeros(5)
        for j, token in enumerate(names[0, n]):
            gates = (
                table[token] @ lstm["inputs"]["kernel"]
                + lstm["inputs"]["bias"]
                + state @ lstm["state"]
            )
            i, f, g, o = np.split(gates, 4)
            cell = sigmoid(f) * cell + sigmoid(i) * np.tanh(g)
            state = read[n, j] = sigmoid(o) * np.tanh(cell)
    for mine, wanted in (
        (found.types, dense("kinds", h)),
        (found.new, (parent + relation) @ vectors.T),
        (found.parents, parent @ vectors[candidates[0]].T),
        (found.relations, relation @ np.asarray(p["relations"]).T),
        (words.logits(), both @ table.T + np.asarray(p["bias"])),
        (copies, np.einsum("td,tad->ta", np.tanh(dense("copy", both)), read)),
    ):
        np.testing.assert_allclose(mine[0], wanted, atol=2e-5)
