"""Parts of speech, polarities and supersenses of words."""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp

from ptm_jax.core.batch import segments_of
from ptm_jax.core.reading import broken, read_bytes, shown
from ptm_jax.core.types import Array, Batch
from ptm_jax.knowledge.english_words import FILE_PARTS, SENSE_PARTS, SUPERSENSES
from ptm_jax.knowledge.graphs import graph_folder
from ptm_jax.knowledge.mentions import Lexicon, lines

PARTS = ("v", "a", "r", "n", "u")
"""Verb, adjective, adverb, noun, other: the order of thu-coai/SentiLARE."""
POLARITIES = ("-", "+", "0")
"""Negative, positive, neutral."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class WordClasses(Lexicon):
    """Part of speech + 1, polarity + 1 and supersenses (bits of two integers, 24 and 21) of every
    word.

    The file is a compiled graph of WordNet and SentiWordNet, WordNet's `index.sense`, SentiWordNet
    3.0, or lines with tabs of words (commas between), part of speech, polarity (+, -, 0) and
    supersenses (commas between). A word on several lines has the supersenses of all and the rest of
    the first. SentiWordNet gives the mean of positive minus negative score over a word's senses
    with weights softmax(1 / rank), those of SentiLR for equal similarities (Ke et al. 2020, Eq. 2),
    of its most frequent part of speech.
    """

    def entries(self, tokenizer: Any) -> Mapping[str, Sequence[int]]:
        if graph_folder.is_graph(self.path):
            return self._compiled()
        if self.path.name == "index.sense":
            return self._wordnet()
        if not self.has_scores:
            return self._listed()

        def row(part, senses):
            return (1 + PARTS.index(part), polarity_of([sense[:2] for sense in senses]), 0, 0)

        return {name: row(*found) for name, found in self.scored().items()}

    @property
    def has_scores(self) -> bool:
        """Whether the file is SentiWordNet's."""
        head = b"" if graph_folder.is_graph(self.path) else read_bytes(self.path, 1 << 34)[:2000]
        return head.startswith(b"#") and b"SentiWordNet" in head

    def example(self, number: int, vocab: Any) -> Sequence[int]:
        return 1 + number % 5, 1 + number % 3, 1 << number % 24, 1 << number % 21

    def _listed(self) -> dict[str, tuple[int, ...]]:
        found: dict[str, tuple[int, ...]] = {}
        for number, (words, part, polarity, *senses) in lines(self.path, (3, 4)):
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
                first = found.get(
                    word, (1 + PARTS.index(part), 1 + POLARITIES.index(polarity), 0, 0)
                )
                found[word] = *first[:2], first[2] | low, first[3] | high
        return found

    def _wordnet(self) -> dict[str, tuple[int, ...]]:
        found: dict[str, tuple[int, ...]] = {}
        for number, line in enumerate(read_bytes(self.path, 1 << 34).decode().splitlines(), 1):
            lemma, mark, key = line.split(" ")[0].partition("%")
            kind, _, rest = key.partition(":")
            if (
                not mark
                or kind not in SENSE_PARTS
                or not rest[:2].isdigit()
                or int(rest[:2]) >= len(SUPERSENSES)
            ):
                raise broken(
                    self.path,
                    f"line {number:,} is {shown(line[:80])}; expected a sense key as in "
                    "index.sense(5WN)",
                )
            low, high = bits([int(rest[:2])])
            name, neutral = lemma.replace("_", " "), POLARITIES.index("0")
            first = found.get(name, (1 + PARTS.index(SENSE_PARTS[kind]), 1 + neutral, 0, 0))
            found[name] = *first[:2], first[2] | low, first[3] | high
        return found

    def scored(self) -> dict[str, tuple[str, list[tuple[int, float, str]]]]:
        """Returns {name: its most frequent part of speech, (rank, score, gloss) of its senses} of
        SentiWordNet's file."""
        senses = collections.defaultdict(lambda: collections.defaultdict(list))
        for number, (part, _, plus, minus, terms, gloss) in lines(self.path, (6,)):
            try:
                score = float(plus) - float(minus)
                for name, rank in (term.rsplit("#", 1) for term in terms.split()):
                    senses[name.replace("_", " ")]["a" if part == "s" else part].append(
                        (int(rank), score, gloss)
                    )
            except ValueError:
                raise broken(
                    self.path,
                    f"line {number:,} has no scores and terms as good#1; expected SentiWordNet 3.0",
                ) from None
        best = {
            name: max(parts, key=lambda one: (len(parts[one]), one))
            for name, parts in senses.items()
        }
        return {name: (best[name], parts[best[name]]) for name, parts in senses.items()}

    def _compiled(self) -> dict[str, tuple[int, ...]]:
        found = {}
        for name, several in graph_folder.senses(self.path):
            kinds = [kind for some, *_ in several for kind in some if kind in SUPERSENSES]
            if kinds:
                part = FILE_PARTS[kinds[0].split(".")[0]]
                ranked = [(rank, score) for rank, (_, score, _) in enumerate(several, 1)]
                low, high = bits([SUPERSENSES.index(kind) for kind in kinds])
                found[name] = 1 + PARTS.index(part), polarity_of(ranked), low, high
        return found

    def classes(self, batch: Batch) -> dict[str, Array]:
        """Returns `parts`, `polarities` [B, L] int32, from 0 as in `PARTS` and `POLARITIES`, and
        `senses` [B, L, 2] int32, the bits of the supersenses that each token's word allows
        (`allowed`). A word that the lexicon lacks is other, neutral, of no supersense."""
        return classes_of(self.find(batch["input_ids"], segments_of(batch)).values)


def classes_of(values: Array) -> dict[str, Array]:
    """Returns `WordClasses.classes` of what was found, [B, L, K]."""
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
    """Returns the number + 1 in `POLARITIES` of the sign of the mean of (rank, score), with weights
    softmax(1 / rank)."""
    weights = [math.exp(1 / rank) for rank, _ in scores]
    mean = sum(weight * score for weight, (_, score) in zip(weights, scores, strict=True))
    return 1 + POLARITIES.index("+" if mean > 0 else "-" if mean < 0 else "0")


def bits(senses: Sequence[int]) -> tuple[int, int]:
    """Returns supersenses as bits of two integers."""
    return sum(1 << i for i in {*senses} if i < 24), sum(1 << i - 24 for i in {*senses} if i >= 24)
