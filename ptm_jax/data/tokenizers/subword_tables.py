"""A second WordPiece vocabulary of a prepared text, and how it divides the pieces of the first."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from ptm_jax.data.tokenizers import vocabularies
from ptm_jax.data.tokenizers.tokenizing import Tokenizer, TokenizerSpec

TOKENS = 20_000_000
"""The first tokens of a text, on which a second vocabulary is trained."""


def second(tokenizer: Tokenizer, blocks: Iterable[Any], size: int) -> Tokenizer:
    """Returns a WordPiece tokenizer of `size` pieces, trained on blocks of another.

    It is trained on the words of the blocks. Raises UserError for a size that the text does not
    support.
    """
    starts = tokenizer.word_starts()
    spec = TokenizerSpec(kind="wordpiece", vocab=size, lowercase=tokenizer.lowercase)
    return vocabularies.make(spec, _lines(tokenizer, blocks, starts))


def _lines(tokenizer: Tokenizer, blocks: Iterable[Any], starts: np.ndarray) -> Iterator[str]:
    """Yields words by their pieces, each as often as the text has it."""
    seen, count = collections.Counter(), 0
    for block in blocks:
        cuts = np.flatnonzero(starts[block.tokens])
        seen.update(
            part.tobytes() for part in np.split(block.tokens.astype(np.int32), cuts) if len(part)
        )
        count += len(block.tokens)
        if count >= TOKENS:
            break
    for word, times in seen.items():
        text = "".join(
            tokenizer.pieces[i].removeprefix("##") for i in np.frombuffer(word, np.int32)
        )
        yield " ".join([text] * times)


def table(tokenizer: Tokenizer, other: Tokenizer, longest: int) -> np.ndarray:
    """Returns [V, `longest`] int32: the ids in `other` of every piece of `tokenizer`, then -1.

    Special tokens have their equals, and what needs more pieces is unknown. A piece that continues
    a word begins with one that does.
    """
    vocab, rows = tokenizer.vocab, np.full((len(tokenizer.pieces), longest), -1, np.int32)
    named = {vocab.id(name): other.vocab.id(name) for name in ("pad", "unk", "cls", "sep", "mask")}
    special, unknown = set(tokenizer.special_pieces.values()), other.vocab.unk
    for number, piece in enumerate(tokenizer.pieces):
        if number in special:
            ids = [named.get(number, unknown)]
        else:
            ids = greedy(piece, other) or [unknown]
        ids = ids if len(ids) <= longest else [unknown]
        rows[number, : len(ids)] = ids
    return rows


def greedy(piece: str, tokenizer: Tokenizer) -> list[int]:
    """Returns the WordPiece ids of a piece, longest match first; [] if none matches."""
    mark, remaining, ids = ("##" if piece.startswith("##") else ""), piece.removeprefix("##"), []
    while remaining:
        size = next(
            (
                n
                for n in range(len(remaining), 0, -1)
                if tokenizer.id(mark + remaining[:n]) is not None
            ),
            0,
        )
        if not size:
            return []
        ids.append(tokenizer.id(mark + remaining[:size]))
        mark, remaining = "##", remaining[size:]
    return ids
