"""Compiles sources of graphs: numbers identifiers and counts faults with their file and line.

dangling            a triple, text, alias or type of an entity that the source does not declare; it
                    is left out
cycle               entities that are above one another in a hierarchy (hypernyms, isa); kept
duplicate triple    the same triple again in its split; left out
duplicate alias     the same alias of the same entity again; left out
empty relation      a declared relation without triples; kept
crowded alias       an alias of more than `per_alias` entities; the entities with the highest priors
                    are kept
"""

from __future__ import annotations

import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ptm_jax.core.errors import UserError
from ptm_jax.knowledge.graphs.graph_store import SPLITS, Lists, TextArray

HIERARCHIES = {
    "_hypernym",
    "hypernym",
    "_instance_hypernym",
    "instance_hypernym",
    "isa",
    "is_a",
    "/r/IsA",
    "PAR",
    "P279",
}
"""Relations that have no cycle: of WordNet, WN18RR, UMLS, ConceptNet and Wikidata."""
MOST = 100
"""Entities of an alias at most."""
Place = tuple[Path, int]


class Table:
    """Rows of numbers with the file and the line of each."""

    def __init__(self, columns: int):
        self.columns = [array.array("q") for _ in range(columns)]
        self.files, self.lines = array.array("i"), array.array("q")

    def add(self, file: int, line: int, *row: int) -> None:
        for column, value in zip(self.columns, row, strict=True):
            column.append(value)
        self.files.append(file)
        self.lines.append(line)

    def rows(self) -> np.ndarray:
        """Returns [N, columns] int64."""
        return np.stack([np.frombuffer(column, np.int64) for column in self.columns], -1)

    def place(self, row: int) -> tuple[int, int]:
        return self.files[row], self.lines[row]


