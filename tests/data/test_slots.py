"""Slots of sentences and sequences of whole sentences, against loops over documents."""

from __future__ import annotations

import numpy as np
import pytest
from test_examples import VOCAB, bounds, make_block

from ptm_jax.core.errors import UserError
from ptm_jax.data.slots import DocumentSentences, DocumentSlots


def cut(kind, block, length, seed=0):
    return kind.rows(block, length=length, vocab=VOCAB, rng=np.random.default_rng(seed))


def sentences_of(block, size):
    """Pieces of at most `size` tokens of every sentence, by document."""
    at, found = block.sentence_starts, []
    for first, stop in bounds(block.document_starts):
        texts = [block.tokens[at[s] : at[s + 1]].tolist() for s in range(first, stop)]
        found.append([text[i : i + size] for text in texts for i in range(0, len(text), size)])
    return found


@pytest.mark.parametrize("slots, width", [(4, 9), (1, 30), (6, 3)])
def test_slots(slots, width):
    block = make_block(25, 1)
    rows, wanted = cut(DocumentSlots(sentences=slots, width=width), block, slots * width), []
    for texts in sentences_of(block, width - 2):
        for first in range(0, len(texts), slots):
            row = [[VOCAB.cls, *text, VOCAB.sep] for text in texts[first : first + slots]]
            row += [[]] * (slots - len(row))
            wanted.append([slot + [VOCAB.pad] * (width - len(slot)) for slot in row])
    ids = np.array(wanted, np.int32)
    real = ids != VOCAB.pad
    shape = (-1, slots, width)
    assert np.array_equal(rows["input_ids"].reshape(shape), ids)
    assert np.array_equal(rows["segment_ids"].reshape(shape), real * np.arange(1, slots + 1)[:, None])
    assert np.array_equal(rows["positions"].reshape(shape), real * np.arange(width))
    spec = DocumentSlots(sentences=slots, width=width).spec(slots * width, VOCAB)
    assert list(spec) == list(rows)


@pytest.mark.parametrize("length", [5, 24, 128])
@pytest.mark.parametrize("seed", range(3))
def test_sequences_of_one_document(length, seed):
    block = make_block(30, seed)
    wanted = []
    for texts in sentences_of(block, length - 2):
        sequence = []
        for text in texts:
            if len(sequence) + len(text) > length - 2:
                wanted.append(sequence)
                sequence = []
            sequence = sequence + text
        wanted.append(sequence)
    rows, found = cut(DocumentSentences(), block, length, seed), []
    for ids, segments, positions in zip(rows["input_ids"], rows["segment_ids"], rows["positions"], strict=True):
        assert np.all(np.diff(segments[segments > 0]) >= 0) and np.array_equal(segments == 0, ids == VOCAB.pad)
        for number in range(1, segments.max() + 1):
            where = segments == number
            piece = ids[where].tolist()
            assert piece[0] == VOCAB.cls and piece[-1] == VOCAB.sep
            assert np.array_equal(positions[where], np.arange(len(piece)))
            found.append(piece[1:-1])
    assert sorted(found) == sorted(wanted)
    again = cut(DocumentSentences(), block, length, seed)
    assert all(np.array_equal(rows[name], again[name]) for name in rows)


@pytest.mark.parametrize("call, message", [
    (lambda: DocumentSlots(sentences=0), "expected at least 1 and 3"),
    (lambda: DocumentSlots(sentences=4, width=8).spec(64, VOCAB), "set the length of the phase to 32"),
    (lambda: DocumentSentences().spec(2, VOCAB), "have no room beside 2"),
])  # fmt: skip
def test_bad_requests(call, message):
    with pytest.raises(UserError, match=message):
        call()
