"""Vectors of two languages in one space, and the similarity of translations.
The space is of canonical correlations of a dictionary's pairs.

Faruqui and Dyer 2014, EACL, section 3: both tables are projected on the directions in which the
vectors of the dictionary's pairs correlate most, and the first 80% of these are kept.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from ptm_jax.core.errors import UserError
from ptm_jax.core.reading import decoded, read_bytes
from ptm_jax.inference.text.vectors import unit
from ptm_jax.inference.words.word_vectors import WordVectors

MARK = ":"
"""Between a language and a word, in a table of two languages (`data.text.bitext`)."""
SCORES = 1 << 25
"""Scores that are held at a time."""


@dataclasses.dataclass(frozen=True, eq=False)
class Projection:
    """Means [D] and directions [D, K] of both sides, and the pairs' falling correlations [K]."""

    means: tuple[np.ndarray, np.ndarray]
    directions: tuple[np.ndarray, np.ndarray]
    correlations: np.ndarray

    def of(self, vectors: np.ndarray, side: int) -> np.ndarray:
        """Returns vectors [n, D] of one side in the common space, [n, K] float32."""
        return ((vectors - self.means[side]) @ self.directions[side]).astype(np.float32)


def canonical(first: np.ndarray, second: np.ndarray, keep: float = 0.8) -> Projection:
    """Returns the canonical correlations of rows [n, D1] and [n, D2], the first `keep` of them.

    The projections of the rows have mean 0, variance 1 (n - 1 in the divisor) and are uncorrelated,
    except that column k of one side has the correlation k with column k of the other (Hotelling
    1936). Raises UserError for too few pairs.
    """
    count, widest = len(first), max(first.shape[1], second.shape[1])
    if count <= widest:
        raise UserError(
            f"{count} pairs of words for vectors of width {widest}; more pairs than that are needed"
        )
    if not 0 < keep <= 1:
        raise UserError(f"keep is {keep}; expected a share of the directions in (0, 1]")
    means, bases, spans = [], [], []
    for rows in (np.asarray(first, np.float64), np.asarray(second, np.float64)):
        mean = rows.mean(0)
        left, sizes, right = np.linalg.svd(rows - mean, full_matrices=False)
        real = sizes > sizes[0] * count * np.finfo(np.float64).eps
        means.append(mean)
        bases.append(left[:, real])
        spans.append(right[real].T / sizes[real] * np.sqrt(count - 1))
    left, correlations, right = np.linalg.svd(bases[0].T @ bases[1], full_matrices=False)
    dimensions = max(1, round(keep * len(correlations)))
    directions = spans[0] @ left[:, :dimensions], spans[1] @ right[:dimensions].T
    return Projection(tuple(means), directions, np.minimum(correlations[:dimensions], 1.0))


def aligned(
    first: WordVectors, second: WordVectors, pairs: Sequence[tuple[str, str]], keep: float = 0.8
) -> tuple[WordVectors, WordVectors, Projection]:
    """Returns both tables in the space of the pairs that both know.
    Vectors have length 1 before, as in the authors' code. Raises UserError for too few pairs."""
    known = [(a, b) for a, b in pairs if a in first and b in second]
    sides = [
        unit(model[list(words)])
        for model, words in zip((first, second), zip(*known, strict=True), strict=False)
    ]
    if not known:
        raise UserError(
            f"none of the {len(pairs):,} pairs has both words in the vocabularies; turn the "
            "dictionary round?"
        )
    projection = canonical(*sides, keep)
    tables = [
        projection.of(unit(model.vectors), side) for side, model in enumerate((first, second))
    ]
    counts = [model.table.counts for model in (first, second)]
    models = (
        WordVectors.of(model.words, table, count)
        for model, table, count in zip((first, second), tables, counts, strict=True)
    )
    return *models, projection


def lines_of(path: Path) -> list[str]:
    """Returns the lines of a UTF-8 file. Raises UserError."""
    return decoded(path, read_bytes(path)).splitlines()


def of_language(model: WordVectors, language: str) -> WordVectors:
    """Returns the words `language:word` of a table of two languages, without the language.
    Raises UserError."""
    start = language + MARK
    rows = [
        i for i, word in enumerate(model.words) if word.startswith(start) and len(word) > len(start)
    ]
    if not rows:
        raise UserError(f"no word begins with {start!r}; give a language of these vectors")
    counts = None if model.table.counts is None else model.table.counts[rows]
    return WordVectors.of(
        [model.words[i].removeprefix(start) for i in rows], model.vectors[rows], counts
    )


def translations(
    first: WordVectors,
    second: WordVectors,
    pairs: Sequence[tuple[str, str]],
    tops: Sequence[int] = (1, 5),
) -> tuple[Mapping[str, float], int]:
    """Returns ({"precision@k", "coverage"}, words that count).

    How often one of the k nearest words of the second table, by cosine, is a translation of a word
    of the first. Words without a known translation are left out. Raises UserError.
    """
    known: dict[str, set[str]] = {}
    for a, b in pairs:
        known.setdefault(a, set()).add(b)
    good = {
        a: targets
        for a, bs in known.items()
        if a in first and (targets := {b for b in bs if b in second})
    }
    if not good:
        raise UserError(
            f"none of the {len(known):,} words has a vector beside one of a translation; "
            "turn the pairs round?"
        )
    _same_width(first, second)
    table, words = unit(second.vectors), second.words
    queries, right, limit = (
        unit(first[list(good)]),
        dict.fromkeys(tops, 0),
        min(max(tops), len(words)),
    )
    step = max(1, SCORES // len(words))
    for start in range(0, len(queries), step):
        scores = queries[start : start + step] @ table.T
        best = np.argsort(-scores, axis=1, kind="stable")[:, :limit]
        for translation, row in zip(list(good.values())[start : start + step], best, strict=True):
            places = [place for place, i in enumerate(row) if words[i] in translation]
            for top in tops:
                right[top] += bool(places) and places[0] < top
    return {
        **{f"precision@{top}": n / len(good) for top, n in right.items()},
        "coverage": len(good) / len(known),
    }, len(good)


def sentences(
    first: WordVectors, second: WordVectors, texts: Sequence[Sequence[Sequence[str]]]
) -> dict[str, float]:
    """Returns {"forward", "backward", "accuracy"}: retrieval in both directions and their mean.

    A sentence is given as words. Its vector is the mean of its unit word vectors. It is right if
    the sentence of the other language with the highest cosine has the same number.
    """
    _same_width(first, second)

    def vector(model: WordVectors, words: Sequence[str]) -> np.ndarray:
        known = [word for word in words if word in model]
        return unit(model[known]).mean(0) if known else np.zeros(model.width)

    vectors = [
        np.stack([vector(model, words) for words in side])
        for model, side in zip((first, second), texts, strict=True)
    ]
    scores = unit(vectors[0]) @ unit(vectors[1]).T
    numbers = np.arange(len(scores))
    ways = {
        "forward": float((scores.argmax(1) == numbers).mean()),
        "backward": float((scores.argmax(0) == numbers).mean()),
    }
    return {**ways, "accuracy": sum(ways.values()) / 2}


def _same_width(first: WordVectors, second: WordVectors) -> None:
    if first.width != second.width:
        raise UserError(
            f"the vectors have the widths {first.width} and {second.width}; bring them into "
            "one space: `ptm align`"
        )
