"""Reads WordNet's database files (wndb(5)), as in Debian's package wordnet-base.

An entity is a synset, OFFSET-POS such as 02084071-n (a satellite is an adjective, -a). Its type is
its lexicographer file, such as noun.animal, one of 45 (supersenses). Its aliases are its lemmas,
weighted by the sense counts of cntlist.rev plus 1. Its description is the gloss. A pointer between
words counts as a pointer between their synsets.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from ptm_jax.core.errors import UserError
from ptm_jax.core.reading import broken, shown
from ptm_jax.knowledge.english_words import FILE_PARTS, SENSE_PARTS, SUPERSENSES
from ptm_jax.knowledge.graphs.builder import Builder
from ptm_jax.knowledge.graphs.tables import lines

POINTERS = {
    "!": "antonym",
    "@": "hypernym",
    "@i": "instance_hypernym",
    "~": "hyponym",
    "~i": "instance_hyponym",
    "#m": "member_holonym",
    "#s": "substance_holonym",
    "#p": "part_holonym",
    "%m": "member_meronym",
    "%s": "substance_meronym",
    "%p": "part_meronym",
    "=": "attribute",
    "+": "derivationally_related_form",
    ";c": "synset_domain_topic_of",
    "-c": "member_of_domain_topic",
    ";r": "synset_domain_region_of",
    "-r": "member_of_domain_region",
    ";u": "synset_domain_usage_of",
    "-u": "member_of_domain_usage",
    "*": "entailment",
    ">": "cause",
    "^": "also_see",
    "$": "verb_group",
    "&": "similar_to",
    "<": "participle_of_verb",
    "\\": "pertainym",
}
SENSES = "index.sense"
_MARKER = re.compile(r"\((a|p|ip)\)$")  # syntactic markers of adjectives
_NOTICE = "  "  # the licence stands in lines that begin with two blanks


def source(path: Path) -> tuple[list[Path], Callable[[Builder], None], bool]:
    """The files of a folder of WordNet's. Raises UserError where data.noun is absent."""
    data = {part: path / f"data.{part}" for part in FILE_PARTS if (path / f"data.{part}").is_file()}
    if "noun" not in data:
        raise UserError(
            f"{path} has no file data.noun; give the folder of WordNet's database, as "
            "/usr/share/wordnet"
        )
    more = [file for part in data if (file := path / f"index.{part}").is_file()]
    counts = [file for file in (path / "cntlist.rev",) if file.is_file()]

    def read(builder: Builder) -> None:
        seen = _counts(counts[0], more) if counts else {}
        for part, file in data.items():
            for number, line in lines(file):
                if not line.startswith(_NOTICE):
                    _synset(builder, line, FILE_PARTS[part], (file, number), seen)

    return [*data.values(), *more, *counts], read, True


def senses(path: Path) -> tuple[list[Path], Callable[[Builder], None], bool]:
    """`index.sense`, alone or in a folder with the files of synsets.

    An entity is a sense key; its type is its lexicographer file, its alias the lemma, its
    description the gloss of the synset.
    """
    file = path / SENSES if path.is_dir() else path
    data = {part: path / f"data.{name}" for name, part in FILE_PARTS.items()}

    def read(builder: Builder) -> None:
        glosses: dict[str, dict[str, str]] = {}
        for number, line in lines(file):
            key, *numbers = line.split()
            try:
                lemma, part = word_of(key)
                place, supersense = (file, number), SUPERSENSES[int(key.split(":")[1])]
                sense = int(numbers[1]) if len(numbers) > 1 else 0
                if path.is_dir():
                    if part not in glosses:
                        glosses[part] = _glosses(data[part])
                    builder.describe(key, glosses[part][numbers[0]], place)
            except (ValueError, KeyError, IndexError):
                raise broken(
                    file,
                    f"line {number:,} is {shown(line[:80])}; expected a sense key as in "
                    "index.sense(5WN)",
                ) from None
            builder.type(key, supersense, place)
            builder.alias(key, lemma.replace("_", " "), place, sense=sense)

    return [file, *(file for file in data.values() if file.is_file())], read, False


