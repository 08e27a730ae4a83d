"""Readers of KnowBERT's files (Peters et al. 2019; allenai/kb).

priors:FILE     names in Wikipedia with priors (prob_yago_crosswikis_wikipedia_p_e_m.txt). A line
                has, with tabs between, a name, its count, and its entities as number,prior,title;
                the title identifies an entity
synsets:FILE    a JSON object a line (entities.jsonl): a synset with its definition and its lemmas,
                or a lemma with its synset and its count; a lemma's text is an alias of its synset
                with the weight count + 1
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ptm_jax.core.errors import UserError
from ptm_jax.core.reading import broken, shown
from ptm_jax.knowledge.graphs.builder import Builder
from ptm_jax.knowledge.graphs.tables import cells, lines

LEMMA = "synset_lemma"
"""The relation from a synset to its lemmas."""


def priors(path: Path) -> tuple[list[Path], Callable[[Builder], None], bool]:
    """Names with the priors of their entities."""

    def read(builder: Builder) -> None:
        for number, (name, _, *several) in cells(path, 3, 0):
            for one in filter(None, several):  # lines end with a tab
                try:
                    _, prior, title = (part.strip() for part in one.split(",", 2))
                    builder.name(title, title.replace("_", " "))
                    builder.alias(title, name, (path, number), float(prior))
                except ValueError:
                    raise broken(
                        path,
                        f"line {number:,} has {shown(one[:80])}; expected an entity as "
                        "number,prior,title",
                    ) from None

    return [path], read, False


def rows(path: Path) -> Iterator[tuple[tuple[Path, int], dict[str, Any]]]:
    """Yields the place and the object of every line of entities.jsonl, which has `id` and `type`.

    Raises UserError with file and line.
    """
    for number, line in lines(path):
        try:
            row = json.loads(line)
            if not isinstance(row["id"], str) or not isinstance(row["type"], str):
                raise ValueError("id and type are texts")
        except (ValueError, KeyError, TypeError):
            raise wrong((path, number), line) from None
        yield (path, number), row


def wrong(place: tuple[Path, int], line: Any) -> UserError:
    """Returns the error for a line that is no synset and no lemma."""
    path, number = place
    return broken(
        path,
        f"line {number:,} is {shown(str(line)[:80])}; expected a synset or a lemma of "
        "KnowBERT's WordNet",
    )


def synsets(path: Path) -> tuple[list[Path], Callable[[Builder], None], bool]:
    """WordNet's synsets and lemmas."""

    def read(builder: Builder) -> None:
        for place, row in rows(path):
            try:
                entity = row["id"]
                builder.entity(entity, place)
                if row["type"] == "synset":
                    builder.describe(entity, row["definition"], place)
                    for lemma in row["lemmas"]:
                        builder.triple(entity, LEMMA, lemma, place)
                else:
                    name = entity.partition("%")[0].replace("_", " ")
                    builder.name(entity, name)
                    builder.alias(row["synset"], name, place, 1 + row["count"])
            except (KeyError, TypeError):
                raise wrong(place, row) from None

    return [path], read, True
