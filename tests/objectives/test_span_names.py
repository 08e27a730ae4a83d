"""The loss of GLiNER in numpy: each span inside the text for each type of the row."""

import numpy as np
import pytest

from ptm_jax.objectives.tasks.span_names import SpanNames, targets
from support.plain_towers import batch_of, check, states_of


def definition(alpha, gamma):
    def terms(p, b):
        x, total = states_of(p, b), 0.0
        for row, word, more, kind in np.ndindex(3, 6, 2, 2):
            places, types = b["word_places"][row], b["type_places"][row]
            if word + more > 5 or not places[word] or not places[word + more] or not types[kind]:
                continue
            h = sum(x[row, places[word + step] - 1] for step in range(more + 1))
            score = h @ p["match"] @ x[row, types[kind] - 1]
            marks = zip(*(b[f"span_{name}"][row] for name in ("starts", "sizes", "types")),
                        strict=True)  # fmt: skip
            entity = (word + 1, more + 1, kind + 1) in {tuple(map(int, mark)) for mark in marks}
            right = 1 / (1 + np.exp(-score if entity else score))
            weight = 1.0 if alpha is None else alpha if entity else 1 - alpha
            total -= weight * (1 - right) ** gamma * np.log(right)
        return [(total, (b["segment_ids"] > 0).any(1).sum())]

    return terms


@pytest.mark.full
@pytest.mark.parametrize(("alpha", "gamma"), [(None, 0.0), (0.75, 2.0)])
def test_the_loss_is_of_each_span_and_type(alpha, gamma):
    check(SpanNames(alpha=alpha, gamma=gamma), definition(alpha, gamma))


def test_targets_are_the_entities_and_padding_is_none():
    truth = np.asarray(targets(batch_of(), (3, 6, 2, 2)))
    assert {*map(tuple, np.argwhere(truth))} == {
        (0, 0, 1, 0), (0, 2, 0, 1), (0, 0, 0, 1), (1, 1, 1, 0),
    }  # fmt: skip


def test_wrong_weights_are_refused():
    with pytest.raises(ValueError, match="alpha is 2"):
        SpanNames(alpha=2.0)
