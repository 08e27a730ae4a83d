"""A recurrent encoder that reads a text from its end, and one whose gradient stops between pieces,
against torch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.core.types import Vocab
from ptm_jax.encoders.recurrent.recurrent import LSTMEncoder
from ptm_jax.nn.embeddings.summed import Embeddings
from ptm_jax.nn.recurrent.lstm import LSTM
from support.bare_layers import drawn

VOCAB, HIDDEN, LENGTH, PIECE = Vocab(size=19), 4, 8, 3


def encoder(**fields):
    layers = (LSTM(HIDDEN, forget=0.0), LSTM(HIDDEN, forget=0.0))
    return LSTMEncoder(embed=Embeddings(vocab=VOCAB, width=3), layers=layers, **fields)


def batch_of(*lengths):
    ids = np.random.default_rng(0).integers(0, VOCAB.size, (len(lengths), LENGTH))
    segments = (np.arange(LENGTH) < np.array(lengths)[:, None]).astype(int)
    return {
        "input_ids": jnp.asarray(ids, jnp.int32),
        "segment_ids": jnp.asarray(segments, jnp.int32),
    }


@pytest.mark.full
@pytest.mark.parametrize("backward", [False, True])
def test_no_gradient_passes_from_piece_to_piece(backward):
    """Pieces of three tokens; torch reads one after the other from a detached state."""
    torch = pytest.importorskip("torch")
    whole = encoder(bptt=PIECE)
    whole, batch = whole.turned() if backward else whole, batch_of(LENGTH, LENGTH)
    params, weights = (
        drawn(whole, batch),
        np.random.default_rng(1).normal(size=(2, LENGTH, HIDDEN)).astype(np.float32),
    )

    def loss(params):
        return (whole.apply({"params": params}, batch).hidden * weights).sum()

    value, gradients = jax.value_and_grad(loss)(params)
    table = torch.tensor(np.asarray(params["embed"]["token"]), requires_grad=True)
    layers = [torch.nn.LSTM(size, HIDDEN, batch_first=True) for size in (3, HIDDEN)]
    for number, layer in enumerate(layers):
        mine = params[f"layers_{number}"]
        for name, kernel in (
            ("weight_ih_l0", mine["inputs"]["kernel"].T),
            ("weight_hh_l0", mine["state"].T),
        ):
            getattr(layer, name).data = torch.tensor(np.array(kernel))
        layer.bias_ih_l0.data, layer.bias_hh_l0.data = (
            torch.tensor(np.array(mine["inputs"]["bias"])),
            torch.zeros(4 * HIDDEN),
        )
    places = np.arange(LENGTH)[::-1].copy() if backward else np.arange(LENGTH)
    # A row of 8 tokens is 3 + 3 + 2 from the left; from the right the piece of 2 comes first.
    cuts = [LENGTH % PIECE, LENGTH % PIECE + PIECE] if backward else [PIECE, 2 * PIECE]
    x, total = table[torch.tensor(np.array(batch["input_ids"]))], 0.0
    states = [None, None]
    for piece in np.split(places, cuts):
        h = x[:, piece.copy()]
        for number, layer in enumerate(layers):
            state = (
                None if states[number] is None else tuple(part.detach() for part in states[number])
            )
            h, states[number] = layer(h, state)
        total = total + (h * torch.tensor(weights[:, piece])).sum()
    total.backward()
    np.testing.assert_allclose(value, total.detach(), rtol=1e-5)
    np.testing.assert_allclose(gradients["embed"]["token"], table.grad, atol=1e-5)
    for number, layer in enumerate(layers):
        np.testing.assert_allclose(
            gradients[f"layers_{number}"]["state"], layer.weight_hh_l0.grad.T, atol=1e-5
        )
        np.testing.assert_allclose(
            gradients[f"layers_{number}"]["inputs"]["kernel"], layer.weight_ih_l0.grad.T, atol=1e-5
        )


@pytest.mark.full
def test_an_encoder_that_is_turned_reads_a_text_as_the_other_reads_it_from_its_end():
    plain, batch = encoder(), batch_of(5, LENGTH)
    params, turned = drawn(plain, batch), encoder().turned()
    states = np.asarray(turned.apply({"params": params}, batch).hidden)
    ends = {
        "input_ids": jnp.stack(
            [batch["input_ids"][0, np.r_[4:-1:-1, 5:8]], batch["input_ids"][1, ::-1]]
        )
    }
    before = np.asarray(plain.apply({"params": params}, {**batch, **ends}).hidden)
    np.testing.assert_allclose(states[0, :5], before[0, 4::-1], atol=1e-6)
    np.testing.assert_allclose(states[1], before[1, ::-1], atol=1e-6)
    assert turned.direction == "backward" and turned.turned() == plain
