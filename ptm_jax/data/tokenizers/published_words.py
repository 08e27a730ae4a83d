"""Tokenizers that first divide text into words: XLM, FlauBERT, CTRL and Transformer-XL.

BPE with a mark at the end of words (Sennrich et al. 2016) runs on `tokenizers` with the ids of the
checkpoint. XLM, FlauBERT and Transformer-XL have the words of the Moses scripts, which the optional
package `sacremoses` ports.
"""

from __future__ import annotations

import functools
import json
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from tokenizers import Tokenizer, models

from ptm_jax.core.errors import UserError
from ptm_jax.data.tokenizers.framing import Searching

END = "</w>"
_UNKNOWN = "\0"  # stands for characters that the vocabulary lacks; no word contains it

# The replacements of the Moses script replace-unicode-punctuation.
_MARKS = str.maketrans(
    {
        "，": ",", "、": ",", "”": '"', "“": '"', "∶": ":", "：": ":", "？": "?", "《": '"', "》": '"',
        "）": ")",
        "！": "!", "（": "(", "；": ";", "」": '"', "「": '"', "～": "~", "’": "'", "…": "...", "━": "-",
        "〈": "<",
        "〉": ">", "【": "[", "】": "]", "％": "%", **{chr(0xFF10 + i): str(i) for i in range(10)},
    }
)  # fmt: skip
# Unicode's white space; Python's \s has four more control characters.
_SPACE = "\\t\\n\\x0b\\x0c\\r \\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000"


@functools.cache
def _moses(language: str):
    """Returns (normalizer of punctuation, tokenizer) of Moses for a language."""
    try:
        import sacremoses
    except ImportError:
        raise UserError(
            "this tokenizer cuts words as the Moses scripts do, which needs sacremoses; pip "
            "install 'ptm_jax[moses]'"
        ) from None
    return sacremoses.MosesPunctNormalizer(lang=language), sacremoses.MosesTokenizer(lang=language)


def moses_words(text: str, language: str) -> list[str]:
    """Returns the words of `text` after Moses' normalization of punctuation and removal of control
    characters."""
    normalizer, tokenizer = _moses(language)
    text = re.sub(r"[。．]\s*", ". ", text.translate(_MARKS)) if not text.isascii() else text
    text = normalizer.normalize(text)
    text = (
        "".join(c for c in text if not unicodedata.category(c).startswith("C"))
        if not text.isprintable()
        else text
    )
    return tokenizer.tokenize(text, return_str=False, escape=False)


def xlm_words(text: str, *, language: str = "en", lower: bool = True) -> list[str]:
    """XLM (Conneau and Lample 2019): Moses' words, lower-cased, without accents."""
    words = moses_words(text, language)
    if lower:
        flat = unicodedata.normalize("NFD", " ".join(words).lower())
        words = "".join(c for c in flat if unicodedata.category(c) != "Mn").lower().split(" ")
    return [word for word in words if word]


def flaubert_words(text: str, *, lower: bool = False) -> list[str]:
    """FlauBERT (Le et al. 2020): Moses' French words, with accents."""
    text = unicodedata.normalize("NFC", text.replace("``", '"').replace("''", '"'))
    return [word for word in moses_words(text.lower() if lower else text, "fr") if word]


def ctrl_words(text: str) -> list[str]:
    """CTRL (Keskar et al. 2019): text between white space, with the line break after it."""
    return _CTRL.findall(text)


_CTRL = re.compile(f"[^{_SPACE}]+\n?")


def transfo_xl_words(
    text: str, *, language: str = "en", lower: bool = False, unk: str = "<unk>"
) -> list[str]:
    """Transformer-XL (Dai et al. 2019): Moses' words with dashes split; `5,000` is `5 @,@ 000` as
    in WikiText-103."""
    normalizer, tokenizer = _moses(language)
    text = normalizer.normalize(text.strip().lower() if lower else text.strip())
    words = tokenizer.tokenize(
        text,
        aggressive_dash_splits=True,
        return_str=False,
        escape=False,
        protected_patterns=[re.escape(unk)],
    )
    return [
        part for word in words for part in re.sub(r"(?<=\d)[,.](?=\d)", r" @\g<0>@ ", word).split()
    ]


class WordBPE(Searching):
    """BPE over the characters of words, whose last character ends with </w>.

    vocab, merges   of the checkpoint
    words           divides a text into words
    continued       mark of pieces before the end of a word (CTRL: "@@"); empty where the vocabulary
                    has </w> itself
    """

    def __init__(
        self,
        vocab: Mapping[str, int],
        merges: Sequence[tuple[str, str]],
        words: Callable[[str], list[str]],
        *,
        unk: str,
        continued: str = "",
        facts: str = "",
    ):
        names = {piece: piece for piece in vocab}
        if continued:
            names = {piece + END: piece for piece in vocab}
            names |= {
                p.removesuffix(continued): p
                for p in vocab
                if p.endswith(continued) and p != continued
            }
        inner = {symbol: i for i, symbol in enumerate([_UNKNOWN, *names])}
        for left, right in merges:
            for symbol in (left, right, left + right):
                inner.setdefault(symbol, len(inner))
        model = models.BPE(
            vocab=inner, merges=list(merges), end_of_word_suffix=END, unk_token=_UNKNOWN
        )
        self._backend, self._words, self._continued = Tokenizer(model), words, continued
        # A merged symbol that the checkpoint lacks is unknown as a whole, not character by
        # character.
        self._ids = np.full(len(inner), vocab[unk], np.int32)
        for symbol, piece in names.items():
            self._ids[inner[symbol]] = vocab[piece]
        self.pieces = by_id(vocab)
        self.bytes = json.dumps([self.pieces, [list(m) for m in merges], continued, facts]).encode()

    def _plain(self, texts: Sequence[str]) -> list[np.ndarray]:
        cut = [self._words(text) for text in texts]
        full = [words for words in cut if words]
        rows = iter(
            self._backend.encode_batch_fast(full, is_pretokenized=True, add_special_tokens=False)
            if full
            else []
        )
        return [
            self._ids[np.array(next(rows).ids, np.int64)] if words else np.zeros(0, np.int32)
            for words in cut
        ]

    def decode(self, ids: Sequence[int]) -> str:
        """Returns the text of ids, with spaces before punctuation."""
        pieces = [self.pieces[int(i)] for i in ids]
        if self._continued:
            return " ".join(pieces).replace(self._continued + " ", "").strip()
        return "".join(pieces).replace(END, " ").strip()


class WordTable(Searching):
    """One id for every known word, `unk` for others."""

    def __init__(
        self,
        vocab: Mapping[str, int],
        words: Callable[[str], list[str]],
        *,
        unk: str,
        facts: str = "",
    ):
        self._ids, self._words, self._unk = dict(vocab), words, vocab[unk]
        self.pieces = by_id(vocab)
        self.bytes = json.dumps([self.pieces, facts]).encode()

    def _plain(self, texts: Sequence[str]) -> list[np.ndarray]:
        rows = ([self._ids.get(word, self._unk) for word in self._words(text)] for text in texts)
        return [np.array(row, np.int32) for row in rows]

    def decode(self, ids: Sequence[int]) -> str:
        """Returns the words of ids, with numbers joined."""
        return re.sub(r" @([,.])@ ", r"\1", " ".join(self.pieces[int(i)] for i in ids))


def by_id(vocab: Mapping[str, int]) -> list[str]:
    """Returns pieces in the order of their ids, with generated names for gaps."""
    names = {index: piece for piece, index in vocab.items()}
    return [names.get(i, f"<absent_{i}>") for i in range(max(names, default=-1) + 1)]
