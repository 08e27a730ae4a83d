"""Scores of extracted answers by language (Lewis et al. 2020, arXiv 1910.07475: MLQA; row 214).

As facebookresearch/MLQA, mlqa_evaluation_v1.py: lower case, without the punctuation of Unicode and
the articles of the language; words are divided at blanks, and Chinese characters are words.
"""

from __future__ import annotations

import collections
import functools
import re
import string
import unicodedata

from ptm_jax.core.errors import unknown
from ptm_jax.tasks.metrics.squad import Judge

ARTICLES = {
    "en": "a an the",
    "es": "un una unos unas el la los las",
    "vi": "của là cái chiếc những",
    "de": "ein eine einen einem eines einer der die das den dem des",
    "fr": "un une des le la les",
    "ar": "ال",
    "hi": "",
    "zh": "",
}
"""Articles of the languages with rules. The script has none of French, whose articles are ours."""
_CHARACTER = re.compile(r"([\u4e00-\u9fa5])")


def words(text: str, language: str) -> list[str]:
    """Returns the words of an answer that count. Raises UserError for another language."""
    if language not in ARTICLES:
        raise unknown("language of answers", language, ARTICLES)
    bare = "".join(one for one in text.lower() if not _is_punctuation(one))
    articles = ARTICLES[language].split()
    if language == "ar":  # the article is a part of the word
        bare = bare.replace(articles[0], " ")
    elif articles:
        bare = re.sub(rf"\b({'|'.join(articles)})\b", " ", bare)
    return (_CHARACTER.sub(r" \1 ", bare) if language == "zh" else bare).split()


@functools.cache
def judges(language: str) -> tuple[Judge, Judge]:
    """Returns the exact match and the F1 of (gold, text). Raises UserError."""

    def exact(gold: str, text: str) -> float:
        return float(words(gold, language) == words(text, language))

    def overlap(gold: str, text: str) -> float:
        true, predicted = (collections.Counter(words(one, language)) for one in (gold, text))
        same = (true & predicted).total()
        return 2 * same / (true.total() + predicted.total()) if same else 0.0

    return exact, overlap


@functools.cache
def _is_punctuation(character: str) -> bool:
    return character in string.punctuation or unicodedata.category(character).startswith("P")
