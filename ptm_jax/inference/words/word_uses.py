"""Uses of word vectors: nearest words, vectors, and the classes of fastText."""

from __future__ import annotations

from typing import Any

from ptm_jax.core.errors import UserError
from ptm_jax.inference.text import classifying, ranking
from ptm_jax.inference.uses import Request, Result, Use


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


def vectors(model: Any, request: Request) -> list[Result]:
    """Returns the vector of each word, or of each text where the model has a tokenizer."""
    rows = model.encode(request.text) if model.encodes else [model[text] for text in request.text]
    return [
        {"text": text, "vector": row.tolist()} for text, row in zip(request.text, rows, strict=True)
    ]


def classes(model: Any, request: Request) -> list[Result]:
    """Returns the probabilities of the classes of each text. Raises UserError."""
    return [
        {"text": text, "labels": labels}
        for text, labels in zip(request.text, model.classify(request.text), strict=True)
    ]


def terms(model: Any, text: str) -> tuple[list[str], list[str]]:
    """Returns (words to add, words to take away) of `king - man + woman`; a word of the vocabulary
    is itself."""
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
    ),
    Use(
        name="embed",
        words=True,
        run=vectors,
        help="vectors of words",
        as_json=True,
        write={".npy": ranking.npy},
    ),
    Use(
        name="classify",
        words=True,
        run=classes,
        lines=classifying.lines_of,
        help="classes of texts by fastText",
    ),
)
