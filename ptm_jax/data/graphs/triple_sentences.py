"""Triples of a graph as sentences, by a template for each relation.
Guan et al. 2020, arXiv 2001.05139, section 3.3.

A source `sentences:DIR` reads the training triples of a compiled graph (`ptm prepare --graph`), one
document each. The templates are our own, for ConceptNet's and ATOMIC's relations: the authors
publish the sentences, not the templates, and not with their code. Any other relation stands between
head and tail by its own words.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from ptm_jax.core.errors import UserError
from ptm_jax.data.text.documents import Document, split_sentences
from ptm_jax.knowledge.graphs.graph_folder import triples
from ptm_jax.knowledge.graphs.graph_store import open_graph

START, DESCRIPTIONS = "sentences:", "descriptions:"
STARTS = START, DESCRIPTIONS
CONCEPTNET = {
    "AtLocation": "{} is at {}", "CapableOf": "{} can {}", "Causes": "{} causes {}",
    "CausesDesire": "{} makes you want {}",
    "CreatedBy": "{} is created by {}", "DefinedAs": "{} is defined as {}",
    "DerivedFrom": "{} is derived from {}",
    "Desires": "{} wants {}", "DistinctFrom": "{} is not {}", "Entails": "{} entails {}",
    "HasA": "{} has {}",
    "HasContext": "{} is used in the context of {}",
    "HasFirstSubevent": "the first thing you do when you {} is {}",
    "HasLastSubevent": "the last thing you do when you {} is {}",
    "HasPrerequisite": "{} requires {}",
    "HasProperty": "{} is {}", "HasSubevent": "when you {}, you {}",
    "InstanceOf": "{} is an instance of {}",
    "IsA": "{} is a {}", "LocatedNear": "{} is near {}", "MadeOf": "{} is made of {}",
    "MannerOf": "{} is a way to {}",
    "MotivatedByGoal": "you would {} because you want {}", "NotCapableOf": "{} can not {}",
    "NotDesires": "{} does not want {}", "NotHasProperty": "{} is not {}",
    "PartOf": "{} is part of {}",
    "ReceivesAction": "{} can be {}",
    "RelatedTo": "{} is related to {}", "SimilarTo": "{} is similar to {}",
    "SymbolOf": "{} is a symbol of {}",
    "Synonym": "{} is the same as {}", "Antonym": "{} is the opposite of {}",
    "UsedFor": "{} is used for {}",
}  # fmt: skip
ATOMIC = {
    "oEffect": "{}. others then {}", "oReact": "{}. others feel {}", "oWant": "{}. others want {}",
    "xAttr": "{}. PersonX is {}", "xEffect": "{}. PersonX then {}",
    "xIntent": "{}. PersonX wanted {}",
    "xNeed": "{}. before, PersonX needed {}", "xReact": "{}. PersonX feels {}",
    "xWant": "{}. PersonX wants {}",
}  # fmt: skip
TEMPLATES = CONCEPTNET | ATOMIC


def sentence(head: str, relation: str, tail: str) -> str:
    """Returns a triple as a sentence with a full stop."""
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", relation.replace("_", " ")).lower()
    template = TEMPLATES.get(relation, f"{{}} {words.replace('{', '').replace('}', '')} {{}}")
    return f"{template.format(head.strip(), tail.strip())}."


def folder_of(source: str) -> Path:
    """Returns the folder of a source. Raises UserError if it is no compiled graph."""
    folder = Path(source.removeprefix(START).removeprefix(DESCRIPTIONS)).expanduser()
    if not folder.is_dir():
        raise UserError(f"{source} names no compiled graph; write one by ptm prepare --graph")
    return folder


def fingerprint(source: str) -> str:
    """Returns the hash of the graph."""
    return open_graph(folder_of(source)).manifest["digest"]


def documents(source: str) -> Iterator[Document]:
    """Yields a one-sentence document per training triple, or a document per description."""
    if source.startswith(DESCRIPTIONS):
        paragraphs = (split_sentences(text) for text in open_graph(folder_of(source)).descriptions)
        yield from (Document(tuple(sentences)) for sentences in paragraphs if sentences)
        return
    for head, relation, tail in triples(open_graph(folder_of(source))):
        yield Document((sentence(head, relation, tail),))