class Builder:
    """Collects the entities, triples, texts and aliases of sources.

    `place` is (file, line) in all functions.

    closed    whether the current source lists its entities and declares them by `entity`; otherwise
              every entity that it names is declared
    repeats   whether a triple that is read twice counts as two
    """

    closed = False
    repeats = False

    def __init__(self):
        self.entities: dict[str, int] = {}
        self.relations: dict[str, int] = {}
        self.aliases: dict[str, int] = {}
        self.types: dict[str, int] = {}
        self.names: dict[int, str] = {}
        self.texts: dict[int, str] = {}
        self.relation_names: dict[int, str] = {}
        self.values: dict[str, dict[int, float]] = {}
        self._declared: set[int] = set()
        self._triples, self._aliases, self._types, self._texts = (
            Table(4),
            Table(3),
            Table(2),
            Table(1),
        )
        self._weights, self._senses = array.array("d"), array.array("q")
        self._files: dict[Path, int] = {}
        self._relation_places: dict[int, tuple[int, int]] = {}
        self.faults: dict[str, dict[str, Any]] = {}

    def entity(self, name: str, place: Place, text: str | None = None) -> int:
        """Declares an entity, with its name."""
        number = self._id(name)
        self._declared.add(number)
        if text:
            self.names.setdefault(number, text)
        return number

    def relation(self, name: str, place: Place, text: str | None = None) -> int:
        """Declares a relation, with its name."""
        number = self.relations.setdefault(name, len(self.relations))
        self._relation_places.setdefault(number, self._at(place))
        if text:
            self.relation_names.setdefault(number, text)
        return number

    def triple(
        self, head: str, relation: str, tail: str, place: Place, split: str = "train"
    ) -> None:
        link = self.relations.setdefault(relation, len(self.relations))
        self._triples.add(
            *self._at(place), self._id(head), link, self._id(tail), SPLITS.index(split)
        )

    def describe(self, entity: str, text: str, place: Place) -> None:
        """Gives the description of an entity; the first counts."""
        number = self._id(entity)
        self._texts.add(*self._at(place), number)
        self.texts.setdefault(number, text)

    def name(self, entity: str, text: str) -> None:
        """Gives the name of an entity, which need not be an alias; the first counts."""
        self.names.setdefault(self._id(entity), text)

    def alias(
        self, entity: str, text: str, place: Place, weight: float = 1.0, *, sense: int = 0
    ) -> None:
        """Adds an alias of an entity.

        weight    number of times that the alias was seen for this entity
        sense     number of this sense among the alias's senses; 0: unknown
        """
        number = self._id(entity)
        text = " ".join(text.split())
        self.names.setdefault(number, text)
        self._aliases.add(
            *self._at(place),
            self.aliases.setdefault(text, len(self.aliases)),
            number,
            len(self._weights),
        )
        self._weights.append(weight)
        self._senses.append(sense)

    def type(self, entity: str, name: str, place: Place) -> None:
        self._types.add(
            *self._at(place), self._id(entity), self.types.setdefault(name, len(self.types))
        )

    def value(self, entity: str, name: str, number: float) -> None:
        self.values.setdefault(name, {})[self._id(entity)] = number

    def _id(self, name: str) -> int:
        number = self.entities.setdefault(name, len(self.entities))
        if not self.closed:
            self._declared.add(number)
        return number

    def _at(self, place: Place) -> tuple[int, int]:
        return self._files.setdefault(place[0], len(self._files)), place[1]

    def fault(self, kind: str, count: int, place: tuple[int, int] | Place, what: str) -> None:
        """Counts a fault; its first place is kept."""
        if count:
            file, line = place
            file = list(self._files)[file] if isinstance(file, int) else file
            fault = self.faults.setdefault(
                kind, {"count": 0, "first": f"{file}: line {line:,}: {what}"}
            )
            fault["count"] += int(count)

    def arrays(self, per_alias: int = MOST) -> tuple[dict[str, np.ndarray], dict[str, int]]:
        """Returns ({file name without its ending: array}, counts).

        Raises UserError without triples, aliases and texts.
        """
        declared = np.array(sorted(self._declared), np.int64)
        number = np.full(len(self.entities), -1, np.int64)
        number[declared] = np.arange(len(declared))
        identifiers = (
            np.array(list(self.entities), object)[declared].tolist() if len(declared) else []
        )
        out = _packed("entities", identifiers) | _packed("relations", list(self.relations))
        out |= _packed(
            "relation_names",
            [self.relation_names.get(i, _plain(name)) for name, i in self.relations.items()],
        )
        out |= _packed(
            "names",
            [
                self.names.get(i, _plain(x))
                for i, x in zip(declared.tolist(), identifiers, strict=True)
            ],
        )
        out |= _packed("descriptions", [self.texts.get(i, "") for i in declared.tolist()])
        triples = self._checked_triples(number)
        out |= {
            f"triples-{split}": triples[triples[:, 3] == i, :3].astype(np.int32)
            for i, split in enumerate(SPLITS)
        }
        out = {
            name: value
            for name, value in out.items()
            if len(value) or name not in ("triples-valid", "triples-test")
        }
        out |= self._alias_arrays(number, per_alias) | self._type_arrays(number)
        for name, by_entity in sorted(self.values.items()):
            column = np.full(len(declared), np.nan, np.float32)
            ids, numbers = number[list(by_entity)], np.array(list(by_entity.values()), np.float32)
            column[ids[ids >= 0]] = numbers[ids >= 0]
            out[f"value-{name}"] = column
        counts = {
            "entities": len(declared),
            "relations": len(self.relations),
            "triples": len(triples),
            "descriptions": sum(bool(self.texts.get(i)) for i in declared.tolist()),
            "aliases": len(out["alias_texts-ends"]),
            "types": len(self.types),
        }
        if not counts["entities"]:
            raise UserError(
                "the sources of the graph name no entity; expected triples, aliases or descriptions"
            )
        return out, counts

    def _whole(
        self, table: Table, number: np.ndarray, columns: Sequence[int], what: str
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns the rows [N, C] with new numbers of entities, without dangling ones, and their
        places in the table."""
        rows = table.rows()
        if not len(rows):
            return rows, np.zeros(0, np.int64)
        unknown = (number[rows[:, columns]] < 0).any(1)
        if unknown.any():
            first = int(unknown.argmax())
            names = [
                name
                for name, i in self.entities.items()
                if i in rows[first, columns] and number[i] < 0
            ]
            self.fault(
                "dangling",
                unknown.sum(),
                table.place(first),
                f"{what} of {names[0]!r}, which is not declared",
            )
        rows[:, columns] = number[rows[:, columns]]
        return rows[~unknown], np.flatnonzero(~unknown)

    def _checked_triples(self, number: np.ndarray) -> np.ndarray:
        rows, places = self._whole(self._triples, number, (0, 2), "a triple")
        sizes = (len(self.entities), len(self.relations) + 1, len(self.entities), len(SPLITS))
        keys = np.ravel_multi_index(tuple(rows.T), sizes) if len(rows) else np.zeros(0, np.int64)
        _, first = np.unique(keys, return_index=True)
        if self.repeats:
            first = np.arange(len(rows))
        again = np.setdiff1d(np.arange(len(rows)), first)
        if len(again):
            self.fault(
                "duplicate triple",
                len(again),
                self._triples.place(places[again[0]]),
                "the triple stands above",
            )
        first.sort()
        rows, places = rows[first], places[first]
        empty = np.setdiff1d(np.array(list(self._relation_places), np.int64), rows[:, 1])
        if len(empty):
            name = list(self.relations)[empty[0]]
            self.fault(
                "empty relation",
                len(empty),
                self._relation_places[int(empty[0])],
                f"{name!r} has no triples",
            )
        for name in HIERARCHIES & set(self.relations):
            self._cycles(name, rows, places, int((number >= 0).sum()))
        return rows

    def _cycles(self, relation: str, rows: np.ndarray, places: np.ndarray, entities: int) -> None:
        import scipy.sparse.csgraph  # costs a fifth of a second

        mine = np.flatnonzero(rows[:, 1] == self.relations[relation])
        head, tail = rows[mine, 0], rows[mine, 2]
        links = scipy.sparse.coo_array(
            (np.ones(len(mine), np.int8), (head, tail)), shape=(entities, entities)
        )
        _, part = scipy.sparse.csgraph.connected_components(
            links.tocsr(), directed=True, connection="strong"
        )
        inside = (
            part[head] == part[tail]
        )  # edges of a strong component of several entities, and loops
        if inside.any():
            count = len(np.unique(part[head[inside]]))
            self.fault(
                "cycle",
                count,
                self._triples.place(places[mine[inside.argmax()]]),
                f"{relation!r} leads back to its head",
            )

    def _alias_arrays(self, number: np.ndarray, limit: int) -> dict[str, np.ndarray]:
        rows, places = self._whole(self._aliases, number, (1,), "an alias")
        texts = sorted(self.aliases)
        rank = np.empty(len(texts), np.int64)
        rank[[self.aliases[text] for text in texts]] = np.arange(len(texts))
        alias, entity = (
            (rank[rows[:, 0]], rows[:, 1]) if len(rows) else (np.zeros(0, np.int64),) * 2
        )
        weights = np.frombuffer(self._weights, np.float64)[rows[:, 2]] if len(rows) else np.zeros(0)
        senses = np.frombuffer(self._senses, np.int64)[rows[:, 2]] if len(rows) else np.zeros(0)
        keys = alias * max(len(number), 1) + entity
        _, first = np.unique(keys, return_index=True)
        again = np.setdiff1d(np.arange(len(keys)), first)
        if len(again):
            self.fault(
                "duplicate alias",
                len(again),
                self._aliases.place(places[again[0]]),
                f"{texts[alias[again[0]]]!r} again",
            )
        first.sort()
        alias, entity, weights, places = alias[first], entity[first], weights[first], places[first]
        senses = senses[first]
        priors = weights / np.maximum(np.bincount(alias, weights, len(texts))[alias], 1e-300)
        order = np.lexsort((-priors, alias))
        alias, entity, priors, places = alias[order], entity[order], priors[order], places[order]
        senses = senses[order]
        place = np.arange(len(alias)) - np.searchsorted(alias, alias)
        if (place == limit).any():
            at = int((place == limit).argmax())
            total = int((alias == alias[at]).sum())
            what = (
                f"{texts[alias[at]]!r} names {total:,} entities; the {limit} of the "
                "highest priors stay"
            )
            self.fault(
                "crowded alias", (place == limit).sum(), self._aliases.place(places[at]), what
            )
        likely = place < limit
        used, alias = np.unique(alias[likely], return_inverse=True)
        lists = Lists.of(alias, entity[likely].astype(np.int32), len(used))
        out = _packed("alias_texts", [texts[i] for i in used.tolist()])
        return out | {
            "alias_entities": lists.items,
            "alias_entities-ends": lists.ends,
            "alias_priors": priors[likely].astype(np.float32),
            **({"alias_senses": senses[likely].astype(np.int32)} if senses.any() else {}),
        }

    def _type_arrays(self, number: np.ndarray) -> dict[str, np.ndarray]:
        rows, _ = self._whole(self._types, number, (0,), "a type")
        rows = np.unique(rows, axis=0) if len(rows) else np.zeros((0, 2), np.int64)
        lists = Lists.of(rows[:, 0], rows[:, 1].astype(np.int32), int((number >= 0).sum()))
        return _packed("type_names", list(self.types)) | {
            "entity_types": lists.items,
            "entity_types-ends": lists.ends,
        }


def _packed(name: str, texts: Sequence[str]) -> dict[str, np.ndarray]:
    strings = TextArray.of(texts)
    return {name: strings.data, f"{name}-ends": strings.ends}


def _plain(identifier: str) -> str:
    return identifier.replace("_", " ").strip()
