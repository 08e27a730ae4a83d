"""Classes of a text by a supervised fastText model.
The mean of the rows of its words and n-grams, and a linear layer (Joulin et al. 2017, arXiv
1607.01759, section 2).

Deviation: fastText adds 1e-5 to each probability before it takes the logarithm that it prints; here
probabilities are exact.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np

from ptm_jax.convert.words.wordtable import EOS, Classes, WordTable, encoded
from ptm_jax.statistics.hashed_ngrams import STEP, fnv1a
from ptm_jax.statistics.huffman import tree_paths

LABEL = "__label__"
BLANKS = re.compile("[ \t\v\f\r\0]+")
SIGMOIDS = 512
"""Entries of fastText's table of the logistic function over -8 to 8, which it uses for one against
all."""


def classify(
    table: WordTable, index: Mapping[str, int], texts: Sequence[str]
) -> list[dict[str, float]]:
    """Returns {class: probability} of each text. A text ends at its first line break."""
    names = [name.removeprefix(LABEL) for name in table.classes.names]
    hidden = (
        np.stack([_mean(table, index, text.split("\n")[0]) for text in texts])
        if texts
        else np.zeros((0, table.width))
    )
    return [
        dict(zip(names, row.tolist(), strict=True)) for row in probabilities(table.classes, hidden)
    ]


def probabilities(classes: Classes, hidden: np.ndarray) -> np.ndarray:
    """Returns the probability [n, C] of each class given the means [n, D]."""
    from scipy import special  # a fifth of a second, which other models need not wait for

    logits = hidden @ np.asarray(classes.rows[np.arange(classes.rows.shape[0])]).T
    if classes.loss == "softmax":
        return special.softmax(logits, -1)
    if classes.loss in ("ova", "ns"):
        at = ((np.clip(logits, -8, 8) + 8) * (SIGMOIDS / 16)).astype(np.int64)
        return np.where(np.abs(logits) > 8, logits > 0, special.expit(at * (16 / SIGMOIDS) - 8))
    products = np.ones((len(hidden), len(classes.names)))
    for name, path in enumerate(tree_paths(tuple(classes.counts.tolist()))):
        for node, right in path:
            products[:, name] *= special.expit(logits[:, node] if right else -logits[:, node])
    return products


def _mean(table: WordTable, index: Mapping[str, int], text: str) -> np.ndarray:
    """Returns the mean [D] of the rows of a text's words, their n-grams, and the n-grams of
    words."""
    words, subwords = [word for word in BLANKS.split(text) if word] + [EOS], table.subwords
    words = [word for word in words if word in index or not word.startswith(LABEL)]
    rows = [index[word] for word in words if word in index]
    ngrams: list[int] = []
    if subwords is not None and subwords.longest > 0:
        ngrams += subwords.of(words)[0].tolist()
    if subwords is not None and table.classes.word_ngrams > 1:
        ngrams += _word_ngrams(words, table.classes.word_ngrams, subwords)
    sums, count = np.zeros(table.width, np.float32), len(rows) + len(ngrams)
    if rows:
        sums = sums + np.asarray(table.rows[np.array(rows)]).sum(0)
    if ngrams:
        sums = sums + np.asarray(subwords.rows[np.array(ngrams)]).sum(0)
    return sums / max(count, 1)


def _word_ngrams(words: Sequence[str], longest: int, subwords) -> list[int]:
    """Returns the rows of n-grams of two to `longest` words."""
    hashes = [
        (value := fnv1a(encoded(word))) - ((value >> 31) << 32) for word in words
    ]  # int32, as fastText keeps them
    rows = []
    for start in range(len(hashes)):
        value = hashes[start]
        for following in hashes[start + 1 : start + longest]:
            value = (value * STEP + following) % (1 << 64)
            bucket = value % subwords.buckets
            rows.append(
                bucket if subwords.bucket_rows is None else subwords.bucket_rows.get(bucket, -1)
            )
    return [row for row in rows if row >= 0]
