"""Parts of speech, polarities and supersenses of words."""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp

from ptm_jax.core.batch import segments_of
from ptm_jax.core.reading import broken, reading, shown
from ptm_jax.core.types import Array, Batch
from ptm_jax.knowledge.english_words import FILE_PARTS, SUPERSENSES
from ptm_jax.knowledge.graphs import graph_folder
from ptm_jax.knowledge.graphs.graph_folder import Sense
from ptm_jax.knowledge.graphs.graph_store import GraphStore, open_graph
from ptm_jax.knowledge.graphs.opening import opened
from ptm_jax.knowledge.graphs.tables import cells
from ptm_jax.knowledge.graphs.wordnet import SENSES
from ptm_jax.knowledge.mentions import Lexicon

if TYPE_CHECKING:
    from ptm_jax.core.types import Vocab


PARTS = ("v", "a", "r", "n", "u")
"""Verb, adjective, adverb, noun, other: the order of thu-coai/SentiLARE."""
POLARITIES = ("-", "+", "0")
"""Negative, positive, neutral."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class WordClasses(Lexicon):
    """Part of speech, polarity and supersenses of every word.

    The integers of a word are its part of speech + 1, its polarity + 1, and its supersenses as the
    bits of two integers (24 and 21).

    The file is a compiled graph of WordNet and SentiWordNet, WordNet's `index.sense`, SentiWordNet
    3.0, or a table. A line of a table has, with tabs between, words (commas between), part of
    speech, polarity (+, -, 0) and supersenses (commas between). A word on several lines has the
    supersenses of all of them, and otherwise the values of the first.

    The polarity from SentiWordNet is the mean of positive minus negative score over the senses of a
    word's most frequent part of speech. The weights are softmax(1 / rank), as SentiLR's for equal
    similarities (Ke et al. 2020, Eq. 2).
    """

    def graph(self) -> GraphStore | None:
        """Returns the graph of the file, compiled at first use; None for a list of words."""
        if self.path.is_dir():
            return open_graph(self.path)
        if self.path.name == SENSES:
            return opened(self.path, "senses")
        with reading(self.path), self.path.open("rb") as file:
            head = file.read(2000)
        scores = head.startswith(b"#") and b"SentiWordNet" in head
        return opened(self.path, "sentiwordnet") if scores else None

    def entries(self, tokenizer: Any) -> Mapping[str, Sequence[int]]:
        graph = self.graph()
        if graph is None:
            return self._listed()
        return {
            name: row for name, several in senses_of(graph).items() if (row := _classes(several))
        }

    def example(self, number: int, vocab: Vocab) -> Sequence[int]:
        return 1 + number % 5, 1 + number % 3, 1 << number % 24, 1 << number % 21

    def _listed(self) -> dict[str, tuple[int, ...]]:
        classes: dict[str, tuple[int, ...]] = {}
        for number, (words, part, polarity, *senses) in cells(self.path, 3, 4, comments=True):
            names = [name for name in (senses[0].split(",") if senses else []) if name]
            unknown = [name for name in names if name not in SUPERSENSES]
            if part not in PARTS or polarity not in POLARITIES or unknown:
                wrong = shown(unknown[0] if unknown else f"{part} {polarity}")
                raise broken(
                    self.path,
                    f"line {number:,} has {wrong}; expected one of v a r n u, of - + 0, and "
                    "supersenses",
                )
            low, high = bits([SUPERSENSES.index(name) for name in names])
            for word in words.split(","):
                first = classes.get(
                    word, (1 + PARTS.index(part), 1 + POLARITIES.index(polarity), 0, 0)
                )
                classes[word] = *first[:2], first[2] | low, first[3] | high
        return classes

    def classes(self, batch: Batch) -> dict[str, Array]:
        """Returns `parts`, `polarities` [B, L] int32, from 0 as in `PARTS` and `POLARITIES`, and
        `senses` [B, L, 2] int32, the bits of the supersenses that each token's word allows
        (`allowed`). A word that the lexicon lacks is other, neutral, of no supersense."""
        return classes_of(self.find(batch["input_ids"], segments_of(batch)).values)


def senses_of(graph: GraphStore) -> dict[str, list[Sense]]:
    """Returns the senses of every word, the likeliest first.

    SentiWordNet alone numbers senses and has no types: then only the senses of the word's most
    frequent part of speech.
    """
    several = dict(graph_folder.senses(graph))
    if len(graph.type_names):
        return several
    return {} if graph.alias_senses is None else {w: _of_one_part(s) for w, s in several.items()}


def _of_one_part(senses: Sequence[Sense]) -> list[Sense]:
    parts = collections.defaultdict(list)
    for sense in senses:
        parts[sense.part].append(sense)
    return parts[max(parts, key=lambda part: (len(parts[part]), part))]


def _classes(senses: Sequence[Sense]) -> tuple[int, ...] | None:
    """Returns the integers of a word; None where its senses have types, and none is a
    supersense."""
    kinds = [kind for sense in senses for kind in sense.kinds if kind in SUPERSENSES]
    if not kinds and any(sense.kinds for sense in senses):
        return None
    part = FILE_PARTS[kinds[0].split(".")[0]] if kinds else senses[0].part
    polarity = polarity_of([(sense.number, sense.score) for sense in senses])
    return 1 + PARTS.index(part), polarity, *bits([SUPERSENSES.index(kind) for kind in kinds])


def classes_of(values: Array) -> dict[str, Array]:
    """Returns `WordClasses.classes` of the integers of each token's name, [B, L, K]."""
    known, neutral = values[..., 0] > 0, POLARITIES.index("0")
    parts = jnp.where(known, values[..., 0] - 1, PARTS.index("u"))
    return {
        "parts": parts,
        "polarities": jnp.where(known, values[..., 1] - 1, neutral),
        "senses": values[..., 2:4],
    }


def allowed(senses: Array) -> Array:
    """Returns the bits of supersenses [.., 2] as booleans [.., 45]."""
    place = jnp.arange(len(SUPERSENSES))
    return (
        jnp.where(
            place < 24,
            senses[..., :1] >> jnp.minimum(place, 23),
            senses[..., 1:] >> jnp.maximum(place - 24, 0),
        )
        & 1
        > 0
    )


def polarity_of(scores: Sequence[tuple[int, float]]) -> int:
    """Returns the number + 1 in `POLARITIES` of the sign of a word's scores.

    It is the sign of the mean of (rank, score), with weights softmax(1 / rank).
    """
    weights = [math.exp(1 / rank) for rank, _ in scores]
    mean = sum(weight * score for weight, (_, score) in zip(weights, scores, strict=True))
    return 1 + POLARITIES.index("+" if mean > 0 else "-" if mean < 0 else "0")


def bits(senses: Sequence[int]) -> tuple[int, int]:
    """Returns supersenses as bits of two integers."""
    return sum(1 << i for i in {*senses} if i < 24), sum(1 << i - 24 for i in {*senses} if i >= 24)
