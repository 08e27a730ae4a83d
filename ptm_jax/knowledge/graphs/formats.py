"""Readers of the published files of graphs: KIND:PATH, or a PATH whose files name its kind.

graph:DIR or graph:FILE      lines of head, relation, tail with tabs: train*, dev* or valid*, test*.
                             Optional files: entity2text* (names), entity2textlong* (descriptions),
                             relation2text*, entity2type*, aliases* (entity, then aliases) and
                             entities.* (a list of all entities)
wikidata5m:DIR               *_train.txt, *_valid.txt, *_test.txt, *_text.txt, *_entity.txt and
                             *_relation.txt (Wang et al. 2021, arXiv 1911.06136)
triples:FILE                 lines of head, relation and tail with tabs; # begins a comment. Cells
                             are names, and repeated triples are kept
wordnet:DIR                  data.noun, index.noun, ... of WordNet (`knowledge.graphs.wordnet`)
senses:FILE or senses:DIR    WordNet's index.sense; of a folder also the glosses in data.noun, ...
sentiwordnet:FILE            polarity of the synsets of WordNet 3.0 (Baccianella et al. 2010)
conceptnet:FILE              assertions of ConceptNet 5 in English
atomic:FILE                  v4_atomic_all.csv (Sap et al. 2019)
umls:DIR                     MRCONSO.RRF in English; MRREL.RRF, MRSTY.RRF and MRDEF.RRF if present
priors:FILE, synsets:FILE    names in Wikipedia with priors, and WordNet's synsets, of KnowBERT
                             (`knowledge.graphs.knowbert`)
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from ptm_jax.core.errors import UserError, unknown
from ptm_jax.core.reading import broken, shown
from ptm_jax.knowledge.graphs import knowbert, wordnet
from ptm_jax.knowledge.graphs.builder import Builder
from ptm_jax.knowledge.graphs.compiling import Source
from ptm_jax.knowledge.graphs.tables import cells, lines

ATOMIC_SPLITS = {"trn": "train", "dev": "valid", "tst": "test"}


def sources(names: Iterable[str]) -> list[Source]:
    """Returns the sources of names. Raises UserError for a kind or path that does not exist."""
    return [source(name) for name in names]


def source(name: str) -> Source:
    """Returns the source KIND:PATH or PATH."""
    kind, colon, place = name.partition(":")
    if not colon or Path(name).expanduser().exists():
        kind, place = "", name
    if kind and kind not in KINDS:
        raise unknown("kind of graph", kind, KINDS)
    path = Path(place).expanduser()
    if not path.exists():
        raise UserError(
            f"{name} names no file or folder; give KIND:PATH, where KIND is one of "
            f"{', '.join(KINDS)}"
        )
    kind = kind or guess(path)
    files, read, closed = KINDS[kind](path)
    return Source(name, kind, tuple(files), read, closed)


def guess(path: Path) -> str:
    """Returns the kind of the files at a path: "graph" where their names tell no other."""
    if path.is_dir():
        inside = {file.name for file in path.iterdir()}
        signs = {"wordnet": "data.noun", "umls": "MRCONSO.RRF"}
        kind = next((kind for kind, file in signs.items() if file in inside), None)
        return kind or (
            "wikidata5m" if any(file.startswith("wikidata5m") for file in inside) else "graph"
        )
    name = path.name.lower()
    starts = {
        "conceptnet": "conceptnet",
        "v4_atomic": "atomic",
        "sentiwordnet": "sentiwordnet",
        "index.sense": "senses",
    }
    return next((kind for start, kind in starts.items() if name.startswith(start)), "graph")


FILES = {
    "entities": ("entities.*",),
    "train": ("train.tsv", "train*"),
    "valid": ("dev.tsv", "dev*", "valid*"),
    "test": ("test.tsv", "test*"),
    "names": ("entity2text.txt", "entity2text_*"),
    "texts": ("entity2textlong*",),
    "relations": ("relation2text*",),
    "types": ("entity2type*",),
    "aliases": ("aliases*",),
}
"""{part of a graph: patterns of its file in a folder}."""


def files_in(folder: Path) -> dict[str, Path]:
    """Returns {part of `FILES`: its first file in a folder}, without missing parts."""
    files = {}
    for part, patterns in FILES.items():
        matches = (file for pattern in patterns for file in sorted(folder.glob(pattern)))
        if (first := next(filter(Path.is_file, matches), None)) is not None:
            files[part] = first
    return files


Found = tuple[list[Path], Callable[[Builder], None], bool]


def _folder(path: Path) -> Found:
    """The files of a folder of triples, or one file of them."""
    files = {"train": path} if path.is_file() else files_in(path)
    if "train" not in files:
        raise UserError(
            f"{path} has no file train.tsv; expected lines of head, relation and tail with tabs"
        )
    return list(files.values()), lambda builder: _tables(builder, files), "entities" in files


def _triples(path: Path) -> Found:
    """A file of triples whose identifiers are names."""

    def read(builder: Builder) -> None:
        builder.repeats = True
        for number, (head, relation, tail) in cells(path, 3, comments=True):
            place = path, number
            builder.relation(relation, place, relation)
            builder.entity(head, place, head)
            builder.entity(tail, place, tail)
            builder.triple(head, relation, tail, place)

    return [path], read, False


def _wikidata5m(path: Path) -> Found:
    """Wikidata5m: triples, texts, and aliases of entities and relations."""

    def first(*patterns):
        return next((file for p in patterns for file in sorted(path.glob(p))), None)

    files = {
        "aliases": first("*_entity.txt*"),
        "relation_aliases": first("*_relation.txt*"),
        "train": first("*_transductive_train*", "*_train*", "*_all_triplet*"),
        "valid": first("*_transductive_valid*", "*_valid*"),
        "test": first("*_transductive_test*", "*_test*"),
        "texts": first("*_text.txt*"),
    }
    files = {part: file for part, file in files.items() if file is not None}
    if "train" not in files:
        raise UserError(
            f"{path} has no file wikidata5m_transductive_train.txt; give the folder of "
            "Wikidata5m's files"
        )
    return list(files.values()), lambda builder: _tables(builder, files), "aliases" in files


def _tables(builder: Builder, files: dict[str, Path]) -> None:
    """Reads files of cells with tabs by their part in a graph."""
    if path := files.get("entities"):
        for number, row in cells(path, 1, 0):
            builder.entity(row[0], (path, number))
    for part in ("relations", "relation_aliases"):
        if path := files.get(part):
            for number, row in cells(path, 2, 0):
                builder.relation(row[0], (path, number), row[1])
    if path := files.get("aliases"):
        for number, row in cells(path, 2, 0):
            if builder.closed and "entities" not in files:
                builder.entity(row[0], (path, number))
            for alias in filter(None, row[1:]):
                builder.alias(row[0], alias, (path, number))
    if path := files.get("names"):
        for number, (entity, text) in cells(path, 2):
            builder.alias(entity, text.split(",")[0], (path, number))
            if "texts" not in files and "," in text:
                builder.describe(entity, text.partition(",")[2].strip(), (path, number))
    if path := files.get("texts"):
        for number, (entity, text) in cells(path, 2):
            builder.describe(entity, text, (path, number))
    if path := files.get("types"):
        for number, row in cells(path, 2, 0):
            for name in filter(None, row[1:]):
                builder.type(row[0], name, (path, number))
    for split in ("train", "valid", "test"):
        if path := files.get(split):
            for number, (head, relation, tail) in cells(path, 3):
                builder.triple(head, relation, tail, (path, number), split)


def _conceptnet(path: Path) -> Found:
    """ConceptNet's assertions: a URI, relation, start, end, and JSON. Concepts of other languages
    are left out."""

    def read(builder: Builder) -> None:
        for number, (_, relation, start, end, *_) in _assertions(path):
            builder.triple(start, relation, end, (path, number))
            for concept in (start, end):
                if concept not in seen:
                    seen.add(concept)
                    builder.alias(concept, concept.split("/")[3].replace("_", " "), (path, number))

    seen: set[str] = set()
    return [path], read, False


def _assertions(path: Path) -> Iterator[tuple[int, list[str]]]:
    def english(uri):
        return uri.startswith("/c/en/") and len(uri) > 6

    for number, row in cells(path, 5):
        if not row[1].startswith("/r/"):
            raise broken(
                path,
                f"line {number:,} has the relation {shown(row[1])}; expected an assertion of "
                "ConceptNet 5",
            )
        if english(row[2]) and english(row[3]):
            yield number, row


def _atomic(path: Path) -> Found:
    """ATOMIC: an event, nine relations with lists of texts in JSON, and the split of a line."""

    def read(builder: Builder) -> None:
        rows = csv.reader(line for _, line in lines(path))
        head = next(rows, [])
        if head[:1] != ["event"] or "split" not in head:
            raise broken(
                path,
                f"line 1 is {shown(','.join(head)[:80])}; expected ATOMIC's header "
                "event,oEffect,...,split",
            )
        kinds = [name for name in head[1:] if name not in ("prefix", "split")]
        for number, row in enumerate(rows, 2):
            try:
                event = dict(zip(head, row, strict=True))
                split, texts = (
                    ATOMIC_SPLITS[event["split"]],
                    {kind: json.loads(event[kind]) for kind in kinds},
                )
            except (ValueError, KeyError):
                raise broken(
                    path,
                    f"line {number:,} is {shown(','.join(row)[:80])}; expected an event of ATOMIC",
                ) from None
            builder.name(event["event"], event["event"])
            for kind, tails in texts.items():
                for tail in dict.fromkeys(str(text).strip() for text in tails):
                    if tail and tail != "none":
                        builder.triple(event["event"], kind, tail, (path, number), split)

    return [path], read, False


def _sentiwordnet(path: Path) -> Found:
    """SentiWordNet: POS, offset, positive and negative score, terms, gloss. After WordNet
    only the scores are read."""

    def read(builder: Builder) -> None:
        scores_only = bool(builder.entities)
        for number, line in lines(path):
            if line.startswith("#"):
                continue
            row = [cell.strip() for cell in line.split("\t")]
            try:
                kind, offset, positive, negative, terms, gloss = row
                scores = {"positive": float(positive), "negative": float(negative)}
                pairs = (term.rpartition("#") for term in terms.split())
                words = [(name, int(sense)) for name, _, sense in pairs]
            except ValueError:
                raise broken(
                    path,
                    f"line {number:,} is {shown(line[:80])}; expected a line of SentiWordNet 3.0",
                ) from None
            entity, place = f"{offset}-{kind}", (path, number)
            if scores_only and entity not in builder.entities:
                builder.fault("dangling", 1, place, f"scores of {entity!r}, which is not declared")
                continue
            for name, score in scores.items():
                builder.value(entity, name, score)
            if not scores_only:
                for name, sense in words:
                    builder.alias(entity, name.replace("_", " "), place, sense=sense)
                builder.describe(entity, gloss, place)

    return [path], read, False


def _umls(path: Path) -> Found:
    """UMLS: concepts, their English strings, relations (the second concept has the relation to the
    first), semantic types and definitions. Suppressed strings are left out."""
    names = ("MRCONSO.RRF", "MRREL.RRF", "MRSTY.RRF", "MRDEF.RRF")
    files = {name: path / name for name in names if (path / name).is_file()}
    if names[0] not in files:
        raise UserError(
            f"{path} has no file {names[0]}; give a folder of UMLS in Rich Release Format"
        )

    def rows(name: str, count: int) -> Iterator[tuple[tuple[Path, int], list[str]]]:
        for number, row in cells(files[name], 1, 0, "|") if name in files else ():
            if len(row) < count:
                raise broken(
                    files[name],
                    f"line {number:,} has {len(row)} cells; expected at least {count} with "
                    "'|' between",
                )
            yield (files[name], number), row

    def read(builder: Builder) -> None:
        seen: set[tuple[str, str]] = set()
        for place, row in rows("MRCONSO.RRF", 17):
            builder.entity(row[0], place)
            if (
                row[1] == "ENG"
                and row[16] not in ("O", "Y", "E")
                and (row[0], row[14].lower()) not in seen
            ):
                seen.add(
                    (row[0], row[14].lower())
                )  # one string has a line for every vocabulary that holds it
                builder.alias(row[0], row[14], place)
        for place, row in rows("MRDEF.RRF", 6):
            builder.describe(row[0], row[5], place)
        for place, row in rows("MRSTY.RRF", 4):
            builder.type(row[0], row[3], place)
        for place, row in rows("MRREL.RRF", 8):
            builder.triple(row[4], row[7] or row[3], row[0], place)

    return list(files.values()), read, True


KINDS = {
    "graph": _folder,
    "triples": _triples,
    "wikidata5m": _wikidata5m,
    "wordnet": wordnet.source,
    "senses": wordnet.senses,
    "sentiwordnet": _sentiwordnet,
    "conceptnet": _conceptnet,
    "atomic": _atomic,
    "umls": _umls,
    "priors": knowbert.priors,
    "synsets": knowbert.synsets,
}
"""{kind: function from a path to (files, reader into a builder, whether it lists its entities)}."""
