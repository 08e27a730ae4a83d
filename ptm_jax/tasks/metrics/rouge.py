"""ROUGE-N, ROUGE-L and ROUGE-SU4 of summaries (Lin 2004), as ROUGE-1.5.5 counts them with `-m -n 3
-2 4 -u`: words are runs of letters and digits, those of more than three letters are stemmed (Porter
1980), F is the mean over texts of the harmonic mean.

Deviations: of WordNet's irregular words, which ROUGE-1.5.5 looks up before it stems, the most
frequent are here; there is no bootstrap, so that a score is the plain mean; a text is one sentence.
ROUGE-1.5.5 knows ASCII letters alone. A text most of whose letters are others is divided into words
of its script, unstemmed; of scripts without blanks (Chinese, Japanese, Thai) each character counts.
"""

from __future__ import annotations

import collections
import functools
import re
import unicodedata
from collections.abc import Sequence

import numpy as np

from ptm_jax.knowledge.english_words import IRREGULAR
from ptm_jax.tasks.metrics.measures import f_of

NAMES = ("rouge1", "rouge2", "rouge3", "rougeL", "rougeSU4")
SKIP = 4
"""Maximum number of words between the two words of a skip-bigram."""

_ALONE = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uf900-\ufaff\U00020000-\U0002fa1f]"
)
"""Characters of scripts without blanks between words: each counts as a word, with its marks."""
Score = tuple[float, float, float]
"""(F, precision, recall)."""


def words_of(text: str) -> list[str]:
    """Returns the stemmed words of a text."""
    words = re.findall(r"[a-z0-9]+", text.lower())
    if 2 * sum(map(len, words)) < sum(map(str.isalnum, text)):
        return _words_of_other_scripts(text.lower())
    return [IRREGULAR.get(word) or stem(word) if len(word) > 3 else word for word in words]


def _words_of_other_scripts(text: str) -> list[str]:
    words, inside = [], False
    for char in text:
        mark = unicodedata.category(char).startswith("M")
        if not (char.isalnum() or (mark and inside)):
            inside = False
            continue
        alone = _ALONE.match(char) is not None and not mark
        if inside and not alone and (mark or not _ALONE.match(words[-1])):
            words[-1] += char
        else:
            words.append(char)
        inside = True
    return words


def score(text: str, gold: str) -> dict[str, Score]:
    """Returns the scores of a text against a gold text."""
    a, b = words_of(text), words_of(gold)
    scores = {f"rouge{n}": _overlap(_grams(a, n), _grams(b, n)) for n in (1, 2, 3)}
    same = _common(a, b)
    scores["rougeL"] = f_of(same, len(a), len(b))
    scores["rougeSU4"] = _overlap(_skips(a), _skips(b))
    return scores


def scores(texts: Sequence[str], gold: Sequence[str]) -> dict[str, Score]:
    """The means over all texts."""
    rows = [score(one, other) for one, other in zip(texts, gold, strict=True)]
    return {name: tuple(np.mean([row[name] for row in rows], 0).tolist()) for name in NAMES}


def _grams(words: list[str], n: int) -> collections.Counter:
    return collections.Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))


def _skips(words: list[str]) -> collections.Counter:
    """Words alone, and pairs with at most `SKIP` between them."""
    grams = collections.Counter((word,) for word in words)
    for i, word in enumerate(words):
        grams.update((word, other) for other in words[i + 1 : i + SKIP + 2])
    return grams


def _overlap(predicted: collections.Counter, gold: collections.Counter) -> Score:
    return f_of(sum((predicted & gold).values()), sum(predicted.values()), sum(gold.values()))


def _common(a: list[str], b: list[str]) -> int:
    """Returns the length of the longest common subsequence, by the bit-parallel algorithm of Hyyrö
    2004."""
    masks: dict[str, int] = collections.defaultdict(int)
    for place, word in enumerate(b):
        masks[word] |= 1 << place
    row, full = (1 << len(b)) - 1, (1 << len(b)) - 1
    for word in a:
        here = row & masks[word] if word in masks else 0
        row = ((row + here) | (row - here)) & full
    return len(b) - row.bit_count()


@functools.lru_cache(65536)
def stem(word: str) -> str:
    """The stem of a word in lower case, by the five steps of Porter 1980."""
    for step in (_plurals, _past, _final_y):
        word = step(word)
    word = _replaced(_replaced(_replaced(word, _SECOND), _THIRD), _FOURTH, more_than=1)
    if word.endswith("e"):
        short = word[:-1]
        if _measure(short) > 1 or (_measure(short) == 1 and not _cvc(short)):
            word = short
    return word[:-1] if word.endswith("ll") and _measure(word) > 1 else word


_SECOND = {
    "ational": "ate", "tional": "tion", "enci": "ence", "anci": "ance", "izer": "ize",
    "abli": "able", "alli": "al",
    "entli": "ent", "eli": "e", "ousli": "ous", "ization": "ize", "ation": "ate", "ator": "ate",
    "alism": "al",
    "iveness": "ive", "fulness": "ful", "ousness": "ous", "aliti": "al", "iviti": "ive",
    "biliti": "ble",
}  # fmt: skip
_THIRD = {
    "icate": "ic",
    "ative": "",
    "alize": "al",
    "iciti": "ic",
    "ical": "ic",
    "ful": "",
    "ness": "",
}
_FOURTH = dict.fromkeys(
    "ement ance ence able ible ment ant ent ism ate iti ous ive ize ion al er ic ou".split(), ""
)


def _form(word: str) -> str:
    """c for every consonant, v for every vowel; y is one after a consonant."""
    form = ""
    for place, letter in enumerate(word):
        vowel = letter in "aeiou" or (letter == "y" and place > 0 and form[-1] == "c")
        form += "v" if vowel else "c"
    return form


def _measure(word: str) -> int:
    """m of [C](VC)^m[V]."""
    return len(re.findall(r"v+c+", _form(word)))


def _cvc(word: str) -> bool:
    return _form(word)[-3:] == "cvc" and word[-1] not in "wxy"


def _plurals(word: str) -> str:
    if word.endswith(("sses", "ies")):
        return word[:-2]
    return word[:-1] if word.endswith("s") and not word.endswith("ss") else word


def _past(word: str) -> str:
    if word.endswith("eed"):
        return word[:-1] if _measure(word[:-3]) > 0 else word
    end = next(
        (end for end in ("ed", "ing") if word.endswith(end) and "v" in _form(word[: -len(end)])),
        None,
    )
    if end is None:
        return word
    word = word[: -len(end)]
    if word.endswith(("at", "bl", "iz")):
        return word + "e"
    if len(word) > 1 and word[-1] == word[-2] and _form(word)[-1] == "c" and word[-1] not in "lsz":
        return word[:-1]
    return word + "e" if _measure(word) == 1 and _cvc(word) else word


def _final_y(word: str) -> str:
    return word[:-1] + "i" if word.endswith("y") and "v" in _form(word[:-1]) else word


def _replaced(word: str, endings: dict[str, str], more_than: int = 0) -> str:
    """Replaces the longest matching ending of a word if the stem before it has a measure above
    `more_than`, and ends in s or t before "ion"."""
    end = max((end for end in endings if word.endswith(end)), key=len, default="")
    before = word.removesuffix(end)
    if not end or _measure(before) <= more_than or (end == "ion" and before[-1:] not in ("s", "t")):
        return word
    return before + endings[end]
