"""The readers that put vectors of words beside states, in numpy word by word."""

import numpy as np

from ptm_jax.core.types import Encoded
from ptm_jax.nn.recurrent.tagger import TagLMReader, WordsReader
from support import bare_layers
from support.recurrences import defined, gru

IDS = np.array([[2, 0, 7, 3], [1, 4, 4, 0]])
SEGMENTS = np.array([[1, 1, 1, 1], [1, 1, 1, 0]])
CHARACTERS = np.array([[[3, 1, 0], [2, 0, 0], [0, 0, 0], [1, 1, 4]], [[4, 0, 0], [1, 2, 3], [2, 2, 0], [0, 0, 0]]])
STATES = np.random.default_rng(1).normal(size=(2, 4, 3)).astype(np.float32)
BATCH = {"input_ids": IDS, "segment_ids": SEGMENTS, "characters": CHARACTERS}


def vectors(table):
    return np.where((IDS < len(table))[..., None], table[np.minimum(IDS, len(table) - 1)], 0.0)


def both(p, x, segments):
    """States of both directions, and the last one of each, of one row."""
    ways = [defined(gru, p[n], x, segments, backward=n == "left", reset="after") for n in ("right", "left")]
    return np.concatenate([way[0] for way in ways], -1), np.concatenate([way[1][0] for way in ways])


def test_vectors_of_words_stand_before_the_states_and_unknown_words_have_none():
    for states in (True, False):
        reader = WordsReader(size=5, width=2, states=states)
        params = bare_layers.drawn(reader, Encoded(STATES), BATCH)
        found = reader.apply({"params": params}, Encoded(STATES), BATCH).hidden
        parts = [vectors(params["token"]), *([STATES] if states else [])]
        np.testing.assert_array_equal(found, np.concatenate(parts, -1))


def test_taglm_is_its_equations():
    reader = TagLMReader(size=5, width=2, hidden=3, letters=2, letter_width=2, alphabet=5)
    params = bare_layers.drawn(reader, Encoded(STATES), BATCH)
    found = np.asarray(bare_layers.run(reader, params, Encoded(STATES), BATCH).hidden)
    for row in range(2):
        spelled = [both(params["spelling"], params["characters"][codes], codes > 0)[1] for codes in CHARACTERS[row]]
        x = np.concatenate([spelled, vectors(params["words"]["token"])[row]], -1)
        first, _ = both(params["first"], x, SEGMENTS[row])
        last, _ = both(params["second"], np.concatenate([first, STATES[row]], -1), SEGMENTS[row])
        np.testing.assert_allclose(found[row], last, atol=1e-5)
