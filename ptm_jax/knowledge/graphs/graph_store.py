"""A compiled graph on disk: memory-mapped arrays, and a manifest with their hashes.

`compiling.compile_graph` writes it.

manifest.json            format, sources, counts, splits, values, faults, hashes of the arrays, and
                         the manifest's own digest
triples-SPLIT.npy        [N, 3] int32: head, relation, tail. Splits: train; valid and test if the
                         sources have them
entities, relations      identifiers, as `TextArray`; an entity's id is its index
names, descriptions      a text for every entity; "": none
relation_names           a text for every relation
alias_texts              the distinct aliases, as `TextArray`
alias_entities           the entities of every alias, as `Lists`
alias_priors             the prior of each of these entities
alias_senses             the sense number of each of these entities, if the sources number senses
type_names               names of types
entity_types             the types of every entity
value-NAME.npy           [E] float32: a number for every entity, such as the polarity of a sense;
                         NaN: none
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ptm_jax.core.errors import UserError, unknown
from ptm_jax.core.reading import broken, read_json

FORMAT = "graph-1"
MANIFEST = "manifest.json"
SPLITS = ("train", "valid", "test")


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class TextArray(Sequence[str]):
    """Texts in one array.

    data   [bytes] uint8: the texts in UTF-8, one after another
    ends   [N] int64: where each text ends
    """

    data: np.ndarray
    ends: np.ndarray

    @classmethod
    def of(cls, texts: Sequence[str]) -> TextArray:
        """Returns the value of a sequence of texts."""
        encoded = [text.encode() for text in texts]
        ends = np.cumsum(np.fromiter(map(len, encoded), np.int64, len(encoded)), dtype=np.int64)
        return cls(np.frombuffer(b"".join(encoded), np.uint8), ends)

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, place: int) -> str:
        place = range(len(self.ends))[place]
        return self.data[self.ends[place - 1] if place else 0 : self.ends[place]].tobytes().decode()

    def __iter__(self) -> Iterator[str]:
        raw, start = self.data.tobytes(), 0
        for end in self.ends.tolist():
            yield raw[start:end].decode()
            start = end

    @functools.cached_property
    def places(self) -> dict[str, int]:
        """{text: its place}; of several equal texts the last."""
        return {text: place for place, text in enumerate(self)}


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Lists(Sequence[np.ndarray]):
    """Lists of numbers in one array: list i is `items[ends[i - 1] : ends[i]]`."""

    items: np.ndarray
    ends: np.ndarray

    @classmethod
    def of(cls, keys: np.ndarray, items: np.ndarray, count: int) -> Lists:
        """Returns `count` lists of the items of each key. `keys` are sorted."""
        return cls(items, np.searchsorted(keys, np.arange(count), side="right").astype(np.int64))

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, place: int) -> np.ndarray:
        place = range(len(self.ends))[place]
        return self.items[self.ends[place - 1] if place else 0 : self.ends[place]]

    def __iter__(self) -> Iterator[np.ndarray]:
        items, start = np.asarray(self.items), 0
        for end in self.ends.tolist():
            yield items[start:end]
            start = end


def _strings(name: str) -> functools.cached_property:
    return functools.cached_property(
        lambda graph: TextArray(graph.array(name), graph.array(f"{name}-ends"))
    )


def _lists(name: str, ends: str) -> functools.cached_property:
    return functools.cached_property(
        lambda graph: Lists(graph.array(name), graph.array(f"{ends}-ends"))
    )


@dataclasses.dataclass(frozen=True, repr=False)
class GraphStore:
    """A compiled graph. Equal digests mean equal contents.

    entities, relations      `TextArray`: identifiers
    names, descriptions      `TextArray`, [E]
    relation_names           `TextArray`, [R]
    alias_texts              `TextArray`, [A], sorted
    alias_entities           `Lists`, [A]: the entities of an alias by falling prior
    alias_priors             their priors, which sum to 1 unless entities were cut
    type_names               `TextArray`
    entity_types             `Lists`, [E]
    """

    dir: Path
    manifest: dict[str, Any]

    entities, relations = _strings("entities"), _strings("relations")
    names, descriptions, relation_names = (
        _strings("names"),
        _strings("descriptions"),
        _strings("relation_names"),
    )
    alias_texts, type_names = _strings("alias_texts"), _strings("type_names")
    alias_entities = _lists("alias_entities", "alias_entities")
    alias_priors = _lists("alias_priors", "alias_entities")
    entity_types = _lists("entity_types", "entity_types")

    def __repr__(self) -> str:
        return f"GraphStore {str(self.dir)!r}: " + ", ".join(
            f"{n:,} {name}" for name, n in self.counts.items()
        )

    @property
    def counts(self) -> dict[str, int]:
        """Entities, relations, triples, descriptions, aliases, types."""
        return self.manifest["counts"]

    @property
    def digest(self) -> str:
        """The hash of the manifest, which has the hashes of all arrays."""
        return self.manifest["digest"]

    def triples(self, split: str = "train") -> np.ndarray:
        """Returns [N, 3] int32 of a split; none where the sources lack it.

        Raises UserError for another name.
        """
        if split not in SPLITS:
            raise unknown("split", split, SPLITS)
        name = f"triples-{split}"
        return (
            self.array(name)
            if f"{name}.npy" in self.manifest["arrays"]
            else np.zeros((0, 3), np.int32)
        )

    @property
    def known(self) -> np.ndarray:
        """[N, 3] int32: the triples of all splits."""
        return np.concatenate([self.triples(split) for split in SPLITS])

    @functools.cached_property
    def alias_senses(self) -> Lists | None:
        """[A] `Lists` of the numbers of senses, in the order of `alias_entities`; None where the
        sources have none."""
        if "alias_senses.npy" not in self.manifest["arrays"]:
            return None
        return Lists(self.array("alias_senses"), self.alias_entities.ends)

    def value(self, name: str) -> np.ndarray:
        """Returns [E] float32 of a number of entities, NaN for none.

        Raises UserError for a name that it lacks.
        """
        if name not in self.manifest["values"]:
            raise unknown("value of entities", name, self.manifest["values"])
        return self.array(f"value-{name}")

    def entity(self, name: str) -> int:
        """Returns the id of an identifier. Raises UserError where it is unknown."""
        if (place := self.entities.places.get(name)) is None:
            raise UserError(
                f"{self.dir} has no entity {name!r}; give an identifier of its sources, as "
                f"{self.entities[0]!r}"
            )
        return place

    @functools.cached_property
    def entity_aliases(self) -> Lists:
        """[E] `Lists` of the places in `alias_texts` of the aliases of each entity."""
        counts = np.diff(self.alias_entities.ends, prepend=0)
        aliases = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
        order = np.argsort(self.alias_entities.items, kind="stable")
        return Lists.of(self.alias_entities.items[order], aliases[order], len(self.entities))

    @functools.cached_property
    def outgoing(self) -> Lists:
        """[E] `Lists` of the places in `triples("train")` of the triples of each head."""
        heads = self.triples()[:, 0]
        order = np.argsort(heads, kind="stable").astype(np.int32)
        return Lists.of(heads[order], order, len(self.entities))

    def checked(self) -> GraphStore:
        """Returns itself if all arrays have their hashes.

        Reads everything; raises UserError for the first that does not.
        """
        for name, expected in self.manifest["arrays"].items():
            if hashed(self.dir / name) != expected:
                raise broken(
                    self.dir / name, "was changed after it was written; compile the graph again"
                )
        return self

    def array(self, name: str) -> np.ndarray:
        """Returns an array of the folder, memory-mapped.

        Raises UserError where it is missing or damaged.
        """
        path = self.dir / f"{name}.npy"
        try:
            return np.load(path, mmap_mode="r")
        except (OSError, ValueError, EOFError):
            raise broken(path, "is missing or damaged; compile the graph again") from None


def hashed(path: Path) -> str:
    """Returns the sha256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest(manifest: dict[str, Any]) -> str:
    """Returns the hash of a manifest without its own digest, and without the places of sources."""
    body = {
        name: value
        for name, value in manifest.items()
        if name not in ("digest", "sources", "faults")
    }
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def open_graph(folder: str | Path, expected: str | None = None) -> GraphStore:
    """Returns the graph in a folder.

    Raises UserError where there is none, where its manifest was changed, or where its digest is not
    the `expected` one, which a run or a corpus has in its record.
    """
    folder = Path(folder).expanduser()
    path = folder / MANIFEST
    if not path.is_file():
        raise UserError(
            f"{folder} is no compiled graph (it has no {MANIFEST}); run ptm prepare --graph "
            f"SOURCE --out {folder}"
        )
    manifest = read_json(path, "the manifest of a graph")
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise broken(
            path,
            f"is no manifest of a graph (format {FORMAT}); run ptm prepare --graph SOURCE "
            "--out DIR",
        )
    if manifest.get("digest") != digest(manifest):
        raise broken(path, "was changed after it was written; compile the graph again")
    if expected is not None and manifest["digest"] != expected:
        have, want = manifest["digest"][:12], expected[:12]
        raise UserError(
            f"{folder} holds the graph {have}; expected {want}, the graph of the record: "
            "give that one's folder"
        )
    return GraphStore(folder, manifest)
