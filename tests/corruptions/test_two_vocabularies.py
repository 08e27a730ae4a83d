"""Rows in two vocabularies, token by token in plain Python; the second vocabulary beside the
tokenizers library."""

import dataclasses

import jax
import numpy as np
import pytest

from ptm_jax.core.errors import UserError
from ptm_jax.core.types import Vocab
from ptm_jax.corruptions.masking.two_vocabularies import TwoVocabularies
from ptm_jax.data.corpora.block_records import Block
from ptm_jax.data.tokenizers import subword_tables, vocabularies
from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec
from ptm_jax.knowledge.second_vocabulary import SecondVocabulary

VOCAB = Vocab(size=60, pad=0, unk=1, cls=2, sep=3, mask=4)
FACT = SecondVocabulary(vocabulary=30, longest=3)
FACT = FACT.filled(FACT.stand_in(VOCAB))


def batch(rows=64, length=16):
    draw = np.random.default_rng(0)
    sizes = draw.integers(3, length + 1, rows)
    real = np.arange(length) < sizes[:, None]
    ids = np.where(real, draw.integers(5, VOCAB.size, (rows, length)), 0)
    ids[:, 0], starts = VOCAB.cls, real & (draw.random((rows, length)) < 0.7)
    starts[:, 0], starts[:, 1] = False, True
    fields = {"input_ids": ids, "segment_ids": real, "word_starts": starts, "rows": np.arange(rows)}
    return {name: np.asarray(value, np.int32) for name, value in fields.items()}


def unmasked(out, view):
    """The rows before their masks."""
    ids = np.array(out[f"{view}_input_ids"])
    for r, places in enumerate(np.asarray(out[f"{view}_mlm_positions"])):
        for prefix, first in (("mlm", 0), *([("second", VOCAB.size)] if view == "mixed" else [])):
            used = np.asarray(out[f"{view}_{prefix}_weights"])[r] > 0
            ids[r, places[used]] = first + np.asarray(out[f"{view}_{prefix}_labels"])[r][used]
    return ids


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_every_word_has_the_pieces_of_one_vocabulary(share):
    given = batch()
    out = jax.jit(TwoVocabularies(vocab=VOCAB, second=FACT, share=share, room=1.5))(
        jax.random.key(0), given
    )
    pieces = [[int(i) for i in row if i >= 0] for row in FACT.values]
    mixed, student, second = unmasked(out, "mixed"), unmasked(out, "student"), []
    for r, row in enumerate(given["input_ids"]):
        tokens = [int(i) for i, real in zip(row, given["segment_ids"][r], strict=True) if real]
        own = [piece for token in tokens for piece in pieces[token]]
        assert student[r].tolist() == (own + [0] * 24)[:24] and np.asarray(
            out["student_segment_ids"]
        )[r].sum() == len(own)
        left, chosen = mixed[r].tolist(), None
        for place, token in enumerate(tokens):
            if given["word_starts"][r, place] or place == 0:
                chosen = left[0] >= VOCAB.size
                second += [chosen] * (place > 0)
            expected = [VOCAB.size + piece for piece in pieces[token]] if chosen else [token]
            assert left[: len(expected)] == expected
            left = left[len(expected) :]
        assert not any(left)
    assert abs(np.mean(second) - share) <= 3 * np.sqrt(share * (1 - share) / len(second))
    assert (np.asarray(out["input_ids"]) == given["input_ids"]).all()


def test_what_it_refuses():
    with pytest.raises(ValueError, match="share is 2"):
        TwoVocabularies(vocab=VOCAB, share=2)
    with pytest.raises(UserError, match="reads word_starts"):
        TwoVocabularies(vocab=VOCAB, second=FACT)(
            jax.random.key(0), {"input_ids": np.ones((1, 4), np.int32)}
        )


def test_the_second_vocabulary_divides_words_as_wordpiece_does():
    """Words that the first vocabulary has whole: their pieces are those of the library's
    WordPiece."""
    text = [
        "the cat sat on the mat while the other cats played",
        "a player plays and played the matted game again",
    ] * 4
    first = vocabularies.make(TokenizerSpec(kind="wordpiece", vocab=70), text)
    rows = first.encode_batch(text)
    block = Block(np.concatenate(rows), *(np.zeros(0, np.int32),) * 3)
    other = subword_tables.second(first, [block], 50)
    table = subword_tables.table(first, other, 8)
    assert other.vocab == dataclasses.replace(SecondVocabulary(vocabulary=50).vocab)
    whole = [(i, piece) for i, piece in enumerate(first.pieces) if piece.isalpha()]
    assert len(whole) > 15
    for number, piece in whole:
        assert [int(i) for i in table[number] if i >= 0] == other.encode(piece).tolist(), piece
    assert table[first.vocab.mask, 0] == other.vocab.mask and (table[:, 0] >= 0).all()
