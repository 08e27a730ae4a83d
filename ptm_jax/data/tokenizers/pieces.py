"""The pieces of a text and the characters of each, for any tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from ptm_jax.data.tokenizers.tokenizing import Tokenizer


class Pieces(NamedTuple):
    """ids [T] of a text, and the start [T] and end [T] of each in characters."""

    ids: np.ndarray
    starts: np.ndarray
    ends: np.ndarray


def pieces_of(tokenizer: Tokenizer, texts: Sequence[str]) -> list[Pieces]:
    """Returns the ids of `encode` for every text, each with the characters that it spells.
    Blanks around them are left out.

    A piece of blanks alone has no characters: its start is its end.
    """
    rows = tokenizer.spans(texts)
    marks = [i for i in (tokenizer.id("▁"), tokenizer.id("Ġ")) if i is not None]
    return [
        _trimmed(text, np.isin(row.ids, marks), *row) for text, row in zip(texts, rows, strict=True)
    ]


def words_of(tokenizer: Tokenizer, words: Sequence[Sequence[str]]) -> list[list[np.ndarray]]:
    """Returns the ids of every word of every sentence.
    A word without ids (invisible characters) is the unknown piece."""
    mark = " " if tokenizer.kind == "bytebpe" else ""
    every = list(dict.fromkeys(mark + word for sentence in words for word in sentence))
    known = dict(zip(every, tokenizer.encode_batch(every), strict=True))
    vocab = tokenizer.vocab
    blank = np.array([i for i in (vocab.unk, vocab.mask, vocab.sep) if i is not None][:1], np.int32)
    return [
        [ids if len(ids := known[mark + word]) else blank for word in sentence]
        for sentence in words
    ]


def _trimmed(text: str, bare: np.ndarray, ids: np.ndarray, characters: np.ndarray) -> Pieces:
    """Returns pieces whose characters neither begin nor end with a blank, in order of their
    starts."""
    blank = np.array([c.isspace() for c in text] + [False], bool)
    places = np.arange(len(text) + 1)
    after = np.minimum.accumulate(np.where(blank, len(text), places)[::-1])[::-1]
    before = np.maximum.accumulate(np.where(blank[:-1], 0, places[1:])) if text else places[:0]
    before = np.append(0, before)  # the end of the last character that is no blank
    starts, ends = characters.T
    starts = np.maximum.accumulate(after[starts]) if len(ids) else starts
    ends = np.where(bare, starts, np.maximum(starts, before[ends]))
    return Pieces(ids, starts.astype(np.int32), ends.astype(np.int32))
