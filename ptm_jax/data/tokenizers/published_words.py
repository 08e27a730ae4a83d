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
from ptm_jax.data.tokenizers.framing import Searching, Spans, spans

END = "</w>"
_UNKNOWN = "\0"  # stands for characters that the vocabulary lacks; no word contains it

# The replacements of the Moses script replace-unicode-punctuation.
_MARKS = str.maketrans(
    {
        "，": ",", "、": ",", "”": '"', "“": '"', "∶": ":", "：": ":", "？": "?",
        "《": '"', "》": '"', "）": ")",
        "！": "!", "（": "(", "；": ";", "」": '"', "「": '"', "～": "~", "’": "'", "…": "...",
        "━": "-", "〈": "<",
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
    """Returns the words of `text` after Moses' normalization and removal of control characters."""
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
    """Transformer-XL's words (Dai et al. 2019): Moses' words with dashes split.
    `5,000` is `5 @,@ 000` as in WikiText-103."""
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

    def _plain_spans(self, text: str) -> Spans:
        words = self._words(text)
        if not words:
            return spans([], [])
        places = word_places(text, words)
        row = self._backend.encode(words, is_pretokenized=True, add_special_tokens=False)
        characters = []
        for number, (start, end) in zip(row.word_ids, row.offsets, strict=True):
            begin, stop = places[number]
            same = stop - begin == len(words[number])
            characters.append((begin + start, begin + end) if same else (begin, stop))
        return spans(self._ids[np.array(row.ids, np.int64)], characters)

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

    def _plain_spans(self, text: str) -> Spans:
        words = self._words(text)
        return spans([self._ids.get(w, self._unk) for w in words], word_places(text, words))

    def decode(self, ids: Sequence[int]) -> str:
        """Returns the words of ids, with numbers joined."""
        return re.sub(r" @([,.])@ ", r"\1", " ".join(self.pieces[int(i)] for i in ids))


def word_places(text: str, words: Sequence[str]) -> list[tuple[int, int]]:
    """Returns the characters of each word of a text, in order. The words may be normalised.

    A word is sought near the end of the one before it, by its letters without case, marks and
    blanks. Words that are not there share the characters between their neighbours.
    """
    letters = [(c, i) for i, char in enumerate(text) for c in _letters(char)]
    joined, at = "".join(c for c, _ in letters), 0
    places: list[tuple[int, int] | None] = []
    for word in words:
        key = _letters(word)
        start = joined.find(key, at, at + 2 * len(key) + 16) if key else -1
        places.append(
            (letters[start][1], letters[start + len(key) - 1][1] + 1) if start >= 0 else None
        )
        at = start + len(key) if start >= 0 else at
    result, before = [], 0
    for number, place in enumerate(places):
        after = next((p[0] for p in places[number:] if p is not None), len(text))
        result.append(place if place is not None else (min(before, after), after))
        before = result[-1][1] if place is not None else before
    return result


def _letters(text: str) -> str:
    """Returns a text without case, combining marks, blanks and the marks that Moses adds."""
    flat = unicodedata.normalize("NFKD", text.translate(_MARKS)).lower()
    return "".join(c for c in flat if c != "@" and not c.isspace() and not unicodedata.combining(c))


def by_id(vocab: Mapping[str, int]) -> list[str]:
    """Returns pieces in the order of their ids, with generated names for gaps."""
    names = {index: piece for piece, index in vocab.items()}
    return [names.get(i, f"<absent_{i}>") for i in range(max(names, default=-1) + 1)]
