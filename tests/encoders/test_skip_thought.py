"""Skip-thought: sentence vectors, the conditioned decoders, and the sentences beside, in numpy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.core.types import Vocab
from ptm_jax.encoders.recurrent.skip_thought import SkipThought
from ptm_jax.nn.embeddings.summed import Embeddings
from ptm_jax.nn.initializers import Orthogonal
from ptm_jax.nn.recurrent.gru import GRU
from ptm_jax.nn.recurrent.recurrence import Bidirectional
from ptm_jax.statistics.sentences import beside
from support.bare_layers import drawn
from support.recurrences import defined, gru

H, D = 4, 3
SEGMENTS = np.array([[1, 1, 2, 2, 2, 3, 3, 0], [1, 1, 1, 2, 2, 2, 2, 2]])
DOCUMENTS = np.array([[5, 5, 5, 5, 5, 6, 6, 0], [7, 7, 7, 7, 7, 7, 7, 7]])
BATCH = {
    "input_ids": jnp.arange(16).reshape(2, 8),
    "segment_ids": jnp.asarray(SEGMENTS),
    "documents": jnp.asarray(DOCUMENTS),
}


def other(b, t, step):
    """The segment before (-1) or after (1) that of token t in its document, or None."""
    number = SEGMENTS[b, t] + step
    there = np.flatnonzero(
        (SEGMENTS[b] == number) & (DOCUMENTS[b] == DOCUMENTS[b, t]) & (number > 0)
    )
    return there if len(there) and SEGMENTS[b, t] else None


@pytest.mark.full
@pytest.mark.parametrize("kind", ["uni", "bi"])
def test_each_decoder_reads_the_vector_of_the_sentence_beside(kind):
    sentence = GRU(H) if kind == "uni" else Bidirectional(GRU(H), GRU(H, backward=True))
    encoder = SkipThought(
        embed=Embeddings(vocab=Vocab(size=20), width=D),
        sentence=sentence,
        following=GRU(H),
        preceding=GRU(H),
    )
    params = drawn(encoder, BATCH)
    found = encoder.apply({"params": params}, BATCH)
    for b, segments in enumerate(SEGMENTS):
        x = params["embed"]["token"][np.asarray(BATCH["input_ids"][b])]
        if kind == "uni":
            states = defined(gru, params["sentence"], x, segments)[0]

            def vector(there, states=states):
                return states[there[-1]]
        else:
            right, left = (
                defined(gru, params["sentence"][n], x, segments, backward=n == "left")[0]
                for n in ("right", "left")
            )
            states = np.concatenate([right, left], -1)

            def vector(there, right=right, left=left):
                return np.concatenate([right[there[-1]], left[there[0]]])

        np.testing.assert_allclose(found.hidden[b], states, atol=1e-6)
        for name, decoder, step in (("forward", "following", -1), ("backward", "preceding", 1)):
            for number in range(1, segments.max() + 1):
                mine = np.flatnonzero(segments == number)
                read = np.concatenate([np.zeros((1, D)), x[mine[:-1]]])
                there = other(b, mine[0], step)
                more = (
                    0.0 if there is None else vector(there) @ params[f"condition_{name}"]["kernel"]
                )
                expected = defined(gru, params[decoder], read, np.ones(len(mine), int), more=more)[
                    0
                ]
                np.testing.assert_allclose(found.extra[name][b, mine], expected, atol=1e-6)
                np.testing.assert_allclose(
                    found.extra["vectors"][b, mine], [vector(mine)] * len(mine), atol=1e-6
                )


def test_the_sentences_beside_are_of_the_same_document():
    found = np.asarray(beside(BATCH))
    expected = [
        [[other(b, t, step) is not None for t in range(8)] for b in range(2)] for step in (-1, 1)
    ]
    np.testing.assert_array_equal(found, expected)


def test_a_kernel_of_the_state_is_orthogonal_in_every_gate():
    kernel = np.asarray(Orthogonal()(jax.random.key(0), (6, 18)))
    for gate in np.split(kernel, 3, -1):
        np.testing.assert_allclose(gate @ gate.T, np.eye(6), atol=1e-5)
    assert np.abs(kernel[:, :6] - kernel[:, 6:12]).max() > 0.1
