"""Mentions of entities in text: the longest aliases of a graph, with the priors of their entities.

    linker = Linker.of(open_graph("wordnet"))
    linked = linker(["The dogs of war"])[0]       mentions by characters, candidates by falling
                                                  prior
    linked.spans(offsets)                         the tokens of each mention, from a tokenizer's
                                                  offsets

Matching is by whole words from left to right; a mention inside a longer one is none.
"""

from __future__ import annotations

import collections
import dataclasses
import re
from collections.abc import Iterable, Sequence

import numpy as np

from ptm_jax.core.errors import UserError
from ptm_jax.knowledge.graphs.graph_store import GraphStore
from ptm_jax.knowledge.tries import Trie

TOGETHER = 1024
"""Texts that are matched at once."""
_WORD = re.compile(r"\w+|[^\w\s]")


@dataclasses.dataclass(frozen=True)
class Mention:
    """Characters [start, end) of a text, and its entities by falling prior."""

    start: int
    end: int
    entities: tuple[int, ...]
    priors: tuple[float, ...]


@dataclasses.dataclass(frozen=True)
class Linked:
    """The mentions of a text, from left to right."""

    text: str
    mentions: tuple[Mention, ...]

    def spans(self, offsets: Sequence[tuple[int, int]]) -> list[tuple[int, int] | None]:
        """Returns (first, end) of the tokens of every mention, for the tokens' characters [start,
        end) in the text. A special token has (0, 0). None: the mention's tokens are not all there
        (the row was cut), or none is."""
        pairs = np.asarray(offsets, np.int64).reshape(-1, 2)
        real = np.flatnonzero(pairs[:, 1] > pairs[:, 0])
        if not len(real):
            return [None] * len(self.mentions)
        starts, ends = pairs[real].T
        spans = []
        for mention in self.mentions:
            first = int(np.searchsorted(ends, mention.start, "right"))
            last = int(np.searchsorted(starts, mention.end, "left"))
            complete = (
                first < last and starts[first] <= mention.start and ends[last - 1] >= mention.end
            )
            spans.append((int(real[first]), int(real[last - 1]) + 1) if complete else None)
        return spans


class Linker:
    """Finds the aliases of a graph in texts.
    `counts` grows with every text: texts, words, mentions, linked (mentions of an entity, after
    `least`), ambiguous (of several), and cut (`aligned`: mentions whose tokens are not in the
    row)."""

    def __init__(self, trie: Trie, words: dict[str, int], candidates: list[tuple], lowercase: bool):
        self._trie, self._words, self._candidates, self._lowercase = (
            trie,
            words,
            candidates,
            lowercase,
        )
        self.counts: collections.Counter[str] = collections.Counter()

    @classmethod
    def of(
        cls,
        graph: GraphStore,
        lowercase: bool = True,
        most: int = 30,
        least: float = 0.0,
        shortest: int = 2,
    ) -> Linker:
        """Returns the linker of a graph.

        lowercase   whether case is ignored; the candidates of aliases that differ by case are
                    joined
        most        candidates of a mention
        least       least prior of a candidate
        shortest    least characters of an alias: shorter ones match too much

        Raises UserError for a graph without aliases."""
        if not len(graph.alias_texts):
            raise UserError(
                f"{graph.dir} has no aliases; compile it with names of its entities "
                "(entity2text.txt, aliases.txt)"
            )
        spelled = (text.lower() if lowercase else text for text in graph.alias_texts)
        groups: dict[str, list[int]] = {}
        for place, text in enumerate(spelled):
            if len(text) >= shortest:
                groups.setdefault(" ".join(_WORD.findall(text)), []).append(place)
        words: dict[str, int] = {}
        sequences = [
            [words.setdefault(word, len(words)) for word in text.split(" ")] for text in groups
        ]
        candidates = [_candidates(graph, places, most, least) for places in groups.values()]
        return cls(Trie.of(sequences, max(1, len(words))), words, candidates, lowercase)

    def __call__(self, texts: Iterable[str]) -> list[Linked]:
        """Returns the mentions of every text."""
        texts = list(texts)
        return [
            linked
            for start in range(0, len(texts), TOGETHER)
            for linked in self._some(texts[start : start + TOGETHER])
        ]

    def _some(self, texts: list[str]) -> list[Linked]:
        """The mentions of some texts, matched at once."""
        matches = [list(_WORD.finditer(self._folded(text))) for text in texts]
        words = [word for each in matches for word in each]
        numbers = np.fromiter(
            (self._words.get(word.group(), -1) for word in words), np.int64, len(words)
        )
        every, stops, counts = (
            np.ones(len(words), bool),
            np.zeros(len(words), bool),
            np.array([len(each) for each in matches]),
        )
        closed = np.cumsum(counts)
        stops[closed[counts > 0] - 1] = True
        firsts, ends, aliases = self._trie.longest(numbers, every, every, stops)
        mentions: list[list[Mention]] = [[] for _ in texts]
        owner = np.searchsorted(closed, firsts, "right").tolist()
        for text, first, end, alias in zip(
            owner, firsts.tolist(), ends.tolist(), aliases.tolist(), strict=True
        ):
            entities, priors = self._candidates[alias]
            if entities:
                mentions[text].append(
                    Mention(words[first].start(), words[end - 1].end(), entities, priors)
                )
                self.counts["ambiguous"] += len(entities) > 1
        linked = sum(map(len, mentions))
        self.counts.update(texts=len(texts), words=len(words), mentions=len(firsts), linked=linked)
        return [Linked(text, tuple(each)) for text, each in zip(texts, mentions, strict=True)]

    def _folded(self, text: str) -> str:
        """The text in lower case, with as many characters; a few letters would become two."""
        folded = text.lower() if self._lowercase else text
        return (
            folded
            if len(folded) == len(text)
            else "".join(c if len(c.lower()) > 1 else c.lower() for c in text)
        )

    def aligned(
        self, linked: Linked, offsets: Sequence[tuple[int, int]]
    ) -> list[tuple[tuple[int, int], Mention]]:
        """Returns (tokens, mention) of the mentions whose tokens are all there.
        The others are counted as cut."""
        mentions = [
            (span, m)
            for span, m in zip(linked.spans(offsets), linked.mentions, strict=True)
            if span is not None
        ]
        self.counts["cut"] += len(linked.mentions) - len(mentions)
        return mentions


def _candidates(
    graph: GraphStore, places: list[int], limit: int, least: float
) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """The entities of some aliases by falling prior; aliases that differ by case count alike."""
    joined: dict[int, float] = {}
    for place in places:
        for entity, prior in zip(
            graph.alias_entities[place].tolist(), graph.alias_priors[place].tolist(), strict=True
        ):
            joined[entity] = joined.get(entity, 0.0) + prior / len(places)
    best = sorted(((-prior, entity) for entity, prior in joined.items() if prior >= least))[:limit]
    return tuple(entity for _, entity in best), tuple(-prior for prior, _ in best)
