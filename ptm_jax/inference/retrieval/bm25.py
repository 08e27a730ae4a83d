"""BM25: texts by the words that they share with a query (Robertson and Zaragoza 2009)."""

from __future__ import annotations

import collections
import re
from collections.abc import Sequence

import numpy as np

WORD = re.compile(r"\w+")


def words_of(text: str) -> list[str]:
    """Returns the words of a text in lower case."""
    return WORD.findall(text.lower())


class BM25:
    """The index of texts.

    The score of a text d for a query is the sum over its words of

        log(1 + (N - n + 1/2) / (n + 1/2)) f (k1 + 1) / (f + k1 (1 - b + b |d| / mean))

    for a word that n of the N texts have, and d has f times.
    """

    def __init__(self, texts: Sequence[str], *, k1: float = 1.2, b: float = 0.75):
        places: dict[str, list[tuple[int, int]]] = collections.defaultdict(list)
        sizes = np.zeros(len(texts))
        for number, text in enumerate(texts):
            words = words_of(text)
            sizes[number] = len(words)
            for word, count in collections.Counter(words).items():
                places[word].append((number, count))
        length = k1 * (1 - b + b * sizes / max(sizes.mean(), 1.0))
        self._size, self._gains = len(texts), {}
        for word, counted in places.items():
            numbers, counts = np.array(counted).T
            rarity = np.log(1 + (len(texts) - len(counted) + 0.5) / (len(counted) + 0.5))
            self._gains[word] = numbers, rarity * counts * (k1 + 1) / (counts + length[numbers])

    def scores(self, query: str) -> np.ndarray:
        """Returns the scores [N] of all texts."""
        scores = np.zeros(self._size)
        for word in words_of(query):
            if word in self._gains:
                numbers, gains = self._gains[word]
                scores[numbers] += gains
        return scores

    def best(self, query: str, count: int) -> list[int]:
        """Returns the numbers of the texts with the highest scores; of equal ones the first."""
        return np.argsort(-self.scores(query), kind="stable")[:count].tolist()
