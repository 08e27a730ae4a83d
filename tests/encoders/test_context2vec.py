"""The context of a word: its definition in numpy, and gaps that it fills."""

import jax.numpy as jnp
import numpy as np

from ptm_jax.core.types import Vocab
from ptm_jax.encoders.context2vec import ContextLSTM
from ptm_jax.nn.recurrent.lstm import LSTM
from support.bare_layers import dense, drawn
from support.recurrences import defined, lstm

VOCAB = Vocab(size=30)
SEGMENTS = np.array([[1, 1, 1, 1, 2, 2, 0], [1, 2, 2, 2, 2, 2, 2]])


def test_the_vector_of_a_context_is_an_mlp_of_the_states_on_both_sides():
    encoder = ContextLSTM(vocab=VOCAB, width=3, right=LSTM(4), left=LSTM(4, backward=True), hidden=5, out=2)
    batch = {"input_ids": jnp.arange(14).reshape(2, 7), "segment_ids": jnp.asarray(SEGMENTS)}
    params = drawn(encoder, batch)
    found = encoder.apply({"params": params}, batch).hidden
    for b, segments in enumerate(SEGMENTS):
        x = params["token"][np.asarray(batch["input_ids"][b])]
        ahead, behind = (defined(lstm, params[n], x, segments, backward=n == "left")[0] for n in ("right", "left"))
        for t in np.flatnonzero(segments):
            mine = lambda k, b=b: 0 <= k < 7 and SEGMENTS[b, k] == segments[t]  # noqa: B023
            sides = [ahead[t - 1] if mine(t - 1) else np.zeros(4), behind[t + 1] if mine(t + 1) else np.zeros(4)]
            inner = np.maximum(dense(params["inner"], np.concatenate(sides)), 0)
            np.testing.assert_allclose(found[b, t], dense(params["outer"], inner), atol=1e-6)
