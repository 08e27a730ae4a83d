"""Polarities of words by their senses in context (SentiLR, SentiLARE)."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from ptm_jax.core.batch import segments_of
from ptm_jax.core.types import Array, Batch
from ptm_jax.knowledge.graphs.graph_folder import Sense
from ptm_jax.knowledge.vector_files import vectors_in, words_of
from ptm_jax.knowledge.word_classes import POLARITIES, WordClasses, classes_of, senses_of

if TYPE_CHECKING:
    from ptm_jax.core.types import Vocab


SCALE = 1000
"""Scores of senses are integers in thousandths; SentiWordNet's are multiples of 1/8."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SenseAttention(WordClasses):
    """`WordClasses` with polarities that depend on the text.

        polarity = sign(sum_j a_j (positive_j - negative_j))           over a word's senses j
        a_j      = softmax_j((1 + cos(text, gloss_j)) / (2 rank_j))

    The senses are SentiWordNet's (Ke et al. 2020, arXiv 1911.02493, Eq. 1 and 2;
    thu-coai/SentiLARE, preprocess/prep_sent.py). A gloss ends at its first example.

    vectors   word vectors as text, such as GloVe's or fastText's; None: all similarities are
              equal

    The text is the sentence of a word if the batch has `sentences`, otherwise its document in the
    row. Words whose senses agree in sign need no glosses. Vectors are constants of the compiled
    step, 4 V D bytes.

    Deviations: the vector of a text or a gloss is a mean of given word vectors, over its words that
    are single pieces of the vocabulary; the original uses Sentence-BERT. The part of
    speech is the word's most frequent one; with a compiled graph of WordNet and SentiWordNet the
    senses of all parts of speech count, the likeliest first.

    values          names, as in every lexicon, with the first sense and the number of senses
    scores          [S, 2] int32: rank and score of a sense, in thousandths
    glosses         [S, D] float32: vectors of glosses, of length 1 or 0
    token_vectors   [V, D] float32
    """

    array_names: ClassVar[tuple[str, ...]] = ("values", "scores", "glosses", "token_vectors")

    vectors: str | None = None

    def entries(self, tokenizer: Any) -> Mapping[str, Sequence[int]]:
        several = self._several()
        counts = [len(senses) for senses in several.values()]
        starts = dict(zip(several, np.cumsum([0, *counts]).tolist(), strict=False))
        rows = super().entries(tokenizer)
        return {
            name: (*row, starts.get(name, 0), len(several.get(name, ())))
            for name, row in rows.items()
        }

    def _several(self) -> dict[str, list[Sense]]:
        """Returns the senses of words that have positive and negative ones."""
        graph = None if self.vectors is None else self.graph()
        if graph is None:
            return {}

        def mixed(senses):
            return min(sense.score for sense in senses) < 0 < max(sense.score for sense in senses)

        return {name: senses for name, senses in senses_of(graph).items() if mixed(senses)}

    def of_tokenizer(self, tokenizer: Any) -> dict[str, np.ndarray]:
        names, several = super().of_tokenizer(tokenizer), self._several()
        senses = [sense for name in several for sense in several[name]]
        if not senses:
            return _named(names, np.zeros((0, 2)), np.zeros((0, 1)), np.zeros((0, 1)))
        words = words_of(tokenizer)
        known = vectors_in(
            Path(self.vectors).expanduser(),
            {*words.values(), *(word.lower() for word in words.values())},
        )
        table = np.zeros((len(tokenizer.pieces), len(next(iter(known.values())))), np.float32)
        for number, word in words.items():
            table[number] = known.get(word, known.get(word.lower(), 0.0))
        encoded = tokenizer.encode_batch([f" {_definition(gloss)}" for *_, gloss in senses])
        glosses = np.array([table[ids].sum(0) for ids in encoded])
        glosses /= np.maximum(np.linalg.norm(glosses, axis=1, keepdims=True), 1e-9)
        scores = np.array([(sense.number, round(SCALE * sense.score)) for sense in senses])
        return _named(names, scores, glosses, table)

    def stand_in(self, vocab: Vocab) -> dict[str, np.ndarray]:
        draw, names = np.random.default_rng(0), super().stand_in(vocab)
        scores = np.stack([1 + np.arange(40) % 2, draw.integers(-SCALE, SCALE, 40)], 1)
        glosses, table = (draw.normal(size=(size, 4)) for size in (40, vocab.size))
        return _named(
            names, scores, glosses / np.linalg.norm(glosses, axis=1, keepdims=True), table
        )

    def example(self, number: int, vocab: Vocab) -> Sequence[int]:
        return *super().example(number, vocab), 2 * (number % 20), 2 * (number % 2)

    def classes(self, batch: Batch) -> dict[str, Array]:
        """Returns the classes of `WordClasses`, with polarities of words in their text."""
        values = self.find(batch["input_ids"], segments_of(batch)).values
        classes = classes_of(values)
        scores, glosses, table = (jnp.asarray(self.arrays[name]) for name in self.array_names[1:])
        if not len(scores):
            return classes
        start, count = values[..., 4], values[..., 5]
        context = self._context(batch, table)

        def attend(state, number):
            total, weights = state
            sense = jnp.minimum(start + number, len(scores) - 1)
            near = (glosses[sense] * context).sum(-1)
            weight = jnp.where(number < count, jnp.exp((1 + near) / (2 * scores[sense, 0])), 0.0)
            return (total + weight * scores[sense, 1] / SCALE, weights + weight), None

        zero, largest = jnp.zeros(start.shape), int(self.values[:, 8].max())
        (total, weights), _ = jax.lax.scan(attend, (zero, zero), jnp.arange(largest))
        mean = total / jnp.maximum(weights, 1e-9)
        sign = jnp.where(
            mean > 0,
            POLARITIES.index("+"),
            jnp.where(mean < 0, POLARITIES.index("-"), POLARITIES.index("0")),
        )
        return {**classes, "polarities": jnp.where(count > 0, sign, classes["polarities"])}

    def _context(self, batch: Batch, table: Array) -> Array:
        """The vector of every token's text, of length 1 or 0, [B, L, D]."""
        segments, vectors = segments_of(batch), table[batch["input_ids"]]
        texts = [segments, *([batch["sentences"]] if "sentences" in batch else [])]
        same = functools.reduce(
            jnp.logical_and, (text[:, :, None] == text[:, None, :] for text in texts)
        )
        sums = jnp.einsum(
            "bij,bjd->bid", (same & (segments > 0)[:, None]).astype(vectors.dtype), vectors
        )
        return sums / jnp.maximum(jnp.linalg.norm(sums, axis=-1, keepdims=True), 1e-9)


def _definition(gloss: str) -> str:
    """The part of a gloss before its first example, which is quoted."""
    return gloss.split('"')[0].rstrip("; ")


def _named(
    names: np.ndarray, scores: np.ndarray, glosses: np.ndarray, table: np.ndarray
) -> dict[str, np.ndarray]:
    """Returns the arrays of `SenseAttention` in their types."""
    return {
        "values": names,
        "scores": scores.astype(np.int32),
        "glosses": glosses.astype(np.float32),
        "token_vectors": table.astype(np.float32),
    }
