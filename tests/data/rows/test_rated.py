"""Rows of rated documents: their text without the rating, cut at the row's end."""

import types

import numpy as np
import pytest

from ptm_jax.core.errors import UserError
from ptm_jax.data.corpora.block_records import Block
from ptm_jax.data.rows.rated import Rated, RatingMarks
from support import cutting

VOCAB = cutting.VOCAB
MARKS = [[50, 60], [51, 61], [52, 62]]
EXAMPLES = Rated(marks=RatingMarks(ratings=("bad", "so", "good")).filled(np.array(MARKS, np.int32)))


def block(documents, continued=()):
    sizes = np.array([len(tokens) for tokens in documents], np.int32)
    goes_on = np.array([number in continued for number in range(len(documents))])
    return Block(
        np.concatenate(documents).astype(np.int32),
        sizes,
        np.ones(len(documents), np.int32),
        goes_on,
    )


def test_rows_are_documents_with_their_ratings():
    draw = np.random.default_rng(0)
    documents = [
        [*row, *draw.integers(1000, 9000, draw.integers(1, 30))]
        for row in [[50], [61], [], [62], [60], [51]] * 9
    ]
    documents.append([52])  # a rating without a text
    continued = {6, 7}
    rows = cutting.cut(EXAMPLES, block(documents, continued), length=12)
    found = sorted(
        (label, *ids)
        for label, ids in zip(rows["label"].tolist(), cutting.texts(rows), strict=True)
    )
    wanted = []
    for number, tokens in enumerate(documents):
        label = next(
            (n for n, mark in enumerate(MARKS) if tokens[0] in mark and number not in continued), -1
        )
        text = tokens[label >= 0 :]
        wanted += [
            (label, VOCAB.cls, *text[i : i + 10], VOCAB.sep) for i in range(0, len(text), 10)
        ]
    assert found == sorted(map(tuple, wanted)) and {*rows["label"].tolist()} == {-1, 0, 1, 2}


def test_ratings_are_single_pieces():
    pieces = ["1", " 1", "2", "3", " 3"]

    def encode(texts):
        return [np.array([pieces.index(text)] if text in pieces else [0, 1]) for text in texts]

    fake = types.SimpleNamespace(encode_batch=encode)
    assert RatingMarks(ratings=("1", "2", "3")).of_tokenizer(fake).tolist() == [
        [0, 1],
        [2, 2],
        [3, 4],
    ]
    with pytest.raises(UserError, match="no piece '4' for a rating"):
        RatingMarks(ratings=("1", "4")).of_tokenizer(fake)
