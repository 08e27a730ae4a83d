"""ELMo's encoder: what padding, packing and carried states change."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.core.towers import Tower, abstract
from ptm_jax.core.types import Vocab
from ptm_jax.encoders.model import Model
from ptm_jax.encoders.recurrent.recurrent import BiLanguageLSTM
from ptm_jax.nn.embeddings.summed import Embeddings
from ptm_jax.nn.recurrent.lstm import LSTM

VOCAB = Vocab(size=32, pad=0)
OPTIONS = {"project": 3, "cell_clip": 3.0, "project_clip": 3.0}
ENCODER = BiLanguageLSTM(
    embed=Embeddings(vocab=VOCAB, width=3),
    right=tuple(LSTM(5, **OPTIONS) for _ in range(2)),
    left=tuple(LSTM(5, backward=True, **OPTIONS) for _ in range(2)),
)
MODULE = Model(encoder=ENCODER, heads={})


@jax.jit
def run(params, ids, segments, carry):
    """(encoded, gradient of the sum of squared states of real tokens by the table)."""
    batch = {"input_ids": ids, "segment_ids": segments, "carry": carry}

    def loss(table):
        given = {**params, "encoder": {**params["encoder"], "embed": {"token": table}}}
        encoded = Tower(MODULE, given)(batch)
        return jnp.square(encoded.hidden * (segments > 0)[..., None]).sum(), encoded

    gradient, encoded = jax.grad(loss, has_aux=True)(params["encoder"]["embed"]["token"])
    return encoded, jnp.abs(gradient).sum(-1)


@pytest.mark.full
def test_rows_begin_at_their_own_ends_and_states_are_carried():
    draw = np.random.default_rng(0)
    ids = jnp.ones((1, 4), jnp.int32)
    shapes = abstract({"main": MODULE}, {"input_ids": ids, "segment_ids": ids})["main"]
    params = jax.tree.map(
        lambda leaf: jnp.asarray(draw.normal(0, 0.7, leaf.shape), jnp.float32), shapes
    )

    def row(*numbers):
        return jnp.asarray(numbers, jnp.int32)

    empty = ENCODER.empty_memory(2)
    # Padding: row 0 has two tokens; in row 1 a document of three tokens stands before one of one
    # token.
    ids, segments = row([1, 2, 3, 4], [5, 6, 7, 8]), row([1, 1, 0, 0], [1, 1, 1, 2])
    found, gradient = run(params, ids, segments, empty)
    assert (np.asarray(gradient)[[1, 2, 5, 6, 7, 8]] > 0).all() and not np.asarray(gradient)[
        [3, 4]
    ].any()
    alone, _ = run(params, row([9, 9, 1, 2], [9, 5, 6, 7]), row([0, 0, 1, 1], [0, 1, 1, 1]), empty)
    np.testing.assert_allclose(found.hidden[0, :2], alone.hidden[0, 2:], atol=1e-6)
    np.testing.assert_allclose(found.hidden[1, :3], alone.hidden[1, 1:], atol=1e-6)
    # Each direction continues: the left one reads tokens 4, 3, 2, 1 and then 8, 7, 6, 5.
    ones = jnp.ones((2, 4), jnp.int32)
    first, _ = run(params, ids, ones, empty)
    second, _ = run(params, ids + 8, ones, first.memory)
    whole, _ = run(params, jnp.concatenate([ids, ids + 8], 1), jnp.tile(ones, 2), empty)
    turned, _ = run(params, jnp.concatenate([ids + 8, ids], 1), jnp.tile(ones, 2), empty)
    np.testing.assert_allclose(second.extra["forward"], whole.extra["forward"][:, 4:], atol=1e-6)
    np.testing.assert_allclose(second.extra["backward"], turned.extra["backward"][:, :4], atol=1e-6)
    assert found.layers.shape == (3, 2, 4, 6) and ENCODER.without_memory().empty_memory(2) is None
