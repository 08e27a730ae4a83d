"""Slots of sentences and sequences of whole sentences, against loops over documents."""

import numpy as np
import pytest

from ptm_jax.data.rows.sentences.sentence_slots import DocumentSentences, DocumentSlots
from support.cutting import VOCAB, block, bounds, cut


def sentences_of(given, size):
    """Pieces of at most `size` tokens of every sentence, by document."""
    at, found = given.sentence_starts, []
    for first, stop in bounds(given.document_starts):
        texts = [given.tokens[at[s] : at[s + 1]].tolist() for s in range(first, stop)]
        found.append([text[i : i + size] for text in texts for i in range(0, len(text), size)])
    return found


@pytest.mark.parametrize("slots, width", [(4, 9), (1, 30), (6, 3)])
def test_slots(slots, width):
    given = block(25, 1)
    rows, wanted = cut(DocumentSlots(sentences=slots, width=width), given, slots * width), []
    for texts in sentences_of(given, width - 2):
        for first in range(0, len(texts), slots):
            row = [[VOCAB.cls, *text, VOCAB.sep] for text in texts[first : first + slots]]
            row += [[]] * (slots - len(row))
            wanted.append([slot + [VOCAB.pad] * (width - len(slot)) for slot in row])
    ids = np.array(wanted, np.int32)
    real = ids != VOCAB.pad
    shape = (-1, slots, width)
    assert np.array_equal(rows["input_ids"].reshape(shape), ids)
    assert np.array_equal(
        rows["segment_ids"].reshape(shape), real * np.arange(1, slots + 1)[:, None]
    )
    assert np.array_equal(rows["positions"].reshape(shape), real * np.arange(width))


@pytest.mark.parametrize("length", [5, 24, 128])
@pytest.mark.parametrize("seed", range(3))
def test_sequences_of_one_document(length, seed):
    given = block(30, seed)
    wanted = []
    for texts in sentences_of(given, length - 2):
        sequence = []
        for text in texts:
            if len(sequence) + len(text) > length - 2:
                wanted.append(sequence)
                sequence = []
            sequence = sequence + text
        wanted.append(sequence)
    rows, found = cut(DocumentSentences(), given, length, seed), []
    for ids, segments in zip(rows["input_ids"], rows["segment_ids"], strict=True):
        for number in range(1, segments.max() + 1):
            where = segments == number
            piece = ids[where].tolist()
            assert piece[0] == VOCAB.cls and piece[-1] == VOCAB.sep
            found.append(piece[1:-1])
    assert sorted(found) == sorted(wanted)
