"""Rows of one sentence, against the list of the sentences."""

import numpy as np

from ptm_jax.data.rows.sentences.one_sentence import OneSentence
from support import cutting
from support.cutting import VOCAB


def test_each_row_has_one_sentence_between_its_special_tokens():
    """A sentence of more than 10 tokens is divided."""
    block = cutting.block(longest=25)
    rows = OneSentence().rows(block, length=12, vocab=VOCAB, rng=np.random.default_rng(0))
    ends = np.cumsum(block.sentences)
    pieces = {
        tuple(block.tokens[start : min(start + 10, end)])
        for first, end in zip(ends - block.sentences, ends, strict=True)
        for start in range(first, end, 10)
    }
    texts = [row[row != VOCAB.pad] for row in rows["input_ids"]]
    assert all(row[0] == VOCAB.cls and row[-1] == VOCAB.sep for row in texts)
    assert {tuple(row[1:-1]) for row in texts} == pieces and len(texts) == len(pieces)
    assert set(np.unique(rows["segment_ids"])) == {0, 1}
