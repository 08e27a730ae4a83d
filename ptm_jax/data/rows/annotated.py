"""Words, sentences and documents of every token, for any way of cutting rows."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from ptm_jax.core.errors import UserError, unknown
from ptm_jax.core.fields import Field
from ptm_jax.data.corpora.block_records import Block
from ptm_jax.data.languages import segmenters
from ptm_jax.data.rows.columns import placed
from ptm_jax.data.rows.examples import Around, Fields, Packed, Spec

if TYPE_CHECKING:
    from ptm_jax.data.tokenizers.tokenizing import Tokenizer


_FIELDS = ("word_starts", "sentences", "documents")
LONGEST = 48  # bytes of a piece that a segmenter reads


@dataclasses.dataclass(frozen=True, kw_only=True)
class Annotated(Around):
    """The rows of `examples` with fields [R, L] int32, which are 0 on special tokens and padding.

    word_starts     1 where a token begins a word (`Tokenizer.word_starts`), and on the first token
                    of a sentence or piece
    sentences       number of the sentence, from 1 in reading order; separate pieces of one sentence
                    count as two
    documents       number of the document, from 1 in reading order; adjacent pieces of one document
                    count as one

    segmenter       one of `data.languages.segmenters`, a package to be installed. A token begins a
                    word only where the segmenter begins one in its sentence (Chinese whole word
                    masking: Cui et al. 2019, section 2)
    """

    examples: Any = Packed()
    fields: tuple[str, ...] = ("word_starts", "sentences")
    segmenter: str | None = None

    def __post_init__(self):
        if self.segmenter is not None:
            segmenters.check(self.segmenter)
        for name in self.fields:
            if name not in _FIELDS:
                raise unknown("field of tokens", str(name), _FIELDS)

    @property
    def needs_words(self) -> bool:
        return "word_starts" in self.fields

    @property
    def spells(self) -> bool:
        return self.needs_words and self.segmenter is not None

    def table(self, tokenizer: Tokenizer) -> np.ndarray:
        """Returns [V, C] int16: the UTF-8 bytes of every piece without its `##`, plus 1, then 0."""
        table = np.zeros((len(tokenizer.pieces), LONGEST), np.int16)
        special = set(tokenizer.special_pieces.values())
        for i, piece in enumerate(tokenizer.pieces):
            codes = b"?" if i in special else piece.removeprefix("##").encode()[:LONGEST]
            table[i, : len(codes)] = np.frombuffer(codes, np.uint8).astype(np.int16) + 1
        return table

    def spec(self, length: int, vocab) -> Spec:
        """Returns the fields of `examples` and these. Raises UserError as `examples` do."""
        inner = self.examples.spec(length, vocab)
        return inner | dict.fromkeys(self.fields, Field((length,)))

    def rows(self, block: Block, *, length: int, vocab, rng: np.random.Generator) -> Fields:
        """Returns the fields [R, ...] of `examples` and these [R, L]."""
        if self.needs_words and block.words is None:
            raise UserError(
                "word_starts needs the table of the tokenizer (`Corpus.word_starts`) in "
                "`Block.words`"
            )
        out, text, place = placed(self.examples, block, length=length, vocab=vocab, rng=rng)
        starts = np.zeros(len(block.tokens), np.bool_)
        starts[block.sentence_starts[:-1]] = True
        # the first token of a piece or of a sentence
        begins = starts.take(place, mode="clip")
        begins[:, 0] = True
        begins[:, 1:] |= place[:, 1:] != place[:, :-1] + 1
        begins &= text
        makers = {
            "word_starts": lambda: self._word_starts(block, text, place, begins),
            "sentences": lambda: np.cumsum(begins, 1, np.int32) * text,
            "documents": lambda: _documents(block, text, place, begins),
        }
        return out | {name: makers[name]() for name in self.fields}

    def _word_starts(self, block: Block, text, place, begins) -> np.ndarray:
        words = block.words[block.tokens]
        if self.segmenter is not None:
            words = words & self._segmented(block)
        return (begins | (text & words.take(place, mode="clip"))).astype(np.int32)

    def _segmented(self, block: Block) -> np.ndarray:
        """Returns [T] bool: which tokens of a block begin where a word of the segmenter begins."""
        if block.spellings is None:
            raise UserError(
                "a segmenter needs the table of the tokenizer (`Annotated.table`) in "
                "`Block.spellings`"
            )
        begins = np.zeros(len(block.tokens), bool)
        for start, stop in zip(block.sentence_starts[:-1], block.sentence_starts[1:], strict=True):
            table = block.spellings[block.tokens[start:stop]]
            texts = [
                (row[row > 0] - 1).astype(np.uint8).tobytes().decode(errors="replace")
                for row in table
            ]
            ends = np.cumsum([len(text) for text in texts])
            words = segmenters.words(self.segmenter, "".join(texts))
            borders = np.cumsum([0, *map(len, words)])
            begins[start:stop] = np.isin(ends - [len(text) for text in texts], borders)
        return begins


def _documents(block: Block, text: np.ndarray, place: np.ndarray, begins: np.ndarray) -> np.ndarray:
    owner = np.repeat(
        np.arange(len(block.documents), dtype=np.int32), np.diff(block.document_tokens)
    )
    row, column = np.nonzero(begins)
    here = owner[place[row, column]]
    new = np.ones(len(row), bool)
    new[1:] = (row[1:] != row[:-1]) | (here[1:] != here[:-1])
    first = np.zeros(text.shape, bool)
    first[row[new], column[new]] = True
    return np.cumsum(first, 1, np.int32) * text
