"""The biattentive classification network over an encoder's states against plain numpy, word by
word; what moves."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax import systems
from ptm_jax.core.errors import UserError
from ptm_jax.core.system import refusal
from ptm_jax.core.types import Encoded
from ptm_jax.encoders.model import Model
from ptm_jax.nn.heads.biattention import BiattentiveHead, BiattentiveReader
from ptm_jax.nn.heads.pooling import Summary
from ptm_jax.nn.heads.task_heads import SequenceHead
from ptm_jax.nn.initializers import Normal
from ptm_jax.training.steps import step
from support.by_hand import lstm, softmax
from support.classifier import LENGTH, ROWS, classifier, run

RNG = np.random.default_rng(0)
X = RNG.normal(size=(3, 6, 4)).astype(np.float32)
SEGMENTS = np.array([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0], [1, 1, 1, 0, 0, 0]])
TYPES = np.array([[0, 0, 1, 1, 1, 2], [0, 0, 0, 1, 0, 0], [0, 0, 0, 0, 0, 0]])
"""A pair with a token behind it that is of neither text by its type, a pair with padding, one text
with padding."""
READER = BiattentiveReader(hidden=3, initializer=Normal(0.7))
HEAD = BiattentiveHead(classes=2, reductions=(2, 3), pieces=3, initializer=Normal(0.7))


@jax.jit
def network(params, x, types):
    rows = {"segment_ids": jnp.asarray(SEGMENTS), "token_type_ids": types}
    encoded = READER.apply({"params": params["reader"]}, Encoded(x), rows)
    return HEAD.apply({"params": params["head"]}, *HEAD.reads(encoded, rows))


@pytest.fixture(scope="module")
def params():
    """Parameters drawn at large, biases and scales of norms among them."""
    rows = {"segment_ids": jnp.asarray(SEGMENTS), "token_type_ids": jnp.asarray(TYPES)}
    reader = jax.eval_shape(lambda x: READER.init(jax.random.key(0), Encoded(x), rows), X)["params"]
    wide = Encoded(jnp.zeros((3, 6, 12)))
    head = jax.eval_shape(lambda: HEAD.init(jax.random.key(0), *HEAD.reads(wide, rows)))["params"]

    def draw(leaf):
        return 0.7 * RNG.normal(size=leaf.shape).astype(np.float32)

    return {"reader": jax.tree.map(draw, reader), "head": jax.tree.map(draw, head)}


def integrated(p, own, other):
    """BiLSTM([x; x - c; x c]): c is the mean of the other text by the words' products."""
    joined = []
    for x in own:
        weights = softmax(np.array([x @ y for y in other]))
        c = sum(weight * y for weight, y in zip(weights, other, strict=True))
        joined.append(np.concatenate([x, x - c, x * c]))
    return lstm(p, joined)


def pooled(p, words):
    weights = softmax(np.array([(word @ p["kernel"] + p["bias"])[0] for word in words]))
    own = sum(weight * word for weight, word in zip(weights, words, strict=True))
    return [np.max(words, 0), np.mean(words, 0), np.min(words, 0), own]


def expected(params, texts):
    """Section 5 for one row, whose texts stand alone and without padding."""
    p, head = params["reader"], params["head"]
    x, y = (
        lstm(
            p["encode"],
            [np.maximum(w @ p["project"]["kernel"] + p["project"]["bias"], 0) for w in t],
        )
        for t in texts
    )
    first = pooled(head["attend_first"], integrated(p["integrate_first"], x, y))
    second = pooled(head["attend_second"], integrated(p["integrate_second"], y, x))
    z = np.concatenate([*first, *second])
    for number, width in enumerate((48 // 2, 48 // 2 // 3, 2)):
        norm, dense = head[f"norm_{number}"], head[f"maxout_{number}"]
        z = (z - z.mean()) / np.sqrt(z.var() + 1e-5) * norm["scale"] + norm["bias"]
        pieces = z @ dense["kernel"] + dense["bias"]
        z = np.array([max(pieces[3 * k + piece] for piece in range(3)) for k in range(width)])
    return z


@pytest.mark.full
def test_two_texts_are_conditioned_on_each_other_and_one_on_itself(params):
    found = network(params, X, TYPES)
    for row in range(3):
        texts = [X[row][(SEGMENTS[row] > 0) & of] for of in (TYPES[row] != 1, TYPES[row] == 1)]
        if not len(texts[1]):
            texts[1] = texts[0]
        np.testing.assert_allclose(found[row], expected(params, texts), rtol=1e-4, atol=1e-4)
    # Padding has no effect.
    padded = np.where(SEGMENTS[..., None] > 0, X, 100.0).astype(np.float32)
    np.testing.assert_array_equal(network(params, padded, np.where(SEGMENTS > 0, TYPES, 1)), found)


@pytest.mark.full
def test_it_is_trained_alone_beside_a_frozen_encoder():
    system = classifier("feature", "mix", "bcn(hidden=2, reductions=(2,), pieces=2)")
    assert refusal(system) is None
    found = run(system)
    moved, own = (
        found.moved(0),
        {name for name in found.everything() if re.search("/heads_classify/|/readers_", name)},
    )
    assert (
        moved <= own
        and {name for name in own if "kernel" in name or "_state" in name or "alpha" in name}
        <= moved
    )
    assert np.isfinite(found.metrics[0]["nll"].value())


@pytest.mark.full
@pytest.mark.parametrize(("name", "pairs"), [("xlnet_mini", True), ("t5_mini", False)])
def test_every_encoder_has_it(name, pairs):
    """One that distinguishes texts by their types, and one with a decoder that does not."""
    plain, small = systems.get(name), classifier("bcn(hidden=2)")
    tower = Model(
        encoder=plain.towers["main"].encoder,
        heads={"classify": SequenceHead(3, Summary("none", at="mean"))},
    )
    system = dataclasses.replace(small, name=name, towers={"main": tower})
    program = step.program(system, 0)
    heads = program.towers["main"].heads
    assert heads["classify"].pairs == pairs and heads["classify"].classes == 3
    fields = ("input_ids", "segment_ids", "token_type_ids")
    rows = {field: jnp.ones((ROWS, LENGTH), jnp.int32) for field in fields} | {
        "rows": jnp.arange(ROWS)
    }
    rows["label"] = jnp.zeros(ROWS, jnp.int32)
    state = jax.eval_shape(program.init, rows)
    assert "nll" in jax.eval_shape(program.step, state, rows)[1]


def test_what_it_is_not_for_is_refused():
    system = classifier("bcn")
    tower = system.towers["main"]
    tags = dataclasses.replace(
        system,
        towers={"main": Model(encoder=tower.encoder, heads={"tag": tower.heads["classify"]})},
    )
    with pytest.raises(
        UserError,
        match="does not take Biattentive: it is for tasks on whole texts; this one has tag",
    ):
        step.program(tags, 0)
