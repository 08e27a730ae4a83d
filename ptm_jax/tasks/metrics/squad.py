"""Scores of extracted answers (Rajpurkar et al. 2016, 2018; row 209).

SQuAD as in the official evaluate-v2.0: both texts in lower case, without punctuation, articles and
repeated blanks; the best over the gold answers; a question without an answer is right where the
prediction is empty. CMRC 2018 compares characters by their longest common substring
(ymcui/cmrc2018, cmrc2018_evaluate.py); deviation: text that is not Chinese is split at blanks, not
by nltk.
"""

from __future__ import annotations

import collections
import difflib
import re
import string
from collections.abc import Callable, Mapping, Sequence

import numpy as np

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = set(string.punctuation)
_MARKS = set('-:_*^/\\~`+=，。：？！"；’《》·、「」（）－～『』“”')


def normalised(text: str) -> str:
    """Normalises a text as the official scripts of SQuAD, CoQA and HotpotQA do.
    Lower case, without punctuation, articles and repeated blanks."""
    bare = "".join(c for c in text.lower() if c not in _PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", bare).split())


def exact(gold: str, text: str) -> float:
    """Whether two answers are equal."""
    return float(normalised(gold) == normalised(text))


def overlap(gold: str, text: str) -> float:
    """Returns the F1 of the words of two answers. If one is empty, returns whether both are."""
    true, predicted = normalised(gold).split(), normalised(text).split()
    if not true or not predicted:
        return float(true == predicted)
    same = sum((collections.Counter(true) & collections.Counter(predicted)).values())
    return 2 * same / (len(true) + len(predicted))


def chinese_exact(gold: str, text: str) -> float:
    """CMRC's exact match: without punctuation and blanks at the ends."""
    return float(_bare(gold) == _bare(text))


def chinese_overlap(gold: str, text: str) -> float:
    """CMRC's F1: of the longest run of characters and words in both."""
    true, predicted = (
        re.findall(r"[\u4e00-\u9fa5]|[^\s\u4e00-\u9fa5]+", _bare(one)) for one in (gold, text)
    )
    longest = (
        difflib.SequenceMatcher(None, true, predicted, autojunk=False).find_longest_match().size
    )
    return 2 * longest / (len(true) + len(predicted)) if longest else 0.0


def _bare(text: str) -> str:
    return "".join(c for c in text.lower().strip() if c not in _MARKS)


Judge = Callable[[str, str], float]


def judged(gold: Sequence[str], text: str, judge: Judge) -> float:
    """Returns the best score over the gold answers.
    Without gold answers, the empty text is correct."""
    answers = [
        answer for answer in gold if normalised(answer) or judge in (chinese_exact, chinese_overlap)
    ] or [""]
    return max(judge(answer, text) for answer in answers)


def scores(
    gold: Mapping[str, Sequence[str]], texts: Mapping[str, str],
    nulls: Mapping[str, float] | None = None, *,
    threshold: float = 1.0, judges: tuple[Judge, Judge] = (exact, overlap),
) -> dict[str, float]:  # fmt: skip
    """Returns the metrics of the official script as fractions.

    They are from {question: gold answers}, {question: text} and, if questions may have no answer,
    {question: score of "no answer"}. Above `threshold` the prediction is empty.
    """
    raw = [{k: judged(gold[k], texts[k], judge) for k in gold} for judge in judges]
    answered = {k: bool(gold[k]) for k in gold}
    nulls_ = nulls or dict.fromkeys(gold, 0.0)
    final = [
        {k: float(not answered[k]) if nulls_[k] > threshold else v for k, v in part.items()}
        for part in raw
    ]
    figures = _means("", final, list(gold))
    for prefix, wanted in (("answered_", True), ("unanswered_", False)):
        keys = [k for k in gold if answered[k] is wanted]
        if keys and len(keys) < len(gold):
            figures |= _means(prefix, final, keys)
    if nulls is not None:
        for name, part in zip(("exact", "f1"), raw, strict=True):
            figures[f"best_{name}"], figures[f"best_{name}_threshold"] = best_threshold(
                part, texts, nulls, answered
            )
    return figures


def _means(
    prefix: str, parts: Sequence[Mapping[str, float]], keys: Sequence[str]
) -> dict[str, float]:
    return {
        f"{prefix}{name}": float(np.mean([p[k] for k in keys]))
        for name, p in zip(("exact", "f1"), parts, strict=True)
    }


def best_threshold(
    right: Mapping[str, float],
    texts: Mapping[str, str],
    nulls: Mapping[str, float],
    answered: Mapping[str, bool],
) -> tuple[float, float]:
    """Returns (best score, its threshold) over all thresholds on `nulls`.
    The official script does the same."""
    score = best = sum(not has for has in answered.values())
    threshold = 0.0
    for key in sorted(nulls, key=lambda k: nulls[k]):
        score += right[key] if answered[key] else -1 if texts[key] else 0
        if score > best:
            best, threshold = score, nulls[key]
    return best / len(right), threshold
