"""New texts for a student, from which the teacher predicts: words replaced by a masked language
model or by their neighbours (TinyBERT), and words masked, exchanged or dropped (a recurrent
student).

A function returns the new texts of each text, without doubles and without the text itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ptm_jax.core.errors import UserError

if TYPE_CHECKING:
    from ptm_jax.inference.pretrained import Pretrained


WORD = re.compile(r"\w+|[^\w\s]")
NGRAM = (1, 2, 3, 4, 5)
"""Lengths of the n-grams that remain of a text (Tang et al. 2019, section 3.3)."""


def replaced(
    model: Pretrained, texts: Sequence[str], vectors: Any = None, *, rate: float = 0.4,
    candidates: int = 15, times: int = 20,
    skip: Collection[str] = (), seed: int = 0, batch: int = 32,
) -> list[list[str]]:  # fmt: skip
    """TinyBERT's augmentation (Jiao et al. 2020, arXiv 1909.10351, Algorithm 1).

    `times` copies of each text, in which each word becomes with probability `rate` one of its
    `candidates`.

    A word of one token has the most probable words at its masked place, read with the text as a
    pair, as in the authors' program; a word of several tokens has its nearest `vectors`
    (`WordVectors`; None: it stays). Words of letters alone are replaced; `skip` names stop words,
    which stay (the program has a list). Raises UserError.
    """
    if model.head is None or model.vocab.mask is None:
        raise UserError(f"{model.system.name} fills no masks; give a masked language model")
    if not 0 < rate <= 1 or candidates < 1 or times < 1:
        raise UserError(
            f"rate is {rate}, candidates {candidates}, times {times}; a rate in (0, 1], and "
            "numbers from 1"
        )
    rng, copies_of_all = np.random.default_rng(seed), []
    for text in texts:
        words = WORD.findall(text)
        free = [
            i
            for i, word in enumerate(words)
            if re.fullmatch("[a-zA-Z]+", word) and word.lower() not in skip
        ]
        replacements = _candidates(model, words, free, vectors, candidates, batch=batch)
        copies = []
        for _ in range(times):
            new = list(words)
            for i in free:
                if replacements[i] and rng.random() < rate:
                    new[i] = replacements[i][rng.integers(len(replacements[i]))]
            copies.append(" ".join(new))
        copies_of_all.append(_new(copies, " ".join(words)))
    return copies_of_all


def _candidates(
    model: Pretrained, words: list[str], free: list[int], vectors: Any, count: int, *, batch: int
) -> dict[int, list[str]]:
    """Returns {place: replacements} of the words of a text."""
    pieces = (
        dict(zip(free, model.tokenizer.encode_batch([words[i] for i in free]), strict=True))
        if free
        else {}
    )
    single = [i for i in free if len(pieces[i]) == 1]
    replacements: dict[int, list[str]] = {i: [] for i in free}
    if vectors is not None:
        for i in set(free) - set(single):
            word = words[i] if words[i] in vectors else words[i].lower()
            replacements[i] = (
                [one.word for one in vectors.most_similar(word, top=count)]
                if word in vectors
                else []
            )
    for start in range(0, len(single), batch):
        part = single[start : start + batch]
        rows, places, types = [], [], []
        for i in part:
            before, after = (
                np.concatenate([[], *model.tokenizer.encode_batch([w])]) for w in _around(words, i)
            )
            first = np.array([*before, model.vocab.mask, *after], np.int32)
            ids, kinds = model.tokenizer.frame(
                first, model.tokenizer.encode_batch([" ".join(words)])[0]
            )
            rows.append(np.asarray(ids)), types.append(np.asarray(kinds))
            places.append(int(np.flatnonzero(rows[-1] == model.vocab.mask)[0]))
        size = max(map(len, rows))

        def padded(values, blank, size=size):
            return np.stack([np.pad(v, (0, size - len(v)), constant_values=blank) for v in values])

        mask = padded([np.ones(len(row), np.int32) for row in rows], 0)
        logits = model(padded(rows, model.vocab.pad or 0), mask, padded(types, 0)).logits
        for row, (i, place) in enumerate(zip(part, places, strict=True)):
            best = np.argsort(-logits[row, place], kind="stable")[:count]
            names = (model.tokenizer.decode([int(one)]) for one in best)
            replacements[i] = [word for word in names if re.fullmatch(r"\w+", word)]
    return replacements


def _around(words: list[str], place: int) -> tuple[str, str]:
    return " ".join(words[:place]), " ".join(words[place + 1 :])


def rewritten(
    texts: Sequence[str], tag: Callable[[list[str]], Sequence[str]], *, mask: str = "[MASK]",
    hide: float = 0.1,
    exchange: float = 0.1, ngram: float = 0.25, times: int = 20, seed: int = 0,
) -> list[list[str]]:  # fmt: skip
    """The augmentation of Tang et al. (2019, arXiv 1903.12136, section 3.3).

    `times` copies of each text. Each word is masked with probability `hide`, or with probability
    `exchange` replaced by a word of its part of speech, drawn by its frequency in all texts; then
    with probability `ngram` only an n-gram of 1 to 5 words remains.

    tag    the parts of speech of a list of words
    """
    if min(hide, exchange, ngram) < 0 or hide + exchange > 1 or ngram > 1:
        raise UserError(
            f"hide is {hide}, exchange {exchange}, ngram {ngram}; they are probabilities"
        )
    rng = np.random.default_rng(seed)
    split = [text.split() for text in texts]
    tags = [list(tag(words)) for words in split]
    classes: dict[str, list[str]] = {}
    for words, kinds in zip(split, tags, strict=True):
        for word, kind in zip(words, kinds, strict=True):
            classes.setdefault(kind, []).append(word)
    new_texts = []
    for text, words, kinds in zip(texts, split, tags, strict=True):
        copies = []
        for _ in range(times if words else 0):
            draws = rng.random(len(words))
            new = [
                mask if draw < hide
                else classes[kind][rng.integers(len(classes[kind]))] if draw < hide + exchange
                else word
                for draw, word, kind in zip(draws, words, kinds, strict=True)
            ]  # fmt: skip
            if rng.random() < ngram:
                size = min(int(rng.choice(NGRAM)), len(new))
                first = int(rng.integers(len(new) - size + 1))
                new = new[first : first + size]
            copies.append(" ".join(new))
        new_texts.append(_new(copies, text))
    return new_texts


def _new(copies: Sequence[str], text: str) -> list[str]:
    """Returns the distinct copies that differ from the text, in order."""
    return [copy for copy in dict.fromkeys(copies) if copy != text]
