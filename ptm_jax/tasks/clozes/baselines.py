"""Baselines of cloze tests, from the words of a suite itself."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

_WORD = re.compile(r"[\w']+")


class Unigrams:
    """Frequencies of the words of some texts, with one added to each: the same for every model,
    whatever it was trained on."""

    def __init__(self, texts: Iterable[str]):
        self.counts = Counter(word for text in texts for word in _WORD.findall(text.lower()))

    def score(self, text: str) -> float:
        """Returns the log-probability of the words of a text."""
        total = self.counts.total() + len(self.counts) + 1
        counts = [self.counts[word] + 1 for word in _WORD.findall(text.lower())]
        return float(np.log(np.array(counts) / total).sum())

    def share(self, good: str, others: Sequence[str]) -> float:
        """Returns 1 where the good text has a higher score than the others, 0 where one of them
        has, and 1/n where n texts have the highest."""
        best, *rivals = (round(self.score(text), 9) for text in (good, *others))
        return 0.0 if max(rivals) > best else 1 / (1 + sum(rival == best for rival in rivals))


def verdicts(valid: np.ndarray, scores: np.ndarray, threshold: float) -> dict[str, float]:
    """Returns the area under the curve of scores [n], accuracy and F1 from a threshold on,
    and the same of the more frequent verdict."""
    from sklearn.metrics import f1_score, roc_auc_score

    common = np.full(len(valid), valid.mean() >= 0.5)
    figures = {"auc": float(roc_auc_score(valid, scores))}
    for name, verdict in (("", scores >= threshold), ("majority ", common)):
        figures[f"{name}accuracy"] = float(np.mean(verdict == valid))
        figures[f"{name}f1"] = float(f1_score(valid, verdict, zero_division=0))
    return figures