def word_of(key: str) -> tuple[str, str]:
    """Returns the lemma of a sense key, with underscores, and its part of speech.

    Raises ValueError or KeyError.
    """
    lemma, mark, numbers = key.partition("%")
    if not mark:
        raise ValueError(f"{key!r} is no sense key")
    return lemma, SENSE_PARTS[numbers.partition(":")[0]]


def _glosses(path: Path) -> dict[str, str]:
    """{offset of a synset: its gloss}."""
    texts = (line for _, line in lines(path) if not line.startswith(_NOTICE))
    return {line.partition(" ")[0]: line.partition(" | ")[2].strip() for line in texts}


def exceptions(folder: Path) -> dict[str, dict[str, list[str]]]:
    """Returns {part of speech: {irregular form: lemmas}} of WordNet.

    They are in noun.exc, verb.exc, adj.exc and adv.exc. Raises UserError with file and line.
    """
    forms: dict[str, dict[str, list[str]]] = {part: {} for part in FILE_PARTS.values()}
    for name, part in FILE_PARTS.items():
        path = folder / f"{name}.exc"
        for number, line in lines(path):
            form, *lemmas = (cell.replace("_", " ") for cell in line.split())
            if not lemmas:
                raise broken(
                    path,
                    f"line {number:,} is {shown(line[:80])}; expected a form and its lemmas",
                )
            forms[part].setdefault(form, []).extend(lemmas)
    return forms


def _counts(path: Path, indexes: list[Path]) -> dict[tuple[str, str], int]:
    """{(lemma, synset): times that it was tagged with this sense}; index files order the senses of
    a lemma."""
    tagged: dict[tuple[str, str, int], int] = {}
    for number, line in lines(path):
        try:
            key, sense, count = line.split()
            lemma, _, numbers = key.rpartition("%")
            tagged[lemma, SENSE_PARTS[numbers[0]], int(sense)] = int(count)
        except (ValueError, KeyError, IndexError):
            raise broken(
                path,
                f"line {number:,} is {shown(line[:80])}; expected a sense key, its number "
                "and a count",
            ) from None
    counts = {}
    for index in indexes:
        for number, line in lines(index):
            if line.startswith(_NOTICE):
                continue
            try:
                lemma, kind, synsets, *row = line.split()
                offsets = row[-int(synsets) :]
            except ValueError:
                raise broken(
                    index,
                    f"line {number:,} is {shown(line[:80])}; expected an entry of WordNet's index",
                ) from None
            for sense, offset in enumerate(offsets, 1):
                if count := tagged.get((lemma, kind, sense)):
                    counts[lemma, f"{offset}-{kind}"] = count
    return counts


def _synset(
    builder: Builder,
    line: str,
    kind: str,
    place: tuple[Path, int],
    seen: dict[tuple[str, str], int],
) -> None:
    fields, _, gloss = line.partition(" | ")
    try:
        row = fields.split()
        entity, lexicographer, words = (
            f"{row[0]}-{kind}",
            SUPERSENSES[int(row[1])],
            int(row[3], 16),
        )
        lemmas = row[4 : 4 + 2 * words : 2]
        start = 5 + 2 * words
        pointers = [row[start + 4 * i : start + 4 * i + 3] for i in range(int(row[start - 1]))]
        links = [(POINTERS[symbol], f"{offset}-{target}") for symbol, offset, target in pointers]
    except (ValueError, IndexError, KeyError):
        raise broken(
            place[0],
            f"line {place[1]:,} is {shown(line[:80])}; expected a synset of WordNet's data",
        ) from None
    builder.entity(entity, place)
    builder.type(entity, lexicographer, place)
    builder.describe(entity, gloss.strip(), place)
    for lemma in dict.fromkeys(_MARKER.sub("", lemma) for lemma in lemmas):
        builder.alias(
            entity, lemma.replace("_", " "), place, 1 + seen.get((lemma.lower(), entity), 0)
        )
    for relation, target in dict.fromkeys(links):
        builder.triple(entity, relation, target, place)
