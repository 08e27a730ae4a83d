"""Facts of every token beside its id, for any way of cutting rows."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

from ptm_jax.core.errors import UserError, unknown
from ptm_jax.data.examples import Fields, Packed, Spec
from ptm_jax.data.store import Block

_FIELDS = ("word_starts", "sentences", "documents")
SEGMENTERS = {"rjieba": "cut", "jieba": "lcut"}
"""Packages that divide Chinese text into words, and the function of each: text to the list of its words."""
LONGEST = 48  # bytes of a piece that a segmenter is shown


@dataclasses.dataclass(frozen=True, kw_only=True)
class Annotated:
    """The rows of `examples`, with facts of their tokens [R, L] int32; all are 0 on special tokens and padding.

    word_starts     1 where a token begins a word (`Tokenizer.word_starts`), and on the first token of a sentence or of
                    a piece of text: no word goes on across a special token or from one document into another
    sentences       number of the sentence, from 1 in reading order; pieces of one that lie apart in a row are two
    documents       number of the document, from 1 in reading order; pieces of one that follow each other are one

    segmenter       divides the text of every sentence into words, of which characters have no mark of their own: a token
                    that `Tokenizer.word_starts` lets begin one does so where a word of the segmenter begins (Chinese
                    whole word masking: Cui et al. 2019, section 2). One of `SEGMENTERS`, a package to be installed

    A token is text where `examples` copied it from the block: the block that they are given holds places instead of
    ids, and the ids are looked up afterwards.
    """

    examples: Any = Packed()
    fields: tuple[str, ...] = ("word_starts", "sentences")
    segmenter: str | None = None

    def __post_init__(self):
        if self.segmenter is not None and self.segmenter not in SEGMENTERS:
            raise unknown("segmenter", str(self.segmenter), tuple(SEGMENTERS))
        for name in self.fields:
            if name not in _FIELDS:
                raise unknown("field of tokens", str(name), _FIELDS)

    @property
    def continuing(self) -> bool:
        """Whether rows continue those of the batch before: as `examples` say."""
        return getattr(self.examples, "continuing", False)

    def __getattr__(self, name):
        """`table(tokenizer)` for `Block.spellings`, which only a segmenter reads."""
        if name == "table" and self.needs_words and self.segmenter is not None:
            return _texts
        raise AttributeError(name)

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
        words = block.words[block.tokens]
        if self.segmenter is not None:
            words = words & self._segmented(block)
        return (begins | (text & words.take(place, mode="clip"))).astype(np.int32)

    def _segmented(self, block: Block) -> np.ndarray:
        """[T] bool: the tokens of a block that begin where a word of the segmenter begins."""
        if block.spellings is None:
            raise UserError("a segmenter needs the table of the tokenizer (`Annotated.table`) in `Block.spellings`")
        cut, found = _segmenter(self.segmenter), np.zeros(len(block.tokens), bool)
        for start, stop in zip(block.sentence_starts[:-1], block.sentence_starts[1:], strict=True):
            table = block.spellings[block.tokens[start:stop]]
            texts = [(row[row > 0] - 1).astype(np.uint8).tobytes().decode(errors="replace") for row in table]
            ends = np.cumsum([len(text) for text in texts])
            borders = np.cumsum([0, *(len(word) for word in cut("".join(texts)))])
            found[start:stop] = np.isin(ends - [len(text) for text in texts], borders)
        return found

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


def _texts(tokenizer: Any) -> np.ndarray:
    """[V, C] int16: the UTF-8 bytes of every piece plus 1, then 0; without the mark of a piece that goes on."""
    table = np.zeros((len(tokenizer.pieces), LONGEST), np.int16)
    special = set(tokenizer.special_pieces.values())
    for i, piece in enumerate(tokenizer.pieces):
        codes = b"?" if i in special else piece.removeprefix("##").encode()[:LONGEST]
        table[i, : len(codes)] = np.frombuffer(codes, np.uint8).astype(np.int16) + 1
    return table


def _segmenter(name: str) -> Callable[[str], list[str]]:
    """The function of an installed package. Raises UserError where it is absent."""
    try:
        return getattr(importlib.import_module(name), SEGMENTERS[name])
    except ImportError:
        way = f"pip install {name}, or leave examples.segmenter out"
        raise UserError(f"the segmenter {name} is not installed; {way}") from None
