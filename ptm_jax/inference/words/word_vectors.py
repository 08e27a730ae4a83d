"""A model of word vectors: look-up, neighbours, analogies, and fastText's classes.

Cosines are float32 products with vectors of length 1. In a large table copies in 8 bits leave few
candidates for them (`kernels.words.nearest`); no answer differs. Analogies: 3CosAdd (Mikolov et al.
2013, NAACL, section 4), 3CosMul (Levy & Goldberg 2014, CoNLL, equation 4).
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np

from ptm_jax.convert.words import wordfiles
from ptm_jax.convert.words.wordtable import WordTable
from ptm_jax.core.errors import UserError, closest
from ptm_jax.core.reading import shown
from ptm_jax.inference import html_tables, inputs
from ptm_jax.inference.text.vectors import unit
from ptm_jax.inference.words import bag_classes, trained_words
from ptm_jax.kernels import words as kernels
from ptm_jax.kernels.words import nearest

NEAR = 50_000
"""Words among which the nearest spelling of an unknown one is sought."""
MANY = 1 << 24
"""Numbers of a table from which on a search reads copies in 8 bits first."""
EPSILON = 1e-6
"""Of the divisor of 3CosMul (gensim's; the paper has 0.001)."""

Method = Literal["3cosadd", "3cosmul"]


class Similar(NamedTuple):
    """A word and its score: the cosine, or the product of 3CosMul."""

    word: str
    score: float


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class WordVectors:
    """Words with vectors [V, D]; `table` is the file's content.
    `encodes`: whether it has vectors of texts, by `encode`."""

    table: WordTable
    encodes: ClassVar[bool] = False

    @classmethod
    def of(
        cls, words: Sequence[str], vectors: np.ndarray, counts: Sequence[int] | None = None
    ) -> WordVectors:
        """Returns the model of an array [V, D] and its words, with training counts if known."""
        counts = None if counts is None else np.asarray(counts, np.int64)
        return cls(
            WordTable(words=list(words), rows=np.asarray(vectors, np.float32), counts=counts)
        )

    @classmethod
    def of_model(cls, model: Any, counts: np.ndarray | None = None) -> WordVectors:
        """Returns the vectors of a `Pretrained` model with a table of words, such as a trained
        skip-gram or NNLM, without the special pieces; `counts` [V] are those of every id, where
        known. `WordVectors` are returned as they are. Raises UserError for another model."""
        return model if isinstance(model, cls) else cls(trained_words.table_of(model, counts))

    def __repr__(self) -> str:
        table, more = self.table, ""
        if table.subwords is not None and table.subwords.longest > 0:
            size = table.subwords.rows.shape[0]
            more = (
                f", n-grams of {table.subwords.shortest} to {table.subwords.longest} "
                f"characters in {size:,} rows"
            )
        if table.classes is not None:
            more += f", {len(table.classes.names):,} classes"
        return f"WordVectors: {len(self):,} words of width {self.width}{more}"

    def _repr_html_(self) -> str:
        return html_tables.table(("word",), ((word,) for word in self.words[:10]), repr(self))

    def __len__(self) -> int:
        return len(self.table.words)

    def __contains__(self, word: str) -> bool:
        return word in self._index

    def __getitem__(self, words: str | Sequence[str]) -> np.ndarray:
        """Returns the vector [D] of a word, or [n, D] of several.
        A word that is not in the vocabulary has the mean of its n-grams, where the model has some.
        Raises UserError for an unknown word otherwise."""
        if isinstance(words, str):
            return self._vectors([words])[0]
        return self._vectors(list(words))

    @property
    def words(self) -> Sequence[str]:
        """The vocabulary, in the order of the rows."""
        return self.table.words

    @property
    def width(self) -> int:
        return self.table.width

    @functools.cached_property
    def vectors(self) -> np.ndarray:
        """[V, D] float32, of all words."""
        return self.table.whole()

    def similarity(self, a: str, b: str) -> float:
        """Returns the cosine of two words."""
        first, second = unit(self[[a, b]])
        return float(first @ second)

    def most_similar(
        self,
        positive: str | Iterable[Any],
        negative: str | Iterable[Any] = (),
        top: int = 10,
        method: Method = "3cosadd",
        among: int | None = None,
    ) -> list[Similar]:
        """Returns the `top` words nearest to `positive` words or vectors [D].
        They are far from the `negative` ones.

        3cosadd: the cosine with the mean of their unit vectors, the negative ones turned round.
        3cosmul: the product of the cosines with the positive ones over the product with the
        negative ones plus 1e-6; cosines are moved to [0, 1]. Given words are not answers. `among`
        restricts answers to the first words of the vocabulary. Raises UserError for nothing given,
        an unknown word or method, or `top` below 1.
        """
        words, signs, vectors = self._given(positive, negative)
        if method == "3cosadd":
            query = unit((signs[:, None] * unit(vectors)).mean(0, keepdims=True))
            if top < 1 or self._rounded is None:
                return self._best(self._cosines(query, among)[:, 0], words, top)
            rows = self._rounded.candidates(query[0], top + len(words), among)
            return self._best(self._units[rows] @ query[0], words, top, rows)
        if method != "3cosmul":
            raise UserError(f"the method {method!r} is unknown; there are: 3cosadd, 3cosmul")
        cosines = (1 + self._cosines(unit(vectors), among)) / 2
        return self._best(
            cosines[:, signs > 0].prod(1) / (cosines[:, signs < 0].prod(1) + EPSILON), words, top
        )

    def analogy(
        self,
        a: str,
        b: str,
        c: str,
        method: Method = "3cosadd",
        top: int = 1,
        *,
        among: int | None = None,
    ) -> list[Similar]:
        """Returns the words that are to `c` as `b` is to `a`.
        analogy("man", "king", "woman") finds "queen".

        It is `most_similar([b, c], [a])`. Raises UserError as that.
        """
        return self.most_similar([b, c], [a], top, method, among)

    def classify(self, texts: Sequence[str]) -> list[dict[str, float]]:
        """Returns {class: probability} of each text by a supervised fastText model, without the
        prefix `__label__`. Raises UserError for a model without classes."""
        if self.table.classes is None:
            raise UserError(
                "these are vectors of words without classes; fine-tune a model with `ptm "
                "train --task`"
            )
        return bag_classes.classify(self.table, self._index, inputs.texts_of(texts))

    def save(self, path: str | os.PathLike, format: str | None = None) -> list[Path]:
        """Writes the vectors and returns the files (`convert.words.wordfiles.FORMATS`; default: by
        the ending). Raises UserError for a word that the format cannot hold."""
        return wordfiles.write(path, self.table, format)

    @functools.cached_property
    def _index(self) -> dict[str, int]:
        """{word: its first row}."""
        words = self.table.words
        return dict(zip(reversed(words), range(len(words) - 1, -1, -1), strict=True))

    @functools.cached_property
    def _units(self) -> np.ndarray:
        return unit(self.vectors)

    @functools.cached_property
    def _rounded(self) -> nearest.Rounded | None:
        """Copies for the search in many numbers, where the host can compile its kernel."""
        small = self._units.size < MANY or isinstance(kernels.library("nearest"), str)
        return None if small else nearest.Rounded.of(self._units)

    def _vectors(self, words: list[str]) -> np.ndarray:
        rows = np.array([self._index.get(word, -1) for word in words], np.int64)
        subwords = self.table.subwords
        if (rows < 0).any() and (subwords is None or subwords.longest < 1):
            word = words[int((rows < 0).argmax())]
            near = closest(word, self.table.words[:NEAR])
            raise UserError(
                f"the word {shown(word)} is not among the {len(self):,} words of these "
                f"vectors.{near}"
            )
        return self.table.vectors(words, rows)

    def _given(self, positive: Any, negative: Any) -> tuple[list[str], np.ndarray, np.ndarray]:
        """Returns (words, signs [n], vectors [n, D]) of what `most_similar` was given."""

        def alone(asked):
            return (
                [asked]
                if isinstance(asked, str) or (isinstance(asked, np.ndarray) and asked.ndim == 1)
                else asked
            )

        parts = [(1.0, part) for part in alone(positive)] + [
            (-1.0, part) for part in alone(negative)
        ]
        if not parts:
            raise UserError("give at least one word")
        vectors = [
            self[part] if isinstance(part, str) else np.asarray(part, np.float32)
            for _, part in parts
        ]
        if bad := [vector.shape for vector in vectors if vector.shape != (self.width,)]:
            raise UserError(
                f"a vector of the shape {bad[0]} is given; these vectors have the shape "
                f"({self.width},)"
            )
        signs = np.array([sign for sign, _ in parts], np.float32)
        return [part for _, part in parts if isinstance(part, str)], signs, np.stack(vectors)

    def _cosines(self, queries: np.ndarray, among: int | None) -> np.ndarray:
        """Returns the cosines [V, Q] of the words with unit vectors [Q, D]."""
        return self._units[:among] @ queries.T

    def _best(
        self, scores: np.ndarray, without: Sequence[str], top: int, rows: np.ndarray | None = None
    ) -> list[Similar]:
        """Returns the `top` of the first words, or of those of `rows`, which are in order."""
        if top < 1:
            raise UserError(f"top is {top}; it must be at least 1")
        rows = np.arange(len(scores)) if rows is None else rows
        scores[
            np.isin(rows, [self._index[word] for word in without if word in self._index])
        ] = -np.inf
        top = min(top, len(scores))
        best = np.argpartition(-scores, top - 1)[:top]
        best = best[np.lexsort((best, -scores[best]))]
        return [
            Similar(self.words[rows[i]], float(scores[i]))
            for i in best.tolist()
            if scores[i] > -np.inf
        ]
