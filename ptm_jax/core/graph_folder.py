"""A compiled graph as lines of cells, for lexicons (`ptm prepare --graph`; `data.graphs.compiled` writes the folder)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ptm_jax.core.errors import UserError
from ptm_jax.core.reading import broken, read_json


def is_graph(path: Path) -> bool:
    """Whether a path is the folder of a compiled graph. Raises UserError for another folder."""
    if not path.is_dir():
        return False
    manifest = path / "manifest.json"
    if not manifest.is_file() or not str(read_json(manifest, "the manifest").get("format", "")).startswith("graph-"):
        raise UserError(f"{path} is no compiled graph; give a file, or the --out of ptm prepare --graph")
    return True


def array(folder: Path, name: str) -> np.ndarray:
    try:
        return np.load(folder / f"{name}.npy", mmap_mode="r")
    except (OSError, ValueError, EOFError):
        raise broken(folder / f"{name}.npy", "is missing or damaged; compile the graph again") from None


def strings(folder: Path, name: str) -> list[str]:
    raw, ends = array(folder, name).tobytes(), array(folder, f"{name}-ends").tolist()
    return [raw[start:end].decode() for start, end in zip([0, *ends], ends, strict=False)]


def lists(folder: Path, name: str, ends: str) -> list[list]:
    items, stops = array(folder, name).tolist(), array(folder, f"{ends}-ends").tolist()
    return [items[start:stop] for start, stop in zip([0, *stops], stops, strict=False)]


def triples(folder: Path) -> Iterator[tuple[str, ...]]:
    """Yields the names of head, relation and tail of the training triples."""
    names, relations = strings(folder, "names"), strings(folder, "relation_names")
    for head, relation, tail in array(folder, "triples-train").tolist():
        if names[head] and names[tail]:
            yield names[head], relations[relation], names[tail]


def aliases(folder: Path) -> Iterator[tuple[str, ...]]:
    """Yields every alias with each of its entities and the prior."""
    entities = strings(folder, "entities")
    found = lists(folder, "alias_entities", "alias_entities"), lists(folder, "alias_priors", "alias_entities")
    for alias, some, priors in zip(strings(folder, "alias_texts"), *found, strict=True):
        yield from ((alias, entities[entity], str(prior)) for entity, prior in zip(some, priors, strict=True))


def types(folder: Path) -> Iterator[tuple[str, ...]]:
    """Yields the name of every entity, its identifier, and its first type."""
    names, kinds = strings(folder, "type_names"), lists(folder, "entity_types", "entity_types")
    for name, entity, some in zip(strings(folder, "names"), strings(folder, "entities"), kinds, strict=True):
        if name and some:
            yield name, entity, names[some[0]]


def texts(folder: Path) -> Iterator[tuple[str, ...]]:
    """Yields the name and the description of every entity that has one."""
    for name, text in zip(strings(folder, "names"), strings(folder, "descriptions"), strict=True):
        if name and text:
            yield name, text


def senses(folder: Path) -> Iterator[tuple[str, list[tuple[list[str], float]]]]:
    """Yields every alias with the types and the polarity of each of its entities, the likeliest first; 0 where the graph has
    no polarities."""
    names, kinds = strings(folder, "type_names"), lists(folder, "entity_types", "entity_types")
    file = folder / "value-polarity.npy"
    scores = np.nan_to_num(array(folder, "value-polarity")) if file.is_file() else np.zeros(len(kinds))
    for alias, some in zip(strings(folder, "alias_texts"), lists(folder, "alias_entities", "alias_entities"), strict=True):
        yield alias, [([names[kind] for kind in kinds[entity]], float(scores[entity])) for entity in some]


LINES = {"triples": triples, "aliases": aliases, "types": types, "texts": texts}
