"""A compiled graph (`knowledge.graphs.graph_store`) as lines of cells, for lexicons."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from ptm_jax.knowledge.english_words import FILE_PARTS, SUPERSENSES
from ptm_jax.knowledge.graphs.graph_store import GraphStore


def triples(graph: GraphStore) -> Iterator[tuple[str, ...]]:
    """Yields the names of head, relation and tail of the training triples."""
    names, relations = list(graph.names), list(graph.relation_names)
    for head, relation, tail in graph.triples().tolist():
        if names[head] and names[tail]:
            yield names[head], relations[relation], names[tail]


def aliases(graph: GraphStore) -> Iterator[tuple[str, ...]]:
    """Yields every alias with each of its entities and the prior."""
    entities = list(graph.entities)
    for alias, some, priors in zip(
        graph.alias_texts, graph.alias_entities, graph.alias_priors, strict=True
    ):
        yield from (
            (alias, entities[entity], str(prior))
            for entity, prior in zip(some.tolist(), priors.tolist(), strict=True)
        )


def types(graph: GraphStore) -> Iterator[tuple[str, ...]]:
    """Yields the name of every entity, its identifier, and its first type."""
    for name, entity, some in zip(graph.names, graph.entities, _types(graph), strict=True):
        if name and some:
            yield name, entity, some[0]


def texts(graph: GraphStore) -> Iterator[tuple[str, ...]]:
    """Yields the name and the description of every entity that has one."""
    for name, text in zip(graph.names, graph.descriptions, strict=True):
        if name and text:
            yield name, text


def lexical(graph: GraphStore) -> Iterator[tuple[str, ...]]:
    """Yields pairs of aliases that are synonyms or hypernyms, each once.

    Two aliases of one entity are synonyms; an alias of an entity and an alias of its hypernym are
    hypernyms.
    """
    texts, places = list(graph.alias_texts), list(graph.entity_aliases)
    words = [[texts[place] for place in some] for some in places]
    hypernym = (
        list(graph.relations).index("hypernym") if "hypernym" in list(graph.relations) else -1
    )
    triples = graph.triples()
    same = (
        (first, "synonym", second)
        for some in words
        for first, second in itertools.combinations(some, 2)
    )
    above = (
        (first, "hypernym", second)
        for head, _, tail in triples[triples[:, 1] == hypernym].tolist()
        for first, second in itertools.product(words[head], words[tail])
        if first != second
    )
    yield from dict.fromkeys(itertools.chain(same, above))


class Sense(NamedTuple):
    """A sense of a word.

    part      part of speech; "u": unknown
    number    its number among the senses of the word
    score     SentiWordNet's positive minus its negative score; 0: none
    kinds     types of the entity, such as its supersense
    """

    part: str
    number: int
    score: float
    kinds: list[str]
    gloss: str


def senses(graph: GraphStore) -> Iterator[tuple[str, list[Sense]]]:
    """Yields every alias with its senses, the likeliest first.

    Where the graph does not number senses, their number is their place.
    """
    kinds, glosses, identifiers = _types(graph), list(graph.descriptions), list(graph.entities)

    def value(name):
        known = name in graph.manifest["values"]
        return np.nan_to_num(graph.value(name)) if known else np.zeros(len(kinds))

    scores = (value("positive") - value("negative")).tolist()
    numbers = graph.alias_senses
    for place, (alias, entities) in enumerate(
        zip(graph.alias_texts, graph.alias_entities, strict=True)
    ):
        entities = entities.tolist()
        ranks = range(1, len(entities) + 1) if numbers is None else numbers[place].tolist()
        yield (
            alias,
            [
                Sense(_part(identifiers[e], kinds[e]), rank, scores[e], kinds[e], glosses[e])
                for e, rank in zip(entities, ranks, strict=True)
            ],
        )


def _part(identifier: str, kinds: Sequence[str]) -> str:
    """Returns the part of speech of a synset, by its lexicographer file or its identifier
    (OFFSET-POS)."""
    for kind in kinds:
        if kind in SUPERSENSES:
            return FILE_PARTS[kind.split(".")[0]]
    part = identifier.rpartition("-")[2].replace("s", "a")
    return part if part in FILE_PARTS.values() else "u"


def _types(graph: GraphStore) -> list[list[str]]:
    names = list(graph.type_names)
    return [[names[kind] for kind in some] for some in graph.entity_types]


LINES = {"triples": triples, "aliases": aliases, "types": types, "texts": texts, "lexical": lexical}
