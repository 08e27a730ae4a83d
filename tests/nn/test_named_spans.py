"""GLiNER's head against its definition: the whole MLP of each span, and no padding in it."""

import numpy as np
import pytest

from ptm_jax.nn.heads.knowledge.named_spans import NamedSpans
from support.bare_layers import dense, drawn, run

STATES = np.random.default_rng(0).normal(size=(2, 7, 6)).astype(np.float32)
WORDS = np.array([[4, 5, 6, 0], [3, 0, 0, 0]])
TYPES = np.array([[1, 2], [1, 0]])


def relu(x):
    return np.maximum(x, 0)


def test_a_score_is_the_product_of_the_span_and_its_type():
    head = NamedSpans(longest=3, features=4)
    p = drawn(head, STATES, WORDS, TYPES)
    scores = run(head, p, STATES, WORDS, TYPES)
    assert scores.shape == (2, 4, 3, 2)

    def network(name, x):
        return dense(p[f"{name}_out"], relu(dense(p[f"{name}_in"], x)))

    states = dense(p["project"], STATES)
    kernel = np.concatenate([p["span_start"], p["span_end"]])
    for row, word, more, kind in np.ndindex(2, 4, 3, 2):
        if word + more < 4 and WORDS[row, word] and WORDS[row, word + more] and TYPES[row, kind]:
            first, last = (states[row, WORDS[row, place] - 1] for place in (word, word + more))
            ends = np.concatenate([network("start", first), network("end", last)])
            inner = relu(relu(ends) @ kernel + p["span_bias"])
            span = inner @ p["span_out"] + p["span_out_bias"]
            wanted = span @ network("type", states[row, TYPES[row, kind] - 1])
            np.testing.assert_allclose(scores[row, word, more, kind], wanted, rtol=1e-4, atol=1e-5)


def test_padding_is_not_read_by_the_lstm():
    head = NamedSpans(longest=2, recurrent=1)
    p = drawn(head, STATES, WORDS, TYPES)
    longer = np.concatenate([STATES, np.ones((2, 3, 6), np.float32)], 1)
    more = np.concatenate([WORDS, np.zeros((2, 3), int)], 1)
    before, after = run(head, p, STATES, WORDS, TYPES), run(head, p, longer, more, TYPES)
    np.testing.assert_allclose(after[0, :3], before[0, :3], rtol=1e-5, atol=1e-6)


def test_sizes_without_a_meaning_are_refused():
    with pytest.raises(ValueError, match="longest is 0"):
        NamedSpans(longest=0)
