"""The character CNN against loops."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax import systems
from ptm_jax.core.errors import UserError
from ptm_jax.core.system import refusal
from ptm_jax.core.types import Vocab
from ptm_jax.encoders.context import context_of
from ptm_jax.nn.embeddings.characters import CharacterCNN, Highway
from ptm_jax.nn.embeddings.summed import Sinusoids
from support import bare_layers
from support.bare_layers import dense

VOCAB = Vocab(size=9, pad=0, eos=1, unk=2)
IDS = np.array([[3, 1, 5, 2], [8, 7, 1, 0]], np.int32)
CHARACTERS = np.random.default_rng(0).integers(1, 11, (2, 4, 6)).astype(np.int32)
CHARACTERS[0, 0, 2:] = 0  # a short word
CHARACTERS[IDS < 3] = 0
BATCH = {"input_ids": jnp.asarray(IDS), "characters": jnp.asarray(CHARACTERS)}


def model(**changes):
    options = {"filters": ((1, 3), (2, 4), (3, 5)), "size": 4, "alphabet": 11}
    return CharacterCNN(vocab=VOCAB, width=6, **options | changes)


def run(module, batch=BATCH):
    inputs = batch, context_of(batch, "bidirectional", False)
    params = bare_layers.drawn(module, *inputs)
    return params, bare_layers.run(module, params, *inputs)


def word(p, codes, kind="relu", highway=2):
    """The vector of one word, character by character."""
    vectors, found = np.where(codes[:, None] > 0, p["characters"][codes], 0.0), []
    for i in range(3):
        kernel, bias = p[f"filter{i}"]["kernel"], p[f"filter{i}"]["bias"]
        places = range(len(codes) - len(kernel) + 1)
        found.append(
            np.max(
                [np.einsum("we,wef->f", vectors[k : k + len(kernel)], kernel) for k in places], 0
            )
            + bias
        )
    x = np.concatenate(found)
    x = np.tanh(x) if kind == "tanh" else np.maximum(x, 0)
    for i in range(highway):
        new, gate = np.split(dense(p[f"highway{i}"], x), 2)
        gate = 1 / (1 + np.exp(-gate))
        x = gate * x + (1 - gate) * np.maximum(new, 0)
    return dense(p["project"], x)


@pytest.mark.parametrize("kind", ["relu", "tanh"])
def test_words_equal_loops(kind):
    params, found = run(
        model(activation=kind, scale=2.0, position=Sinusoids(), symbols=("eos", "unk"))
    )
    for b, t in np.ndindex(IDS.shape):
        own = {0: np.zeros(6), 1: params["symbols"][0], 2: params["symbols"][1]}
        expected = own[IDS[b, t]] if IDS[b, t] in own else word(params, CHARACTERS[b, t], kind)
        place = np.asarray(Sinusoids()(jnp.asarray(t), 6))
        np.testing.assert_allclose(found[b, t], 2.0 * expected + place, atol=1e-5)


def test_short_rows_wide_filters_and_no_symbols():
    """Words of fewer characters than a filter is wide are filled up; without symbols a special
    token is spelled."""
    batch = {"input_ids": jnp.asarray([[3, 1]]), "characters": jnp.asarray([[[4, 5], [7, 0]]])}
    params, found = run(model(symbols=(), highway=0), batch)
    assert set(params) == {"characters", "filter0", "filter1", "filter2", "project"}
    for t, codes in enumerate([[4, 5, 0], [7, 0, 0]]):
        expected = word(params, np.array(codes), highway=0)
        np.testing.assert_allclose(found[0, t], expected, atol=1e-5)


def test_nothing_learns_from_the_character_of_nothing():
    module, inputs = model(), (BATCH, context_of(BATCH, "bidirectional", False))

    def loss(params):
        return (bare_layers.run(module, params, *inputs) ** 2).sum()

    gradient = jax.jit(jax.grad(loss))(bare_layers.drawn(module, *inputs))
    used = np.unique(CHARACTERS[CHARACTERS > 0])
    rows = np.abs(np.asarray(gradient["characters"])).sum(-1)
    assert rows[0] == 0 and (rows[used] > 0).all()
    assert all(np.abs(np.asarray(leaf)).sum() > 0 for leaf in jax.tree.leaves(gradient))


def test_a_highway_begins_by_carrying():
    bias = Highway().init(jax.random.key(0), jnp.ones((1, 3)))["params"]["bias"]
    assert bias.tolist() == [0, 0, 0, 1, 1, 1]


def test_refusals():
    system = systems.get("cloze_cnn_mini")
    assert refusal(system) is None
    bare = dataclasses.replace(system, examples=system.examples.examples)
    assert "wrap the examples in Spelled" in refusal(bare)
    other = dataclasses.replace(system, examples=dataclasses.replace(system.examples, style="elmo"))
    assert "262 characters" in refusal(other)
    tied = systems.get("cloze_mini").towers["main"].heads
    towers = {"main": dataclasses.replace(system.towers["main"], heads=tied)}
    assert "set tied=False" in refusal(dataclasses.replace(system, towers=towers))
    with pytest.raises(UserError, match="which this batch lacks"):
        model().init(jax.random.key(0), {"input_ids": IDS}, None)
