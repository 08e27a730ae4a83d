"""Rows of dialogues, turn by turn."""

import numpy as np
import pytest

from ptm_jax.core.errors import UserError
from ptm_jax.data.corpora.block_records import Block
from ptm_jax.data.rows.sentences.dialogues import Dialogues
from support import cutting
from support.cutting import VOCAB


def turns(*documents):
    """A block of dialogues, each a list of turns."""
    flat = [turn for document in documents for turn in document]
    return Block(
        np.concatenate(flat).astype(np.int32),
        np.array([len(turn) for turn in flat], np.int32),
        np.array([len(document) for document in documents], np.int32),
        np.zeros(len(documents), bool),
    )


FIRST = [[10, 11], [12], [13, 14, 15], [16], [17]]
SECOND = [[20], [21, 22, 23, 24]]


def test_rows_of_three_turns():
    made = cutting.cut(Dialogues(fake_probability=0.0), turns(FIRST, SECOND), 16)
    c, s = VOCAB.cls, VOCAB.sep
    assert cutting.texts(made) == [
        [c, 10, 11, s, 12, s, 13, 14, 15, s],
        [c, 16, s, 17, s],
        [c, 20, s, 21, 22, 23, 24, s],
    ]
    types = [made["token_type_ids"][r][made["segment_ids"][r] > 0].tolist() for r in range(3)]
    assert types == [
        [0, 0, 0, 0, 1, 1, 0, 0, 0, 0],
        [0, 1, 1, 0, 0],
        [0, 0, 0, 1, 1, 1, 1, 1],
    ]
    assert made["next_label"].tolist() == [0, 0, 0]


def test_the_longest_turns_lose_their_ends():
    made = cutting.cut(Dialogues(fake_probability=0.0), turns([[*range(10, 30)], [7], [8, 9]]), 12)
    c, s = VOCAB.cls, VOCAB.sep
    assert cutting.texts(made) == [[c, *range(10, 15), s, 7, s, 8, 9, s]]


def test_a_fake_row_has_one_turn_of_another_dialogue():
    given = turns(*([[[100 * d + t] for t in range(6)] for d in range(1, 40)]))
    made = cutting.cut(Dialogues(), given, 8, seed=4)
    labels, places = made["next_label"], []
    for ids, label in zip(made["input_ids"], labels, strict=True):
        owners, numbers = np.divmod(ids[[1, 3, 5]], 100)
        values, counts = np.unique(owners, return_counts=True)
        assert counts.max() == 3 - label
        if label:
            places.append(int(np.flatnonzero(owners == values[counts.argmin()])[0]))
        else:
            assert numbers.tolist() in ([0, 1, 2], [3, 4, 5])
    assert abs(labels.mean() - 0.5) < 3 * 0.5 / np.sqrt(len(labels)) and set(places) == {0, 1, 2}


def test_one_dialogue_has_no_fakes_and_wrong_numbers_are_one_line():
    assert not cutting.cut(Dialogues(fake_probability=1.0), turns(FIRST), 16)["next_label"].any()
    with pytest.raises(UserError, match="turns is 1"):
        Dialogues(turns=1)
