"""A graph of entities with descriptions, as documents of a corpus.

A source `graph:DIR` reads the triples of DIR/train.tsv (or the first train*), a line of head,
relation and tail with tabs, and the texts of entities, a line of entity and text: names in
entity2text*, descriptions in entity2textlong*. Without the second file a text is the description,
and the part before its first comma is the name.

    e:HEAD r:RELATION e:TAIL                    a document of one sentence for every triple
    e:ENTITY | words of name | of description   a document of three sentences for every entity with
                                                a text

A source `triples:DIR` gives the triples alone. Blanks in names of entities and relations become
underscores. The tokenizer's kind is "spaced".
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

from ptm_jax.core.errors import UserError
from ptm_jax.core.reading import read_bytes
from ptm_jax.data.text.bitext import words_of
from ptm_jax.data.text.documents import Document
from ptm_jax.knowledge.graphs.formats import files_in
from ptm_jax.knowledge.graphs.tables import cells

START, BARE = "graph:", "triples:"


def files_of(source: str) -> tuple[Path, Path | None, Path | None]:
    """Returns the files of triples, names and descriptions. Raises UserError without triples."""
    folder = Path(source.removeprefix(BARE).removeprefix(START)).expanduser()
    if not folder.is_dir():
        raise UserError(
            f"{source} names no directory; give graph:DIR with a file train.tsv of head, "
            "relation and tail"
        )
    files = files_in(folder)
    if "train" not in files:
        raise UserError(
            f"{folder} has no file train.tsv; expected lines of head, relation and tail with tabs"
        )
    return (
        (files["train"], None, None)
        if source.startswith(BARE)
        else (files["train"], files.get("names"), files.get("texts"))
    )


def fingerprint(source: str) -> str:
    """Returns the hash of the files of a source."""
    digest = hashlib.sha256()
    for file in files_of(source):
        digest.update(b"" if file is None else hashlib.sha256(read_bytes(file)).digest())
    return digest.hexdigest()


def documents(source: str) -> Iterator[Document]:
    """Yields the documents of a graph. Raises UserError with file and line, and for two names that
    differ in blanks and underscores alone."""
    triples, names, descriptions = files_of(source)
    name_of: dict[str, str] = {}

    def rows(path, count):
        return (row for _, row in cells(path, count))

    def mark(kind, name):
        return f"{kind}:{'_'.join(name.split())}"

    for triple in rows(triples, 3):
        pieces = [mark(kind, name) for kind, name in zip("ere", triple, strict=True)]
        for piece, name in zip(pieces, triple, strict=True):
            if (other := name_of.setdefault(piece, name)) != name:
                raise UserError(
                    f"{triples}: the names {other!r} and {name!r} differ in blanks and underscores "
                    "alone, and would be one; rename one of them"
                )
        yield Document((" ".join(pieces),))
    short = dict(rows(names, 2)) if names else {}
    long = dict(rows(descriptions, 2)) if descriptions else {}
    for entity in dict.fromkeys([*short, *long]):
        text = long.get(entity, short.get(entity, ""))
        name = short.get(entity, text).split(",")[0]
        words = [" ".join(words_of(part)) for part in (name, text)]
        if all(words):
            yield Document((mark("e", entity), *words))
