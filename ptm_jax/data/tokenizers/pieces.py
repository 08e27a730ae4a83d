"""The pieces of a text and the characters of each, for any tokenizer."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

_CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002fa1f"
_PARTS = re.compile(rf"[{_CJK}]|[^\W{_CJK}]+|[^\w\s]|\w", re.UNICODE)
_WORDS = re.compile(rf"[{_CJK}]|[^\s{_CJK}]+")


class Pieces(NamedTuple):
    """ids [T] of a text, and the start [T] and end [T] of each in characters."""

    ids: np.ndarray
    starts: np.ndarray
    ends: np.ndarray


def pieces_of(tokenizer: Any, texts: Sequence[str]) -> list[Pieces]:
    """Returns the pieces of every text. Words are encoded one by one.

    Each piece of a word gets the characters that it spells. Where normalisation changes the length
    of a word, all pieces get the whole word, or the part between two punctuation marks.
    """
    spans = [[(m.start(), m.end()) for m in _WORDS.finditer(text)] for text in texts]

    def begin(text, a):
        return a - 1 if _blank(tokenizer, text, a) else a

    every = {
        text[begin(text, a) : b] for text, row in zip(texts, spans, strict=True) for a, b in row
    }
    known = dict(zip(every, tokenizer.encode_batch(list(every)), strict=True))
    return [_joined(tokenizer, text, row, known) for text, row in zip(texts, spans, strict=True)]


def words_of(tokenizer: Any, words: Sequence[Sequence[str]]) -> list[list[np.ndarray]]:
    """Returns the ids of every word of every sentence; a word without ids (invisible characters) is
    the unknown piece."""
    mark = " " if tokenizer.kind == "bytebpe" else ""
    every = list(dict.fromkeys(mark + word for sentence in words for word in sentence))
    known = dict(zip(every, tokenizer.encode_batch(every), strict=True))
    vocab = tokenizer.vocab
    blank = np.array([i for i in (vocab.unk, vocab.mask, vocab.sep) if i is not None][:1], np.int32)
    return [
        [ids if len(ids := known[mark + word]) else blank for word in sentence]
        for sentence in words
    ]


def _blank(tokenizer: Any, text: str, start: int) -> bool:
    """Whether the space before a word belongs to it."""
    return tokenizer.kind == "bytebpe" and start > 0 and text[start - 1] == " "


def _joined(
    tokenizer: Any, text: str, spans: Sequence[tuple[int, int]], known: dict[str, np.ndarray]
) -> Pieces:
    found: list[tuple[int, int, int]] = []
    for a, b in spans:
        begin = a - 1 if _blank(tokenizer, text, a) else a
        row = known[text[begin:b]]
        sizes = _sizes(tokenizer, text[begin:b], row)
        if sizes is not None:
            found += [
                (i, max(a, begin + c), max(a, begin + d))
                for i, (c, d) in zip(row, sizes, strict=True)
            ]
            continue
        parts = [(a + m.start(), a + m.end()) for m in _PARTS.finditer(text[a:b])]
        cut = [(tokenizer.encode(text[c:d]), c, d) for c, d in parts] if len(parts) > 1 else []
        if cut and sum(len(ids) for ids, _, _ in cut) == len(row):
            found += [(i, c, d) for ids, c, d in cut for i in ids]
        else:
            found += [(i, a, b) for i in row]
    return Pieces(*np.array(found, np.int32).reshape(-1, 3).T.copy())


def _sizes(tokenizer: Any, word: str, ids: np.ndarray) -> list[tuple[int, int]] | None:
    """Returns the characters of a word that each of its pieces spells, None where the pieces do not
    spell the word."""
    if len(ids) == 1:
        return [(0, len(word))]
    names = [tokenizer.piece(i) for i in ids]
    if tokenizer.kind == "bytebpe":  # a piece has a character for every byte
        ends, at = (
            np.cumsum([len(name) for name in names]),
            np.cumsum([0, *(len(c.encode()) for c in word)]),
        )
        if ends[-1] != at[-1]:
            return None
        first = [0, *ends[:-1]]
        return [
            (int(np.searchsorted(at, a, "right")) - 1, int(np.searchsorted(at, b)))
            for a, b in zip(first, ends, strict=True)
        ]
    names = [
        name.removeprefix("##").removeprefix("▁").removesuffix("</w>").removesuffix("@@")
        for name in names
    ]
    if tokenizer.vocab.unk in ids or len("".join(names)) != len(word):
        return None
    ends = np.cumsum([len(name) for name in names])
    return [(int(b) - len(name), int(b)) for name, b in zip(names, ends, strict=True)]
