"""Uses of the vectors of texts: print them, and rank lines by their similarity to a text."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ptm_jax.core.errors import UserError
from ptm_jax.inference.uses import Request, Result, Use

if TYPE_CHECKING:
    from ptm_jax.inference.pretrained import Pretrained


SETTINGS = ("pooling", "prompt", "prompt_name", "truncate", "exact")


def vectors(model: Pretrained, request: Request) -> list[Result]:
    """Returns the vector of each text."""
    rows = model.encode(request.text, normalize=None, **request.settings)
    return [
        {"text": text, "vector": row.tolist()} for text, row in zip(request.text, rows, strict=True)
    ]


def similar(model: Pretrained, request: Request) -> list[Result]:
    """Returns the lines with the largest cosines to each text. Raises UserError."""
    rows = model.encode(request.text, normalize=True, **request.settings)
    if request.top < 1:
        raise UserError(f"--top is {request.top}; it must be at least 1")
    cosines = rows @ model.encode(request.lines, normalize=True, **request.settings).T
    results = []
    for text, row in zip(request.text, cosines, strict=True):
        best = (-row).argsort(kind="stable")[: request.top]
        nearest = [
            {"line": int(i) + 1, "cosine": float(row[i]), "text": request.lines[i]} for i in best
        ]
        results.append({"text": text, "similar": nearest})
    return results


def search(model: Pretrained, request: Request) -> list[Result]:
    """Returns the lines that answer each text best, by the similarity of the model."""
    answers = model.search(request.text, request.lines, request.top, **request.settings)
    return [
        {"text": text, "found": [{"line": i + 1, "score": s, "text": t} for i, s, t in best]}
        for text, best in zip(request.text, answers, strict=True)
    ]


def scored_lines(result: Result) -> Iterator[str]:
    """Yields a text, and the texts near it with their scores."""
    yield result["text"]
    for one in result.get("similar", result.get("found", ())):
        score = one["cosine"] if "cosine" in one else one["score"]
        yield f"  {score:7.4f}  {one['text']}"


def npy(results: Sequence[Result]) -> bytes:
    """Returns the vectors as a .npy file, float32."""
    buffer = io.BytesIO()
    np.save(buffer, np.array([result["vector"] for result in results], np.float32))
    return buffer.getvalue()


def _check_vectors(request: Request) -> None:
    if request.output is not None and not request.output.endswith((".npy", ".json")):
        raise UserError(f"embeddings are written as .npy or .json; given --output {request.output}")
    if not request.text and request.input is None and sys.stdin.isatty():
        raise UserError("give the texts to embed by --text, --input or standard input")


USES = (
    Use(
        name="embed",
        run=vectors,
        help="vectors of texts",
        options=SETTINGS,
        check=_check_vectors,
        several="vectors",
        as_json=True,
        write={".npy": npy},
    ),
    Use(
        name="similar",
        run=similar,
        lines=scored_lines,
        help="lines of a file by the cosine of their vectors with that of a text",
        options=SETTINGS,
        ranks=True,
        several="vectors",
    ),
    Use(
        name="search",
        run=search,
        lines=scored_lines,
        help="lines of a file that answer a text, with the prompts and the similarity of the model",
        options=SETTINGS,
        ranks=True,
        several="vectors",
    ),
)
