"""Sub-graphs of entities: what a node sees, their states by plain blocks over the nodes, the loss
of their triples."""

import dataclasses
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.core import facts
from ptm_jax.knowledge.entity_facts import FactsBothWays
from ptm_jax.nn.attention.multihead import Attention
from ptm_jax.nn.blocks import Block, FeedForward, Stack
from ptm_jax.nn.knowledge.subgraphs import SubgraphVectors, adjacent
from ptm_jax.nn.layers import Context
from ptm_jax.objectives.knowledge.subgraphs import SubgraphTriples
from support.corrupting import VOCAB
from support.plain_towers import LEXICAL, check, params_of, states_of

pytestmark = pytest.mark.full
W, F = 8, 3
GRAPH = FactsBothWays(entities=20, relations=7, facts=2, incoming=1, width=2)
CONTEXT = Context(visibility=None, rows=None)
ONE = np.array([[5, 0, 0, 2, 9, 0, 0, 3, 11]], np.int32)
"""Entity 5 with the facts (5, 2, 9) and (11, 3, 5)."""


def layer(layers):
    block = Block(attention=Attention(heads=2, width=W), ffn=FeedForward(hidden=12))
    return SubgraphVectors(nodes=Stack(block=block, layers=layers), lexicon=GRAPH, width=W)


def run(layers, table, values=ONE):
    module = layer(layers)
    params = module.init(jax.random.key(0), values, table, CONTEXT)["params"]
    return lambda table: module.apply({"params": params}, values, table, CONTEXT)


def test_nodes_see_their_neighbours():
    wanted = np.eye(7, dtype=bool)
    for n in (1, 2, 3):
        for a, b in ((0, n), (n, n + 3)):
            wanted[a, b] = wanted[b, a] = True
    np.testing.assert_array_equal(adjacent(F), wanted)


@pytest.mark.parametrize("layers", [1, 2])
def test_a_tail_reaches_its_entity_in_two_layers(layers):
    """An entity that is no neighbour of a neighbour has no gradient, exactly."""
    table = jnp.asarray(np.random.default_rng(0).normal(size=(20, W)), jnp.float32)
    read = run(layers, table)
    slope = np.abs(jax.grad(lambda t: jnp.square(read(t).entities).sum())(table)).sum(-1) > 0
    np.testing.assert_array_equal(np.flatnonzero(slope), [5] if layers == 1 else [5, 9, 11])
    of_relation = (
        np.abs(jax.grad(lambda t: jnp.square(read(t).relations[:, 0]).sum())(table)).sum(-1) > 0
    )
    np.testing.assert_array_equal(np.flatnonzero(of_relation), [5, 9])
    found = read(table)
    np.testing.assert_array_equal(found.valid, [[True, False, True]])
    np.testing.assert_array_equal(found.ids, [[9, 0, 11]])
    np.testing.assert_array_equal(found.signs, [1, 1, -1])


def test_entities_have_the_facts_of_the_lexicon():
    graph = facts.stand_ins(GRAPH, VOCAB)
    rows = graph.by_entity()
    assert rows.shape == (20, 1 + 2 + 2 * F) and not rows[0].any()
    assert all(row[0] in (0, number) for number, row in enumerate(rows)) and (rows[:, 0] > 0).any()


def test_facts_of_an_entity_are_those_that_leave_it_and_those_that_reach_it(tmp_path):
    (tmp_path / "graph.tsv").write_text("b\tr\tc\nb\ts\td\nb\tr\te\na\ts\tb\nd\tr\tb\n")
    graph = dataclasses.replace(GRAPH, file=str(tmp_path / "graph.tsv"))
    tokenizer = SimpleNamespace(encode_batch=lambda names: [np.array([7]) for _ in names])
    rows = graph.entries(tokenizer)  # entities a to e are 1 to 5, relations r and s 1 and 2
    assert rows["b"] == [2, 8, 0, 1, 3, 2, 4, 2, 1] and rows["c"] == [3, 8, 0, 0, 0, 0, 0, 1, 2]


def test_restored_triples_are_their_margin_loss():
    def defined(p, b):
        states, ids = states_of(p, b), b["input_ids"]
        forward, backward = states @ p["forward"], states @ p["backward"]
        total, count = 0.0, 0
        for row, place, fact in np.ndindex(*ids.shape, 2):
            before = (place - 1) % ids.shape[1]
            if (
                b["segment_ids"][row, place]
                and b["segment_ids"][row, before]
                and ids[row, place] != ids[row, before]
            ):
                link = (forward, backward)[fact][row, place]
                ends = (backward, states)[fact][row]

                def triple(at, row=row, place=place, ends=ends, fact=fact):
                    return (
                        (states[row, place], ends[at])
                        if fact == 0
                        else (ends[at], states[row, place])
                    )

                def distance(at, link=link, triple=triple):
                    return np.abs(triple(at)[0] + link - triple(at)[1]).sum()

                total, count = total + max(0.0, 1.0 + distance(place) - distance(before)), count + 1
        return [(total, count)]

    check(
        SubgraphTriples(),
        defined,
        {"main": params_of(0, tuple(LEXICAL))},
        leaves=("forward", "place"),
    )
