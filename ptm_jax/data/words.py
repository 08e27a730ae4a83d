"""Whole words: a vocabulary of the most frequent ones, and the characters of each, for models that read spellings."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any, Literal, get_args

import numpy as np

from ptm_jax.core.errors import UserError, unknown
from ptm_jax.data import tokenizers as ours
from ptm_jax.data.examples import Fields, Packed, Spec
from ptm_jax.data.store import Block
from ptm_jax.data.tokenizers import STYLES, HuggingFace, Tokenizer, TokenizerSpec

Style = Literal["bytes", "elmo"]

ALPHABETS = {"bytes": 257, "elmo": 262}
"""Number of character ids of each style, 0 among them: nothing stands there."""


def train(spec: TokenizerSpec, size: int, texts: Iterable[str]) -> HuggingFace:
    """The `size` most frequent words after the special tokens, in the order of their frequency, then of the alphabet.

    A word is what stands between blanks and marks of punctuation; each mark is a word.
    """
    from tokenizers import Tokenizer as Backend
    from tokenizers import models, normalizers, pre_tokenizers, trainers

    specials = list(STYLES[spec.specials])
    unk = next((name for name in ours.ROLES["unk"] if name in specials), None)
    if unk is None:
        raise UserError(f"whole words need an unknown token, which the {spec.specials} style lacks; use bert or t5")
    backend = Backend(models.WordLevel(vocab={}, unk_token=unk))
    if spec.lowercase:
        backend.normalizer = normalizers.Lowercase()
    backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation()])
    backend.train_from_iterator(
        texts, trainers.WordLevelTrainer(vocab_size=size, special_tokens=specials, show_progress=False)
    )
    return HuggingFace(backend)


def spellings(tokenizer: Tokenizer, length: int, style: Style = "bytes") -> np.ndarray:
    """[V, C] int16: the characters of every piece, its UTF-8 bytes, cut to C = `length`.

    bytes   byte + 1, then 0; special tokens are all 0 (fairseq's character embedder)
    elmo    258, the bytes, 259, then 260, all plus 1; of <s> and </s> the one byte is 256 and 257, and of padding all
            characters are 0 (allenai/bilm-tf; Peters et al. 2018)
    """
    table = np.zeros((len(tokenizer.pieces), length), np.int16)
    special, vocab = set(tokenizer.special_pieces.values()), tokenizer.vocab
    for i, piece in enumerate(tokenizer.pieces):
        if style == "bytes":
            codes = [] if i in special else piece.encode()[:length]
        elif i == vocab.pad:
            continue
        else:
            marks = {vocab.bos: [256], vocab.eos: [257]}
            codes = [258, *marks.get(i, piece.encode()[: length - 2]), 259]
            codes += [260] * (length - len(codes))
        table[i, : len(codes)] = np.array(list(codes), np.int16) + 1
    return table


@dataclasses.dataclass(frozen=True, kw_only=True)
class Spelled:
    """The rows of `examples`, and `characters` [R, L, C] int32: how the word at every place is written (`spellings`).

    It stands outside of other wrappers: it reads the final ids.
    """

    examples: Any = Packed()
    length: int = 50
    style: Style = "bytes"

    def __post_init__(self):
        if self.style not in get_args(Style):
            raise unknown("style of characters", str(self.style), get_args(Style))
        if self.length < 3:
            raise UserError(f"examples.length is {self.length}; a word needs room for at least 3 characters")

    def __getattr__(self, name):
        """What the rows' own kind says of them: `begin`, `end`, `continuing`, `needs_words`."""
        if name in ("begin", "end", "continuing", "needs_words"):
            return getattr(self.examples, name)
        raise AttributeError(name)

    @property
    def alphabet(self) -> int:
        """Number of character ids."""
        return ALPHABETS[self.style]

    def table(self, tokenizer: Tokenizer) -> np.ndarray:
        """[V, C] for `Block.spellings`."""
        return spellings(tokenizer, self.length, self.style)

    def spec(self, length: int, vocab) -> Spec:
        """What `examples` give, and the characters. Raises UserError as `examples` do."""
        return self.examples.spec(length, vocab) | {"characters": ((length, self.length), np.int32)}

    def rows(self, block: Block, *, length: int, vocab, rng: np.random.Generator) -> Fields:
        """Fields [R, ...] of `examples`, and the characters."""
        if block.spellings is None:
            raise UserError("characters need the table of the tokenizer (`Spelled.table`) in `Block.spellings`")
        out = self.examples.rows(block, length=length, vocab=vocab, rng=rng)
        return out | {"characters": block.spellings[out["input_ids"]].astype(np.int32)}
