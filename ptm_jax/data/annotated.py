"""Facts of every token beside its id, for any way of cutting rows."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from ptm_jax.core.errors import UserError, unknown
from ptm_jax.data.examples import Fields, Packed, Spec
from ptm_jax.data.store import Block

_FIELDS = ("word_starts", "sentences", "documents")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Annotated:
    """The rows of `examples`, with facts of their tokens [R, L] int32; all are 0 on special tokens and padding.

    word_starts     1 where a token begins a word (`Tokenizer.word_starts`), and on the first token of a sentence or of
                    a piece of text: no word goes on across a special token or from one document into another
    sentences       number of the sentence, from 1 in reading order; pieces of one that lie apart in a row are two
    documents       number of the document, from 1 in reading order; pieces of one that follow each other are one

    A token is text where `examples` copied it from the block: the block that they are given holds places instead of
    ids, and the ids are looked up afterwards.
    """

    examples: Any = Packed()
    fields: tuple[str, ...] = ("word_starts", "sentences")

    def __post_init__(self):
        for name in self.fields:
            if name not in _FIELDS:
                raise unknown("field of tokens", str(name), _FIELDS)

    @property
    def continuing(self) -> bool:
        """Whether rows continue those of the batch before: as `examples` say."""
        return getattr(self.examples, "continuing", False)

    @property
    def needs_words(self) -> bool:
        """Whether `rows` reads `Block.words`."""
        return "word_starts" in self.fields

    def spec(self, length: int, vocab) -> Spec:
        """What `examples` give, and the fields. Raises UserError as `examples` do."""
        inner = self.examples.spec(length, vocab)
        shape = inner["input_ids"]
        return inner | dict.fromkeys(self.fields, shape)

    def rows(self, block: Block, *, length: int, vocab, rng: np.random.Generator) -> Fields:
        """Fields [R, ...] of `examples`, and [R, L] of these."""
        if self.needs_words and block.words is None:
            raise UserError("word_starts needs the table of the tokenizer (`Corpus.word_starts`) in `Block.words`")
        places = np.arange(vocab.size, vocab.size + len(block.tokens), dtype=np.int32)
        out = self.examples.rows(dataclasses.replace(block, tokens=places), length=length, vocab=vocab, rng=rng)
        coded = out["input_ids"]
        text, place = coded >= vocab.size, coded - vocab.size
        starts = np.zeros(len(block.tokens), np.bool_)
        starts[block.sentence_starts[:-1]] = True
        # the first token of a piece, or of a sentence; where the block begins, the id before its place may be a special
        begins = starts.take(place, mode="clip")
        begins[:, 0] = True
        begins[:, 1:] |= coded[:, 1:] != coded[:, :-1] + 1
        begins &= text
        for name in self.fields:
            out[name] = getattr(self, f"_{name}")(block, text, place, begins)
        out["input_ids"] = np.where(text, block.tokens.take(place, mode="clip"), coded)
        return out

    def _word_starts(self, block: Block, text, place, begins) -> np.ndarray:
        return (begins | (text & block.words[block.tokens].take(place, mode="clip"))).astype(np.int32)

    def _sentences(self, block: Block, text, place, begins) -> np.ndarray:
        return np.cumsum(begins, 1, np.int32) * text

    def _documents(self, block: Block, text, place, begins) -> np.ndarray:
        owner = np.repeat(np.arange(len(block.documents), dtype=np.int32), np.diff(block.document_tokens))
        row, column = np.nonzero(begins)
        here = owner[place[row, column]]
        new = np.ones(len(row), bool)
        new[1:] = (row[1:] != row[:-1]) | (here[1:] != here[:-1])
        first = np.zeros(text.shape, bool)
        first[row[new], column[new]] = True
        return np.cumsum(first, 1, np.int32) * text
