"""Segment recurrence: equal to loops and to one long row, and who sees whom in both streams."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.core.types import Vocab
from ptm_jax.encoders.transformer.xl import TransformerXL
from ptm_jax.nn.attention.multihead import Attention
from ptm_jax.nn.attention.relative import ShiftedScores
from ptm_jax.nn.blocks import Block, FeedForward, Recurrence, Stack
from ptm_jax.nn.embeddings.summed import Embeddings
from ptm_jax.nn.initializers import Normal
from support.bare_layers import dense, drawn, norm, sees
from support.by_hand import softmax

VOCAB, WIDTH, HEADS, LENGTH = Vocab(size=40), 8, 2, 6


def encoder(memory=LENGTH, layers=2, streams=1, segments=False, direction="causal"):
    """A small Transformer-XL, or XLNet."""
    attention = Attention(
        heads=HEADS, width=WIDTH, bias=False, relative=ShiftedScores(segments=segments)
    )
    block = Block(attention=attention, ffn=FeedForward(hidden=12, activation="relu"))
    return TransformerXL(
        embed=Embeddings(vocab=VOCAB, width=WIDTH),
        stack=Stack(block=Recurrence(block), layers=layers),
        memory=memory,
        direction=direction,
        query=Normal() if streams == 2 else None,
    )


def draw(rows=2, length=LENGTH, seed=0):
    return jnp.asarray(
        np.random.default_rng(seed).integers(0, VOCAB.size, (rows, length)), jnp.int32
    )


def begin(module, batch):
    """Jitted `(params, batch) -> Encoded`, and parameters."""
    params = jax.tree.map(jnp.asarray, drawn(module, batch))
    return jax.jit(lambda params, batch: module.apply({"params": params}, batch)), params


@pytest.mark.full
def test_two_rows_with_memory_equal_one_row_of_double_length():
    module = encoder()
    ids = draw(length=2 * LENGTH)
    run, params = begin(module, {"input_ids": ids})
    whole = run(params, {"input_ids": ids})
    first = run(params, {"input_ids": ids[:, :LENGTH], "carry": module.empty_memory(2)})
    second = run(params, {"input_ids": ids[:, LENGTH:], "carry": first.memory})
    np.testing.assert_allclose(first.layers, whole.layers[:, :, :LENGTH], atol=2e-5, rtol=1e-5)
    np.testing.assert_allclose(second.layers, whole.layers[:, :, LENGTH:], atol=2e-5, rtol=1e-5)
    np.testing.assert_array_equal(second.memory["layers"], jnp.moveaxis(second.layers[:-1], 0, 1))


@pytest.mark.full
def test_a_short_memory_holds_the_last_inputs_of_every_layer():
    module = encoder(memory=LENGTH + 2)
    ids = draw(length=2 * LENGTH)
    run, params = begin(module, {"input_ids": ids[:, :LENGTH]})
    first = run(params, {"input_ids": ids[:, :LENGTH], "carry": module.empty_memory(2)})
    second = run(params, {"input_ids": ids[:, LENGTH:], "carry": first.memory})
    inputs = jnp.concatenate([first.layers[:-1], second.layers[:-1]], 2)
    np.testing.assert_array_equal(
        second.memory["layers"], jnp.moveaxis(inputs[:, :, -LENGTH - 2 :], 0, 1)
    )
    np.testing.assert_array_equal(first.memory["segments"], [[0, 0] + [1] * LENGTH] * 2)
    # without a memory there is only the row itself to hand on
    alone = run(params, {"input_ids": ids[:, :LENGTH]}).memory
    assert alone["layers"].shape == (2, 2, LENGTH, WIDTH) and alone["segments"].shape == (2, LENGTH)


@pytest.mark.full
def test_one_layer_equals_loops():
    """The four terms of Dai et al. 2019, section 3.3, over memory and row, with the feed-forward
    and norms."""
    module = encoder(memory=3, layers=1)
    ids = draw(rows=1, length=4)
    run, params = begin(module, {"input_ids": ids})
    past = {
        **module.empty_memory(1),
        "layers": jax.random.normal(jax.random.key(5), (1, 1, 3, WIDTH)),
    }
    past["segments"] = jnp.asarray([[0, 1, 1]])
    found = run(params, {"input_ids": ids, "carry": past})
    p = jax.tree.map(
        lambda leaf: np.asarray(leaf[0], np.float64), params["stack"]["block"]["block"]
    )
    token = np.asarray(params["embed"]["token"], np.float64)
    h = token[np.asarray(ids[0])]
    source = np.concatenate([np.asarray(past["layers"][0, 0], np.float64), h])
    rates = 10000.0 ** (-np.arange(0, WIDTH, 2) / WIDTH)
    at, width = p["attention"], WIDTH // HEADS
    branch = np.zeros_like(h)
    for i in range(4):
        for n in range(HEADS):
            q = h[i] @ at["query"]["kernel"][:, n]
            seen = range(1, 3 + i + 1)  # the first place of the memory is empty
            scores = []
            for j in seen:
                wave = np.concatenate([np.sin((i + 3 - j) * rates), np.cos((i + 3 - j) * rates)])
                k, r = (
                    source[j] @ at["key"]["kernel"][:, n],
                    wave @ at["relative"]["position"]["kernel"][:, n],
                )
                u, v = at["relative"]["u"][n], at["relative"]["v"][n]
                scores.append((q @ k + q @ r + u @ k + v @ r) / np.sqrt(width))
            weights = softmax(np.array(scores))
            values = sum(
                w * (source[j] @ at["value"]["kernel"][:, n])
                for w, j in zip(weights, seen, strict=True)
            )
            branch[i] += values @ at["out"]["kernel"][n]
    h = norm(h + branch, p["attention_norm"])
    h = norm(h + dense(p["ffn"]["down"], np.maximum(dense(p["ffn"]["up"], h), 0)), p["ffn_norm"])
    np.testing.assert_allclose(found.hidden[0], h, atol=1e-4, rtol=1e-4)


def test_no_gradient_flows_into_the_memory_of_the_row_before():
    module = encoder()
    ids = draw()
    run, params = begin(module, {"input_ids": ids})

    def loss(embedded):
        given = {**params, "embed": {"token": embedded}}
        first = run(given, {"input_ids": ids, "carry": module.empty_memory(2)})
        return (first.memory["layers"] ** 2).sum()

    assert (jax.jit(jax.grad(loss))(params["embed"]["token"]) == 0).all()


def flow(run, params, batch, pick):
    """[L, L] booleans: does the output at t depend on the token vector at slot s? One table row for
    each slot."""
    length = batch["input_ids"].shape[1]
    batch = {**batch, "input_ids": jnp.arange(length, dtype=jnp.int32)[None]}
    return sees(lambda params: pick(run(params, batch))[0], params, "embed/token")[:, :length]


@pytest.fixture(scope="module")
def xlnet():
    module = encoder(streams=2, segments=True, direction="bidirectional", memory=3)
    batch = {"input_ids": draw(rows=1), "order": jnp.zeros((1, LENGTH), jnp.int32)}
    return module, *begin(module, batch)


@pytest.mark.full
def test_each_stream_sees_what_the_permutation_allows(xlnet):
    _, run, params = xlnet
    order = np.array([[3, 0, 5, 1, 4, 2]])
    batch = {
        "input_ids": draw(rows=1),
        "order": jnp.asarray(order),
        "segment_ids": jnp.ones((1, LENGTH), jnp.int32),
    }
    before = order[0][None, :] < order[0][:, None]
    content = flow(run, params, batch, lambda out: out.hidden)
    np.testing.assert_array_equal(content, before | np.eye(LENGTH, dtype=bool))
    # Two layers: what a query sees has seen others, all of them before it as well.
    np.testing.assert_array_equal(flow(run, params, batch, lambda out: out.extra["query"]), before)


@pytest.mark.full
def test_both_streams_see_the_memory_of_their_segment_and_no_padding(xlnet):
    module, run, params = xlnet
    segments = jnp.asarray([[1, 1, 1, 2, 2, 0]])
    order = jnp.asarray([[2, 0, 1, 1, 0, 5]])
    memory = {
        **module.empty_memory(1),
        "layers": jax.random.normal(jax.random.key(1), (1, 2, 3, WIDTH)),
    }
    memory["segments"] = jnp.asarray([[0, 1, 2]])
    batch = {"input_ids": draw(rows=1), "order": order, "segment_ids": segments, "carry": memory}
    for pick in (lambda out: out.hidden, lambda out: out.extra["query"]):

        def outputs(memory, pick=pick):
            return pick(run(params, {**batch, "carry": memory}))[0]

        seen = sees(outputs, memory, "layers")[:, 0]  # [L, N, M]
        np.testing.assert_array_equal(seen[:3, 1], [[False, True, False]] * 3)
        np.testing.assert_array_equal(seen[3:5, 1], [[False, False, True]] * 2)
        inside = flow(run, params, batch, pick)
        assert not inside[:3, 3:].any() and not inside[3:5, :3].any() and not inside[:5, 5].any()


@pytest.mark.full
def test_groups_and_places_reach_over_a_memory():
    module = encoder(direction="bidirectional", memory=2)
    run, params = begin(module, {"input_ids": draw(rows=1)})
    group, places = jnp.asarray([[0, 0, 0, 1, 1, 2]]), jnp.arange(LENGTH)[None]
    plain = {
        "input_ids": draw(rows=1),
        "carry": run(params, {"input_ids": draw(rows=1, seed=1)}).memory,
    }
    np.testing.assert_allclose(
        run(params, {**plain, "places": places}).hidden,
        run(params, plain).hidden,
        atol=1e-5,
        rtol=1e-5,
    )
    seen = flow(run, params, {**plain, "group": group}, lambda out: out.hidden)
    np.testing.assert_array_equal(
        seen, (group[0][None, :] == 0) | (group[0][None, :] == group[0][:, None])
    )


def test_what_objectives_ask(xlnet):
    module = xlnet[0]
    assert (module.streams, module.direction, module.obeys_order) == (2, "bidirectional", True)
    assert dataclasses.replace(module, query=None).streams == 1
