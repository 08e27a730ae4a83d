"""ESIM over an encoder's states, and prefix tuning, against plain numpy; what moves; what does not
fit is one line."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax import systems
from ptm_jax.adapt import catalogue
from ptm_jax.core.errors import UserError
from ptm_jax.core.paths import flatten, unflatten
from ptm_jax.core.system import refusal
from ptm_jax.core.types import Encoded, Visibility
from ptm_jax.encoders.model import Model
from ptm_jax.encoders.transformer.transformer import transformer
from ptm_jax.nn.attention.learned_past import PrefixAttention
from ptm_jax.nn.heads.alignment import AlignedReader, PairHead
from ptm_jax.nn.initializers import Normal
from ptm_jax.nn.layers import Context
from ptm_jax.nn.recurrent.lstm import BiLSTMReader
from ptm_jax.tasks.formats.labelled import Labelled
from ptm_jax.training.steps import step
from support.by_hand import head_of, softmax
from support.classifier import LENGTH, ROWS, VOCAB, WIDTH, batch, classifier

RNG = np.random.default_rng(0)
X = RNG.normal(size=(2, 6, 4)).astype(np.float32)
SEGMENTS = np.array([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]])
TYPES = np.array([[0, 0, 1, 1, 1, 1], [0, 0, 0, 1, 0, 0]])
PAIRS = {
    "input_ids": SEGMENTS,
    "segment_ids": jnp.asarray(SEGMENTS),
    "token_type_ids": jnp.asarray(TYPES),
}


@pytest.mark.full
def test_words_of_two_texts_are_aligned():
    """Sections 3.1 to 3.3, text by text: each is read as if it stood alone."""
    p, found = head_of(
        AlignedReader(hidden=3, initializer=Normal(0.7)), Encoded(jnp.asarray(X)), PAIRS
    )
    read = jax.jit(lambda part, x: BiLSTMReader(3).apply({"params": part}, Encoded(x), {}).hidden)
    for row in range(2):
        parts = [X[row][(SEGMENTS[row] > 0) & (TYPES[row] == kind)] for kind in (0, 1)]
        a, b = (np.asarray(read(p["encode"], part[None])[0]) for part in parts)
        e, v = a @ b.T, []
        for x, scores, other in ((a, e, b), (b, e.T, a)):
            y = softmax(scores) @ other
            joined = np.concatenate([x, y, x - y, x * y], -1)
            inner = np.maximum(joined @ p["project"]["kernel"] + p["project"]["bias"], 0)
            v.append(np.asarray(read(p["compose"], inner[None])[0]))
        real = SEGMENTS[row] > 0
        np.testing.assert_allclose(found.hidden[row][real], np.concatenate(v), rtol=1e-4, atol=1e-5)


def test_a_pair_is_pooled_by_mean_and_maximum():
    head = PairHead(classes=3, hidden=5, initializer=Normal(0.7))
    p, found = head_of(head, *head.reads(Encoded(jnp.asarray(X)), PAIRS))
    for row in range(2):
        parts = [X[row][(SEGMENTS[row] > 0) & (TYPES[row] == kind)] for kind in (0, 1)]
        pooled = np.concatenate([part for x in parts for part in (x.mean(0), x.max(0))])
        inner = np.tanh(pooled @ p["dense"]["kernel"] + p["dense"]["bias"])
        np.testing.assert_allclose(
            found[row], inner @ p["classes"]["kernel"] + p["classes"]["bias"], rtol=1e-4, atol=1e-5
        )


@pytest.mark.full
def test_esim_reads_pairs_alone():
    """It is trained alone beside a frozen encoder; without two types or two texts it is refused."""
    plain = classifier("feature", "mix", "esim(hidden=3)")
    assert "does not distinguish" in refusal(plain)
    encoder = transformer(vocab=VOCAB, layers=1, width=WIDTH, heads=2, hidden=12, types=2)
    tower = Model(encoder=encoder, heads=plain.towers["main"].heads)
    pairs = dataclasses.replace(
        plain, towers={"main": tower}, examples=Labelled(first=("a",), second=("b",))
    )
    program = step.program(pairs, 0)
    rows = {**batch(), "token_type_ids": jnp.zeros((ROWS, LENGTH), jnp.int32)}
    shapes = jax.eval_shape(program.init, rows)
    free = {
        p
        for p, place in program.freedom.places(shapes.params).items()
        if program.freedom.trains(place)
    }
    assert (
        free == {p for p in flatten(shapes.params) if re.search("/heads_|/readers_", p)}
        and len(free) > 12
    )
    assert jax.eval_shape(program.step, shapes, rows)[1].keys() >= {"nll", "accuracy"}
    one = dataclasses.replace(pairs, examples=Labelled(first=("a",)))
    assert "take bilstm" in refusal(one)
    tags = dataclasses.replace(
        pairs, towers={"main": Model(encoder=encoder, heads={"tag": tower.heads["classify"]})}
    )
    with pytest.raises(UserError, match="does not take Aligned: it is for tasks on pairs"):
        step.program(tags, 0)


def test_tokens_attend_to_a_learned_past():
    """softmax(q [P_K; K]^T) [P_V; V], in a packed row and causally: every token sees the prefix and
    what it saw before."""
    order = np.broadcast_to(np.arange(6), (2, 6))
    segments = np.array([[1, 1, 1, 2, 2, 2], [1, 1, 1, 1, 0, 0]])
    vis = Visibility(
        jnp.maximum(jnp.asarray(segments), 1),
        jnp.asarray(segments),
        jnp.asarray(order),
        jnp.asarray(order),
    )
    context = Context(visibility=vis, rows=jnp.arange(2))
    module = PrefixAttention(
        heads=2, width=4, prefix=3, initializer=Normal(0.7), prefix_init=Normal(0.7)
    )
    p, (out, _, cache) = head_of(module, X, context)
    q, k, v = (
        np.einsum("bld,dhk->bhlk", X, p[n]["kernel"]) + p[n]["bias"][:, None]
        for n in ("query", "key", "value")
    )
    before = [
        np.broadcast_to(np.moveaxis(p[f"prefix_{n}"], 1, 0), (2, 2, 3, 2)) for n in ("key", "value")
    ]
    k, v = (np.concatenate(pair, 2) for pair in zip(before, (k, v), strict=True))
    seen = np.concatenate([np.ones((2, 1, 6, 3), bool), np.asarray(vis.dense())], -1)
    weights = softmax(np.where(seen, q @ k.swapaxes(-1, -2) / np.sqrt(2), -1e30))
    expected = np.einsum("bhlk,hkd->bld", weights @ v, p["out"]["kernel"]) + p["out"]["bias"]
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-5)
    assert cache is None and not weights[..., :3].min() == 0


@pytest.mark.full
def test_a_prefix_stays_in_front_while_tokens_are_written():
    """One token at a time through the cache of a decoder, against all at once."""
    system = dataclasses.replace(
        systems.get("gpt_mini"), adapt=catalogue.read_all(["prefix(length=3)"])
    )
    program = step.program(system, 0)
    tower, ids = program.towers["main"], jnp.asarray(RNG.integers(5, 50, (2, 5)))
    params = jax.jit(program.init)({"input_ids": ids, "rows": jnp.arange(2)}).params["main"]
    grown = {k: 30 * v if "prefix_" in k else v for k, v in flatten(params).items()}
    encode = jax.jit(
        lambda p, ids, cache=None: tower.apply(
            {"params": p}, {"input_ids": ids}, method="encode", cache=cache
        )
    )
    whole = encode(unflatten(grown), ids).hidden
    assert np.abs(whole - encode(params, ids).hidden).max() > 0.01, "the prefix has an effect"
    cache, parts = tower.encoder.empty_cache(2, 8), []
    for place in range(5):
        found = encode(unflatten(grown), ids[:, place : place + 1], cache)
        cache, parts = found.cache, [*parts, found.hidden]
    np.testing.assert_allclose(np.concatenate(parts, 1), whole, rtol=2e-3, atol=2e-3)


def test_the_shapes_of_a_prefix():
    """Of each layer its own; with `hidden` one table and one layer for all, a second layer each.
    What moves is a law."""
    for text, shapes in (
        ("prefix(length=2)", {"prefix_key": (3, 2, 2, 4), "prefix_value": (3, 2, 2, 4)}),
        (
            "prefix(length=2, hidden=5)",
            {
                "prefix_table": (2, WIDTH),
                "prefix_hidden/kernel": (WIDTH, 5),
                "prefix_made/kernel": (3, 5, 2, 2, 4),
            },
        ),
    ):
        found = flatten(jax.eval_shape(step.program(classifier(text), seed=0).init, batch()).params)
        own = {
            p.rpartition("attention/")[2]: leaf.shape
            for p, leaf in found.items()
            if "/prefix_" in p and "bias" not in p
        }
        assert own == shapes
