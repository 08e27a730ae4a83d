"""Lexicons: parts of speech, polarities and supersenses of words; branches of a sentence tree;
entities of names."""

from __future__ import annotations

import collections
import dataclasses
import math
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np

from ptm_jax.core.batch import segments_of
from ptm_jax.core.errors import UserError
from ptm_jax.core.reading import broken, read_bytes, shown
from ptm_jax.core.types import Array, Batch
from ptm_jax.knowledge import graph_folder
from ptm_jax.knowledge.mentions import Lexicon, lines

PARTS = ("v", "a", "r", "n", "u")
"""Verb, adjective, adverb, noun, other: the order of thu-coai/SentiLARE."""
POLARITIES = ("-", "+", "0")
"""Negative, positive, neutral."""
SUPERSENSES = (
    *(
        "adj.all",
        "adj.pert",
        "adv.all",
        "noun.Tops",
        "noun.act",
        "noun.animal",
        "noun.artifact",
        "noun.attribute",
    ),
    *(
        "noun.body",
        "noun.cognition",
        "noun.communication",
        "noun.event",
        "noun.feeling",
        "noun.food",
        "noun.group",
    ),
    *(
        "noun.location",
        "noun.motive",
        "noun.object",
        "noun.person",
        "noun.phenomenon",
        "noun.plant",
        "noun.possession",
    ),
    *(
        "noun.process",
        "noun.quantity",
        "noun.relation",
        "noun.shape",
        "noun.state",
        "noun.substance",
        "noun.time",
    ),
    *(
        "verb.body",
        "verb.change",
        "verb.cognition",
        "verb.communication",
        "verb.competition",
        "verb.consumption",
    ),
    *(
        "verb.contact",
        "verb.creation",
        "verb.emotion",
        "verb.motion",
        "verb.perception",
        "verb.possession",
    ),
    *("verb.social", "verb.stative", "verb.weather", "adj.ppl"),
)
"""The 45 lexicographer files of WordNet (lexnames(5WN))."""
KINDS = {"1": "n", "2": "v", "3": "a", "4": "r", "5": "a"}
"""ss_type of WordNet's sense keys: part of speech."""
PREFIXES = {"noun": "n", "verb": "v", "adj": "a", "adv": "r"}
"""First part of a supersense: part of speech."""


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
                or kind not in KINDS
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
            first = found.get(name, (1 + PARTS.index(KINDS[kind]), 1 + neutral, 0, 0))
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
                part = PREFIXES[kinds[0].split(".")[0]]
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Branches(Lexicon):
    """The first `count` triples of every head as tokens of relation and tail, at most `width` each:
    1, then ids + 1, 0 at the end. The file has lines of head, relation and tail with tabs (K-BERT's
    .spo)."""

    packaged: ClassVar[str] = "triples.tsv"

    count: int = 2
    width: int = 8

    def __post_init__(self):
        if self.count < 1 or self.width < 1:
            raise ValueError(
                f"count is {self.count} and width {self.width}; both must be at least 1"
            )

    def entries(self, tokenizer: Any) -> Mapping[str, Sequence[int]]:
        texts = collections.defaultdict(list)
        for _, (head, relation, tail) in lines(self.path, (3,)):
            texts[head].append(f" {relation} {tail}")
        found = {}
        for head, several in texts.items():
            row = [1]
            for ids in tokenizer.encode_batch(several[: self.count]):
                ids = (ids + 1).tolist()[: self.width]
                row += ids + [0] * (self.width - len(ids))
            found[head] = row + [0] * (1 + self.count * self.width - len(row))
        return found

    def example(self, number: int, vocab: Any) -> Sequence[int]:
        row = [1] + [0] * (self.count * self.width)
        for branch in range(1 + number % self.count):
            size = 1 + number % min(3, self.width)
            start = 1 + branch * self.width
            row[start : start + size] = [
                vocab.size // 3 + (number + n) % (vocab.size // 8) + 1 for n in range(size)
            ]
        return row


