"""A compiled graph (`knowledge.graphs.graph_store`) as lines of cells, for lexicons."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ptm_jax.knowledge.graphs.graph_store import GraphStore, open_graph


def is_graph(path: Path) -> bool:
    """Whether a path is the folder of a compiled graph. Raises UserError for another folder."""
    if found := path.is_dir():
        open_graph(path)
    return found


def triples(folder: Path) -> Iterator[tuple[str, ...]]:
    """Yields the names of head, relation and tail of the training triples."""
    graph = open_graph(folder)
    names, relations = list(graph.names), list(graph.relation_names)
    for head, relation, tail in graph.triples().tolist():
        if names[head] and names[tail]:
            yield names[head], relations[relation], names[tail]


def aliases(folder: Path) -> Iterator[tuple[str, ...]]:
    """Yields every alias with each of its entities and the prior."""
    graph = open_graph(folder)
    entities = list(graph.entities)
    for alias, some, priors in zip(
        graph.alias_texts, graph.alias_entities, graph.alias_priors, strict=True
    ):
        yield from (
            (alias, entities[entity], str(prior))
            for entity, prior in zip(some.tolist(), priors.tolist(), strict=True)
        )


def types(folder: Path) -> Iterator[tuple[str, ...]]:
    """Yields the name of every entity, its identifier, and its first type."""
    graph = open_graph(folder)
    for name, entity, some in zip(graph.names, graph.entities, _types(graph), strict=True):
        if name and some:
            yield name, entity, some[0]


def texts(folder: Path) -> Iterator[tuple[str, ...]]:
    """Yields the name and the description of every entity that has one."""
    graph = open_graph(folder)
    for name, text in zip(graph.names, graph.descriptions, strict=True):
        if name and text:
            yield name, text


def lexical(folder: Path) -> Iterator[tuple[str, ...]]:
    """Yields every pair of aliases of one entity as synonyms, and those of an entity and its
    hypernym as hypernyms, once."""
    graph = open_graph(folder)
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


def senses(folder: Path) -> Iterator[tuple[str, list[tuple[list[str], float, str]]]]:
    """Yields every alias with the types, the score and the description of each of its entities, the
    likeliest first. The score is SentiWordNet's positive less its negative one, 0 where the graph
    has none."""
    graph = open_graph(folder)
    known, texts = _types(graph), list(graph.descriptions)

    def value(name):
        return (
            np.nan_to_num(graph.value(name))
            if name in graph.manifest["values"]
            else np.zeros(len(known))
        )

    scores = value("positive") - value("negative")
    for alias, some in zip(graph.alias_texts, graph.alias_entities, strict=True):
        yield alias, [(known[entity], float(scores[entity]), texts[entity]) for entity in some]


def _types(graph: GraphStore) -> list[list[str]]:
    names = list(graph.type_names)
    return [[names[kind] for kind in some] for some in graph.entity_types]


LINES = {"triples": triples, "aliases": aliases, "types": types, "texts": texts, "lexical": lexical}
