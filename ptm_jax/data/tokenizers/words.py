"""Whole words: a vocabulary of the most frequent words, the characters of each, and words without a
vocabulary, for models that read spellings alone (Peters et al. 2018, section 3.4).
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Backend

from ptm_jax.core.errors import UserError
from ptm_jax.core.types import Vocab
from ptm_jax.data.tokenizers.backends import HuggingFace
from ptm_jax.data.tokenizers.framing import Spans, spans
from ptm_jax.data.tokenizers.tokenizing import ROLES, STYLES, Tokenizer, TokenizerSpec

Style = Literal["bytes", "elmo", "alphabet"]

ALPHABETS = {"bytes": 257, "elmo": 262}
"""Number of character ids of each style, including 0: no character."""


DIVIDED = {
    "word": [pre_tokenizers.Punctuation()],
    "spaced": [],
    "characters": [pre_tokenizers.Split(Regex("."), "isolated")],
}
"""{kind: what divides the text between two blanks}."""


def train(spec: TokenizerSpec, size: int, texts: Iterable[str]) -> HuggingFace:
    """Returns a vocabulary of the special tokens and the most frequent words.
    Words are sorted by frequency, then alphabetically.

    Words are separated by spaces and punctuation; each punctuation mark is a word. Kind "spaced":
    by spaces alone. Kind "characters": each character is a word.
    """
    specials = list(STYLES[spec.specials])
    unk = next(name for name in ROLES["unk"] if name in specials)
    backend = Backend(models.WordLevel(vocab={}, unk_token=unk))
    if spec.lowercase:
        backend.normalizer = normalizers.Lowercase()
    split = [
        pre_tokenizers.WhitespaceSplit(),
        *DIVIDED[spec.kind],
    ]
    backend.pre_tokenizer = pre_tokenizers.Sequence(split)
    if spec.kind == "characters":
        backend.decoder = decoders.Fuse()
    trainer = trainers.WordLevelTrainer(
        vocab_size=size, min_frequency=spec.min_count, special_tokens=specials, show_progress=False
    )
    backend.train_from_iterator(texts, trainer)
    return HuggingFace(backend)


def spellings(
    tokenizer: Tokenizer,
    length: int,
    style: Style = "bytes",
    ids: Sequence[int] | None = None,
    letters: Sequence[str] = (),
) -> np.ndarray:
    """Returns [V, C] int16: the UTF-8 bytes of every piece, or of `ids`, cut to C = `length`.

    bytes   byte + 1, then 0; special tokens are all 0 (fairseq's character embedder)
    elmo    258, the bytes, 259, then 260, all plus 1; the byte of <s> is 256, of </s> 257, and
            padding is all 0 (allenai/bilm-tf; Peters et al. 2018)
    alphabet  the characters: 1 + the place in `letters`, 1 for another one, then 0; special tokens
              are all 0 (Flair)
    """
    ids = range(len(tokenizer.pieces)) if ids is None else ids
    table = np.zeros((len(ids), length), np.int16)
    special, vocab = set(tokenizer.special_pieces.values()), tokenizer.vocab
    places = {letter: place for place, letter in enumerate(letters)}
    for row, i in enumerate(ids):
        piece = tokenizer.pieces[i].rstrip("\0")
        if style == "bytes":
            codes = [] if i in special else piece.encode()[:length]
        elif style == "alphabet":
            codes = [] if i in special else [places.get(letter, 0) for letter in piece[:length]]
        elif i == vocab.pad:
            continue
        else:
            marks = {vocab.bos: [256], vocab.eos: [257]}
            codes = [258, *marks.get(i, piece.encode()[: length - 2]), 259]
            codes += [260] * (length - len(codes))
        table[row, : len(codes)] = np.array(list(codes), np.int16) + 1
    return table


def extended(tokenizer: Tokenizer, words: Iterable[str]) -> Tokenizer:
    """Returns a tokenizer of whole words with `words` after its pieces.
    Known words are left out. A word counts as it is written, in lower case if the tokenizer writes
    text so. Raises UserError for a tokenizer of another kind."""
    if (
        tokenizer.kind not in ("word", "spaced")
        or tokenizer.published is not None
        or tokenizer.sentinels
    ):
        raise UserError(
            f"a {tokenizer.kind} tokenizer takes no new words; load a model with a "
            "vocabulary of whole words"
        )
    content = json.loads(tokenizer._backend.bytes)
    pieces = content["model"]["vocab"]
    for word in words:
        pieces.setdefault(word.lower() if tokenizer.lowercase else word, len(pieces))
    backend = HuggingFace(Backend.from_str(json.dumps(content, ensure_ascii=False)))
    options = {"lowercase": tokenizer.lowercase, "segmenter": tokenizer.segmenter}
    return Tokenizer(backend, kind=tokenizer.kind, **options)


WORDS = "words.json"
"""The file of the words so far."""


class OpenWords(Tokenizer):
    """A vocabulary without an end: an unknown word gets the next id.
    The spelling of a word that `backend` does not know is kept.

    Ids above those of `backend` hold for this value, and for what `saved.load` reads after `save`.
    `hash` does not depend on them. `vocab.size` is the number of int32 ids.
    """

    def __init__(
        self,
        backend: HuggingFace,
        *,
        lowercase: bool = False,
        segmenter: str | None = None,
        known: Iterable[str] = (),
    ):
        super().__init__(backend, kind="word", lowercase=lowercase, segmenter=segmenter)
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
    return OpenWords(train(TokenizerSpec(kind="spaced", lowercase=False, specials=specials), 0, []))


def opened(tokenizer: Tokenizer) -> OpenWords:
    """Returns a tokenizer of whole words with an id for every further word.

    The ids of `tokenizer` stay. Raises UserError for a tokenizer of another kind.
    """
    if isinstance(tokenizer, OpenWords):
        return tokenizer
    if tokenizer.kind != "word" or tokenizer.published is not None or tokenizer.sentinels:
        raise UserError(
            f"a {tokenizer.kind} tokenizer has no whole words to spell; take a model with "
            "kind word or spaced"
        )
    options = {"lowercase": tokenizer.lowercase, "segmenter": tokenizer.segmenter}
    return OpenWords(tokenizer._undivided, **options)
