"""Mentions of entities in text: the longest aliases of a graph, with the priors of their entities.

    linker = Linker.of(open_graph("wordnet"))
    linked = linker(["The dogs of war"])[0]       mentions by characters, candidates by falling prior
    linked.spans(offsets)                         the tokens of each mention, from a tokenizer's offsets

Matching is by whole words from left to right; a mention inside a longer one is none. `Trie` matches any sequences of
numbers, so that aliases in pieces of a tokenizer are found in rows of tokens too (`data.rows.entities`).
"""

from __future__ import annotations

import collections
import dataclasses
import re
from collections.abc import Iterable, Sequence

import numpy as np

from ptm_jax.core.errors import UserError
from ptm_jax.core.graph_store import GraphStore

TOGETHER = 1024
"""Texts that are matched at once."""
_WORD = re.compile(r"\w+|[^\w\s]")


@dataclasses.dataclass(frozen=True, eq=False)
class Trie:
    """A trie of sequences of numbers below `size`. Node 0 is the root, node n the end of edge n - 1.

    keys      [N] int64, sorted: node * size + number of every edge
    accepts   [N + 1] int32: the sequence that ends in a node, or -1
    """

    keys: np.ndarray
    accepts: np.ndarray
    size: int

    @classmethod
    def of(cls, sequences: Sequence[Sequence[int]], size: int) -> Trie:
        """Returns the trie; of several equal sequences the first counts, and an empty one is none."""
        lengths = np.fromiter(map(len, sequences), np.int64, len(sequences))
        flat = np.fromiter((x for s in sequences for x in s), np.int64, int(lengths.sum()))
        starts = np.concatenate([[0], np.cumsum(lengths)[:-1]]) if len(lengths) else lengths
        node, alive = np.zeros(len(lengths), np.int64), np.flatnonzero(lengths > 0)
        keys, accepts, count = [], [np.full(1, -1, np.int32)], 0
        for depth in range(int(lengths.max(initial=0))):
            found, place = np.unique(node[alive] * size + flat[starts[alive] + depth], return_inverse=True)
            node[alive] = count + 1 + place
            ends = np.full(len(found), -1, np.int32)
            over = alive[lengths[alive] == depth + 1][::-1]  # the first of equal ones is written last
            ends[node[over] - count - 1] = over
            keys.append(found)
            accepts.append(ends)
            count += len(found)
            alive = alive[lengths[alive] > depth + 1]
        joined = np.concatenate(keys) if keys else np.zeros(0, np.int64)
        return cls(joined, np.concatenate(accepts), size)

    def longest(
        self, numbers: np.ndarray, begins: np.ndarray, ends: np.ndarray, stops: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns (first, end, sequence) of the matches in `numbers` [T], none inside or across another, from the left.

        begins, ends   [T] bool: whether a match may begin at a place, and end behind it. A negative number matches nothing
        stops          [T] bool: whether no match goes on behind a place
        """
        at = np.flatnonzero(begins & (numbers >= 0))
        node, first = np.zeros(len(at), np.int64), at
        best, length = np.full(len(numbers), -1, np.int32), np.zeros(len(numbers), np.int64)
        depth = 0
        while len(at) and len(self.keys):
            wanted = node * self.size + numbers[at]
            place = np.minimum(np.searchsorted(self.keys, wanted), len(self.keys) - 1)
            there = (self.keys[place] == wanted) & (numbers[at] >= 0)
            at, first, node = at[there], first[there], place[there] + 1
            done = (self.accepts[node] >= 0) & ends[at]
            depth += 1
            best[first[done]], length[first[done]] = self.accepts[node[done]], depth
            more = at + 1 < len(numbers)
            more = more if stops is None else more & ~stops[at]
            at, first, node = at[more] + 1, first[more], node[more]
        kept, free = [], 0
        places = np.flatnonzero(best >= 0)
        for start, size in zip(places.tolist(), length[places].tolist(), strict=True):
            if start >= free:
                kept.append(start)
                free = start + size
        kept = np.array(kept, np.int64)
        return kept, kept + length[kept], best[kept]


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
        """Returns (first, end) of the tokens of every mention, for the tokens' characters [start, end) in the text. A
        special token has (0, 0). None: the mention's tokens are not all there (the row was cut), or none is."""
        pairs = np.asarray(offsets, np.int64).reshape(-1, 2)
        real = np.flatnonzero(pairs[:, 1] > pairs[:, 0])
        if not len(real):
            return [None] * len(self.mentions)
        starts, ends = pairs[real].T
        found = []
        for mention in self.mentions:
            first = int(np.searchsorted(ends, mention.start, "right"))
            last = int(np.searchsorted(starts, mention.end, "left"))
            whole = first < last and starts[first] <= mention.start and ends[last - 1] >= mention.end
            found.append((int(real[first]), int(real[last - 1]) + 1) if whole else None)
        return found


class Linker:
    """Finds the aliases of a graph in texts. `counts` grows with every text: texts, words, mentions, linked (mentions of
    an entity, after `least`), ambiguous (of several), and cut (`aligned`: mentions whose tokens are not in the row)."""

    def __init__(self, trie: Trie, words: dict[str, int], candidates: list[tuple], lowercase: bool):
        self._trie, self._words, self._candidates, self._lowercase = trie, words, candidates, lowercase
        self.counts: collections.Counter[str] = collections.Counter()

    @classmethod
    def of(cls, graph: GraphStore, lowercase: bool = True, most: int = 30, least: float = 0.0, shortest: int = 2) -> Linker:
        """Returns the linker of a graph.

        lowercase   whether case is ignored; the candidates of aliases that differ by case are joined
        most        candidates of a mention
        least       least prior of a candidate
        shortest    least characters of an alias: shorter ones match too much

        Raises UserError for a graph without aliases."""
        if not len(graph.alias_texts):
            raise UserError(
                f"{graph.dir} has no aliases; compile it with names of its entities (entity2text.txt, aliases.txt)"
            )
        spelled = (text.lower() if lowercase else text for text in graph.alias_texts)
        groups: dict[str, list[int]] = {}
        for place, text in enumerate(spelled):
            if len(text) >= shortest:
                groups.setdefault(" ".join(_WORD.findall(text)), []).append(place)
        words: dict[str, int] = {}
        sequences = [[words.setdefault(word, len(words)) for word in text.split(" ")] for text in groups]
        candidates = [_candidates(graph, places, most, least) for places in groups.values()]
        return cls(Trie.of(sequences, max(1, len(words))), words, candidates, lowercase)

    def __call__(self, texts: Iterable[str]) -> list[Linked]:
        """Returns the mentions of every text."""
        texts = list(texts)
        return [linked for start in range(0, len(texts), TOGETHER) for linked in self._some(texts[start : start + TOGETHER])]

    def _some(self, texts: list[str]) -> list[Linked]:
        """The mentions of some texts, matched at once."""
        found = [list(_WORD.finditer(self._folded(text))) for text in texts]
        words = [word for each in found for word in each]
        numbers = np.fromiter((self._words.get(word.group(), -1) for word in words), np.int64, len(words))
        every, stops, counts = np.ones(len(words), bool), np.zeros(len(words), bool), np.array([len(each) for each in found])
        closed = np.cumsum(counts)
        stops[closed[counts > 0] - 1] = True
        firsts, ends, aliases = self._trie.longest(numbers, every, every, stops)
        mentions: list[list[Mention]] = [[] for _ in texts]
        owner = np.searchsorted(closed, firsts, "right").tolist()
        for text, first, end, alias in zip(owner, firsts.tolist(), ends.tolist(), aliases.tolist(), strict=True):
            entities, priors = self._candidates[alias]
            if entities:
                mentions[text].append(Mention(words[first].start(), words[end - 1].end(), entities, priors))
                self.counts["ambiguous"] += len(entities) > 1
        linked = sum(map(len, mentions))
        self.counts.update(texts=len(texts), words=len(words), mentions=len(firsts), linked=linked)
        return [Linked(text, tuple(each)) for text, each in zip(texts, mentions, strict=True)]

    def _folded(self, text: str) -> str:
        """The text in lower case, with as many characters; a few letters would become two."""
        folded = text.lower() if self._lowercase else text
        return folded if len(folded) == len(text) else "".join(c if len(c.lower()) > 1 else c.lower() for c in text)

    def aligned(self, linked: Linked, offsets: Sequence[tuple[int, int]]) -> list[tuple[tuple[int, int], Mention]]:
        """Returns (tokens, mention) of the mentions whose tokens are all there; the others are counted as cut."""
        found = [(span, m) for span, m in zip(linked.spans(offsets), linked.mentions, strict=True) if span is not None]
        self.counts["cut"] += len(linked.mentions) - len(found)
        return found


def _candidates(graph: GraphStore, places: list[int], most: int, least: float) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """The entities of some aliases by falling prior; aliases that differ by case count alike."""
    joined: dict[int, float] = {}
    for place in places:
        for entity, prior in zip(graph.alias_entities[place].tolist(), graph.alias_priors[place].tolist(), strict=True):
            joined[entity] = joined.get(entity, 0.0) + prior / len(places)
    best = sorted(((-prior, entity) for entity, prior in joined.items() if prior >= least))[:most]
    return tuple(entity for _, entity in best), tuple(-prior for prior, _ in best)