@dataclasses.dataclass(frozen=True, kw_only=True)
class Entities(Lexicon):
    """The entities that a name may stand for, from 1, and their priors in millionths: `candidates`
    of each, the likeliest first, 0 at the end.

    The file has lines of name, entity and prior with tabs; entities are numbered in alphabetical
    order. Lines of head, relation and tail (`triples.tsv` in the package) name every head and tail
    by itself.

    entities   rows of a table of entities, of which 0 stands for none
    fill       whether a name with fewer candidates gets others, drawn by its hash, and all
               candidates one prior
    """

    packaged: ClassVar[str] = "triples.tsv"

    entities: int = 256
    candidates: int = 1
    fill: bool = False

    def __post_init__(self):
        if self.candidates < 1 or self.entities < 2:
            raise ValueError(
                f"candidates is {self.candidates} and entities {self.entities}; at least 1 "
                "and 2 are needed"
            )

    def entries(self, tokenizer: Any) -> Mapping[str, Sequence[int]]:
        found = self._named()
        numbers = {entity: n for n, entity in enumerate(_entities(found), 1)}
        if len(numbers) >= self.entities:
            raise UserError(
                f"{self.path} has {len(numbers):,} entities; set entities to at least "
                f"{len(numbers) + 1}"
            )
        rows = {}
        for name, some in found.items():
            best = sorted(some.items(), key=lambda one: (-one[1], one[0]))[: self.candidates]
            row, priors = [numbers[entity] for entity, _ in best], [round(1e6 * p) for _, p in best]
            rest = self.candidates - len(best)
            if self.fill:
                draw = np.random.default_rng(zlib.crc32(name.encode()))
                row += draw.choice(
                    sorted({*numbers.values()} - {*row}), rest, replace=False
                ).tolist()
                priors, rest = [round(1e6 / self.candidates)] * self.candidates, 0
            rows[name] = row + [0] * rest + priors + [0] * rest
        return rows

    def names(self) -> list[str]:
        """Returns the identifiers of the entities 1, 2, ..."""
        return _entities(self._named())

    def _named(self) -> dict[str, dict[str, float]]:
        """{name: {entity: prior}}."""
        found: dict[str, dict[str, float]] = collections.defaultdict(dict)
        for _, (name, other, prior) in lines(self.path, (3,), "aliases"):
            if is_number(prior):
                found[name][other] = float(prior)
            else:
                found[name][name] = found[prior][prior] = 1.0
        return found

    def example(self, number: int, vocab: Any) -> Sequence[int]:
        some = [1 + (number + n) % (self.entities - 1) for n in range(self.candidates)]
        return [*some, *([round(1e6 / self.candidates)] * self.candidates)]


def _entities(named: Mapping[str, Mapping[str, float]]) -> list[str]:
    return sorted({entity for some in named.values() for entity in some})


def is_number(cell: str) -> bool:
    """Whether a cell is a number."""
    try:
        return math.isfinite(float(cell))
    except ValueError:
        return False


@dataclasses.dataclass(frozen=True, kw_only=True)
class TypedNames(Lexicon):
    """Entities with a type: the number of the entity and of its type, both from 1, and the first
    `width` ids of its name + 1, 0 at the end. The file has lines of name, entity and type with
    tabs, or of triples: then the tail of the relation `relation` is the type of its head, and all
    other entities are of one type.
    """

    packaged: ClassVar[str] = "triples.tsv"

    width: int = 8
    relation: str = "is a"

    def entries(self, tokenizer: Any) -> Mapping[str, Sequence[int]]:
        found = [cells for _, cells in lines(self.path, (3,), "types")]
        kinds = {head: tail for head, relation, tail in found if relation == self.relation}
        if kinds:
            names = {name: name for head, _, tail in found for name in (head, tail)}
            kinds = {name: kinds.get(name, "") for name in names}
        else:
            names, kinds = (
                {name: entity for name, entity, _ in found},
                {entity: kind for _, entity, kind in found},
            )
        entity = {name: n for n, name in enumerate(sorted({*names.values()}), 1)}
        kind = {name: n for n, name in enumerate(sorted({*kinds.values()}), 1)}
        ids = tokenizer.encode_batch([f" {name}" for name in names])

        def fit(row):
            return [*(row[: self.width] + 1).tolist(), *[0] * (self.width - len(row))]

        pairs = zip(names.items(), ids, strict=True)
        return {
            name: [entity[one], kind[kinds[one]], *fit(row)]
            for (name, one), row in pairs
            if len(row) <= self.width
        }

    def example(self, number: int, vocab: Any) -> Sequence[int]:
        ids = [vocab.size // 3 + number % 50 + n for n in range(1 + number % 3)]
        return [1 + number, 1 + number % 4, *(i + 1 for i in ids), *[0] * (self.width - len(ids))]

    def other(self, entities: Array, kinds: Array, drawn: Array) -> tuple[Array, Array]:
        """Returns names [.., W] of other entities of the same types, uniform by `drawn` [..] in [0,
        1), and whether the entity is another one: a type may have a single entity."""
        rows = self.values[self.values[:, 3] > 0]
        rows = rows[np.unique(rows[:, 3], return_index=True)[1]][:, 3:]
        rows = rows[np.argsort(rows[:, 1], kind="stable")]
        count = np.bincount(rows[:, 1], minlength=rows[:, 1].max() + 1)
        start = np.concatenate([[0], np.cumsum(count)[:-1]])
        size = jnp.asarray(count)[kinds]
        picked = jnp.asarray(start)[kinds] + jnp.clip(
            (drawn * size).astype(jnp.int32), 0, jnp.maximum(size - 1, 0)
        )
        chosen = jnp.asarray(rows)[picked]
        return chosen[..., 2:], (chosen[..., 0] != entities) & (size > 0)
