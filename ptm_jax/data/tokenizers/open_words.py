"""Words without a vocabulary, for models that read spellings alone.
Peters et al. 2018, section 3.4."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from ptm_jax.core.errors import UserError
from ptm_jax.core.types import Vocab
from ptm_jax.data.tokenizers import words
from ptm_jax.data.tokenizers.framing import Spans, spans
from ptm_jax.data.tokenizers.tokenizing import HuggingFace, Tokenizer, TokenizerSpec

WORDS = "words.json"
"""The file of the words so far."""


class OpenWords(Tokenizer):
    """A vocabulary without an end: an unknown word gets the next id.
    The spelling of a word that `backend` does not know is kept.

    Ids above those of `backend` hold for this value, and for what `saved.load` reads after `save`.
    `hash` does not depend on them. `vocab.size` is the number of int32 ids.
    """

    def __init__(self, backend: HuggingFace, *, lowercase: bool = False, known: Iterable[str] = ()):
        super().__init__(backend, kind="word", lowercase=lowercase)
        self._first = len(self.pieces)
        for word in known:
            self._id(word)

    @functools.cached_property
    def vocab(self) -> Vocab:
        """The special ids of `backend`; any id is in the vocabulary."""
        roles = Tokenizer(self._backend, kind="word").vocab
        return dataclasses.replace(roles, size=np.iinfo(np.int32).max)

    def encode_batch(self, texts: Sequence[str], specials: bool = False) -> list[np.ndarray]:
        """Returns ids [T] int32 of every text.
        Special tokens that a text spells are ordinary words."""
        del specials
        return [
            np.array([self._id(word) for word, _ in row], np.int32)
            for row in self._backend.divided(texts)
        ]

    def spans(self, texts: Sequence[str]) -> list[Spans]:
        """Returns the ids of `encode_batch` with the characters of each word."""
        rows = self._backend.divided(texts)
        return [
            spans([self._id(word) for word, _ in row], [span for _, span in row]) for row in rows
        ]

    def decode(self, ids: Sequence[int], skip_specials: bool = True) -> str:
        """Returns the words of ids with blanks between them."""
        special = set(self.special_pieces.values()) if skip_specials else set()
        return " ".join(self.pieces[int(i)] for i in ids if int(i) not in special)

    def save(self, folder: str | Path) -> None:
        """Writes the tokenizer and its words so far."""
        super().save(folder)
        (Path(folder) / WORDS).write_text(json.dumps(self.pieces[self._first :]), encoding="utf8")

    def _id(self, word: str) -> int:
        number = self._ids.get(word)
        # A word that is spelled like a special token is not that token.
        if number is None or (number < self._first and number in self.special_pieces.values()):
            word = word if number is None else word + "\0"
            number = self._ids.setdefault(word, len(self.pieces))
            if number == len(self.pieces):
                self.pieces.append(word)
        return number


def spaced(specials: str = "roberta") -> OpenWords:
    """Returns a tokenizer of whatever stands between blanks, with the special tokens of a style."""
    return OpenWords(
        words.train(TokenizerSpec(kind="spaced", lowercase=False, specials=specials), 0, [])
    )


def opened(tokenizer: Tokenizer) -> OpenWords:
    """Returns a tokenizer of whole words with the ids of `tokenizer` and an id for every other
    word. Raises UserError for a tokenizer of another kind."""
    if isinstance(tokenizer, OpenWords):
        return tokenizer
    if tokenizer.kind != "word" or tokenizer.published is not None or tokenizer.sentinels:
        raise UserError(
            f"a {tokenizer.kind} tokenizer has no whole words to spell; take a model with "
            "kind word or spaced"
        )
    return OpenWords(tokenizer._backend, lowercase=tokenizer.lowercase)
