"""Uses of word vectors: nearest words, vectors, and the classes of fastText."""

from __future__ import annotations

from typing import Any

import numpy as np

from ptm_jax.core.errors import UserError
from ptm_jax.inference.text import classifying, ranking
from ptm_jax.inference.uses import Request, Result, Use
from ptm_jax.inference.words.graph_vectors import GraphVectors
from ptm_jax.inference.words.word_vectors import WordVectors


def similar(model: Any, request: Request) -> list[Result]:
    """Returns the nearest words of each word or sum of words. Raises UserError."""
    results = []
    for text in request.text:
        plus, minus = terms(model, text)
        method = request.settings["method"]
        best = model.most_similar(plus, minus, top=request.top, method=method)
        nearest = [{"score": score, "text": _printable(word)} for word, score in best]
        results.append({"text": text, "similar": nearest})
    return results


def arrays(model: WordVectors, request: Request) -> np.ndarray:
    """Returns the vectors [texts, D] float32 of words, or of texts for a model with a tokenizer."""
    rows = model.encode(request.text) if model.encodes else [model[text] for text in request.text]
    return np.asarray(rows, np.float32)


def vectors(model: Any, request: Request) -> list[Result]:
    """Returns the vector of each word, or of each text where the model has a tokenizer."""
    rows = arrays(model, request)
    return [
        {"text": text, "vector": row.tolist()} for text, row in zip(request.text, rows, strict=True)
    ]


def links(model: Any, request: Request) -> list[Result]:
    """Returns the best answers of each query `head | relation`, or `? | relation | tail`, or
    `head | ? | tail` of a model that scores relations. Raises UserError."""
    if isinstance(model, WordVectors) and not isinstance(model, GraphVectors):
        raise UserError(
            f"{request.model} scores no triples; give a run of transe, transh, distmult, conve, "
            "kgbert or kepler"
        )
    results = []
    for text in request.text:
        parts = [part.strip() for part in text.split("|")]
        parts = [*parts, "?"] if len(parts) == 2 else parts
        if len(parts) != 3 or not all(parts) or parts.count("?") != 1:
            raise UserError(
                f"{text!r} is no query; write it as 'head | relation', or '? | relation | tail'"
            )
        names = {n: p for n, p in zip(("head", "relation", "tail"), parts, strict=True) if p != "?"}
        best = [
            {"score": s, "text": _printable(w)} for w, s in model.complete(**names, top=request.top)
        ]
        results.append({"text": text, "similar": best})
    return results


def classes(model: Any, request: Request) -> list[Result]:
    """Returns the probabilities of the classes of each text. Raises UserError."""
    return [
        {"text": text, "labels": labels}
        for text, labels in zip(request.text, model.classify(request.text), strict=True)
    ]


def terms(model: Any, text: str) -> tuple[list[str], list[str]]:
    """Returns (words to add, words to take away) of `king - man + woman`.
    A word of the vocabulary is itself."""
    if text in model or not any(f" {sign} " in text for sign in "+-"):
        return [text], []
    words, sign, parts = {"+": [], "-": []}, "+", text.split()
    for number, part in enumerate(parts):
        if (number % 2 == 1) != (part in words):
            raise UserError(f"{text!r} is no sum of words; write it as 'king - man + woman'")
        if number % 2:
            sign = part
        else:
            words[sign].append(part)
    if len(parts) % 2 == 0:
        raise UserError(f"{text!r} ends with {parts[-1]!r}; write it as 'king - man + woman'")
    return words["+"], words["-"]


def _printable(word: str) -> str:
    """Returns a word; bytes that are not UTF-8 become their numbers."""
    return word.encode("utf8", "backslashreplace").decode()


USES = (
    Use(
        name="similar",
        words=True,
        run=similar,
        lines=ranking.scored_lines,
        help="nearest words of a word, or of a sum such as 'king - man + woman'",
        options=("method",),
        columns=("text", "similar"),
    ),
    Use(
        name="links",
        words=True,
        run=links,
        lines=ranking.scored_lines,
        help="entities that complete 'head | relation' in a graph",
        columns=("text", "similar"),
    ),
    Use(
        name="links",
        run=links,
        lines=ranking.scored_lines,
        help="entities that complete 'head | relation', by a network that scores triples",
        columns=("text", "similar"),
    ),
    Use(
        name="embed",
        words=True,
        run=vectors,
        help="vectors of words",
        as_json=True,
        arrays=arrays,
        columns=("text", "vector"),
    ),
    Use(
        name="classify",
        words=True,
        run=classes,
        lines=classifying.lines_of,
        help="classes of texts by fastText",
        columns=("text", "label", "score"),
        cells=classifying.cells_of,
    ),
)
