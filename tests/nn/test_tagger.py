"""The readers that put vectors of words beside states, in numpy word by word."""

import jax
import numpy as np

from ptm_jax.core.types import Encoded
from ptm_jax.nn.recurrent.tagger import PooledReader, TagLMReader, WordsReader
from support import bare_layers
from support.recurrences import defined, gru

IDS = np.array([[2, 0, 7, 3], [1, 4, 4, 0]])
SEGMENTS = np.array([[1, 1, 1, 1], [1, 1, 1, 0]])
CHARACTERS = np.array(
    [[[3, 1, 0], [2, 0, 0], [0, 0, 0], [1, 1, 4]], [[4, 0, 0], [1, 2, 3], [2, 2, 0], [0, 0, 0]]]
)
STATES = np.random.default_rng(1).normal(size=(2, 4, 3)).astype(np.float32)
BATCH = {"input_ids": IDS, "segment_ids": SEGMENTS, "characters": CHARACTERS}


def vectors(table):
    return np.where((IDS < len(table))[..., None], table[np.minimum(IDS, len(table) - 1)], 0.0)


def both(p, x, segments):
    """States of both directions, and the last one of each, of one row."""
    ways = [
        defined(gru, p[n], x, segments, backward=n == "left", reset="after")
        for n in ("right", "left")
    ]
    return np.concatenate([way[0] for way in ways], -1), np.concatenate([way[1][0] for way in ways])


def test_vectors_of_words_stand_before_the_states_and_unknown_words_have_none():
    for states in (True, False):
        reader = WordsReader(size=5, width=2, states=states)
        params = bare_layers.drawn(reader, Encoded(STATES), BATCH)
        found = reader.apply({"params": params}, Encoded(STATES), BATCH).hidden
        parts = [vectors(params["token"]), *([STATES] if states else [])]
        np.testing.assert_array_equal(found, np.concatenate(parts, -1))


def test_a_word_has_the_mean_of_its_states_so_far_whatever_the_loss_is_divided_by():
    reader, draw, seen = PooledReader(size=5), np.random.default_rng(2), {}
    params = {"memory": np.zeros((5, 4), np.float32)}

    def forward(params, states, batch):
        return reader.apply({"params": params}, Encoded(states), batch).hidden

    observe = jax.jit(jax.grad(lambda *given: 0.37 * forward(*given).sum()))
    for _ in range(3):
        ids, states = draw.integers(0, 7, (2, 4)), draw.normal(size=(2, 4, 3)).astype(np.float32)
        batch = {"input_ids": ids, "segment_ids": SEGMENTS}
        found = np.asarray(jax.jit(forward)(params, states, batch))
        np.testing.assert_array_equal(found[..., 3:], states)
        real = [(row, place) for row in range(2) for place in range(4) if SEGMENTS[row, place]]
        for at in real:
            every = [*(seen.get(ids[at], ()) if ids[at] < 5 else ()), states[at]]
            np.testing.assert_allclose(found[at][:3], np.mean(every, 0), atol=1e-6)
        for at in real:
            seen.setdefault(ids[at], []).append(states[at])
        params = jax.tree.map(np.add, params, observe(params, states, batch))


def test_taglm_is_its_equations():
    reader = TagLMReader(size=5, width=2, hidden=3, letters=2, letter_width=2, alphabet=5)
    params = bare_layers.drawn(reader, Encoded(STATES), BATCH)
    found = np.asarray(bare_layers.run(reader, params, Encoded(STATES), BATCH).hidden)
    for row in range(2):
        spelled = [
            both(params["spelling"], params["characters"][codes], codes > 0)[1]
            for codes in CHARACTERS[row]
        ]
        x = np.concatenate([spelled, vectors(params["words"]["token"])[row]], -1)
        first, _ = both(params["first"], x, SEGMENTS[row])
        last, _ = both(params["second"], np.concatenate([first, STATES[row]], -1), SEGMENTS[row])
        np.testing.assert_allclose(found[row], last, atol=1e-5)
