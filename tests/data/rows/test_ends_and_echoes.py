"""Rows of a text from its end, and of texts that stand twice, against their descriptions."""

import numpy as np

from ptm_jax.data.rows.backward import Backward
from ptm_jax.data.rows.echoed import Echoed
from ptm_jax.data.rows.examples import Contiguous
from support import cutting
from support.cutting import FIRST, VOCAB


def test_the_rows_of_a_backward_model_are_the_text_from_its_end():
    block = cutting.block(documents=5)
    found = cutting.cut(Backward(examples=Contiguous()), block, 16)
    documents = np.split(block.tokens, block.document_tokens[1:-1])
    text = np.concatenate([[*document[::-1], VOCAB.eos] for document in documents[::-1]])
    np.testing.assert_array_equal(found["input_ids"][found["segment_ids"] > 0], text)
    assert Backward(examples=Contiguous(continuing=True)).continuing


def test_an_autoencoder_reads_a_text_and_writes_it_again():
    block, length = cutting.block(documents=6, longest=8, sentences=4), 32
    found, pieces = cutting.cut(Echoed(), block, length), []
    for row, segments, again in zip(
        *(found[name] for name in ("input_ids", "segment_ids", "again")), strict=True
    ):
        for number in range(1, segments.max() + 1):
            piece, second = row[segments == number], again[segments == number]
            half = len(piece) // 2
            np.testing.assert_array_equal(piece[:half], piece[half:])
            assert piece[-1] == VOCAB.eos and (second == (np.arange(len(piece)) >= half)).all()
            pieces.append(piece[: half - 1])
        assert not again[segments == 0].any()
    expected = [
        document[start : start + length // 2 - 1]
        for document in np.split(block.tokens, block.document_tokens[1:-1])
        for start in range(0, len(document), length // 2 - 1)
    ]
    assert (
        sorted(map(tuple, pieces)) == sorted(map(tuple, expected))
        and min(map(min, pieces)) >= FIRST
    )
