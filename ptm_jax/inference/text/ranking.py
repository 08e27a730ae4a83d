"""Uses of the vectors of texts: print them, and rank lines by their similarity to a text."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ptm_jax.core.errors import UserError
from ptm_jax.inference.pretrained import Pretrained
from ptm_jax.inference.retrieval import other_vectors
from ptm_jax.inference.text.vectors import (
    DOCUMENTS,
    QUERIES,
    SideBySide,
    prompt_for,
    prompts_of,
    similarity,
)
from ptm_jax.inference.uses import Ranking, Request, Result, Use

if TYPE_CHECKING:
    from ptm_jax.inference.loading import Model


SETTINGS = ("pooling", "prompt", "prompt_name", "truncate", "exact")


def form_of(model: Model | SideBySide) -> other_vectors.Sparse | other_vectors.Late | None:
    """Returns the form of a model's vectors; None: a dense array, as of documents and words."""
    return other_vectors.form_of(model) if isinstance(model, Pretrained) else None


def arrays(model: Pretrained, request: Request) -> np.ndarray:
    """Returns the vectors [texts, D] float32. Raises UserError for a model of other vectors."""
    if (form := form_of(model)) is not None:
        raise UserError(
            f"the model gives {form.name}, and this needs one dense vector a text; take --task "
            "search, or --task embed with --output of .jsonl"
        )
    return model.encode(request.text, normalize=None, **request.settings)


def vectors(model: Pretrained, request: Request) -> list[Result]:
    """Returns the vector of each text."""
    if (form := form_of(model)) is not None:
        made = model.encode(request.text, **_options(model, request, DOCUMENTS))
        parts = (made[number] for number in range(len(request.text)))
        return [
            {"text": text, "vector": form.shown(part)}
            for text, part in zip(request.text, parts, strict=True)
        ]
    rows = arrays(model, request)
    return [
        {"text": text, "vector": row.tolist()} for text, row in zip(request.text, rows, strict=True)
    ]


def cosines(model: Pretrained, asked: np.ndarray, stored: np.ndarray) -> np.ndarray:
    """Returns the cosines [q, n] of vectors."""
    return similarity(asked, stored)


def prompted(*names: str) -> Callable[[Pretrained, Request], np.ndarray]:
    """Returns the function of vectors with a prompt before the texts.

    The prompt is the first of the model's prompts `names`, unless one is given.
    """

    def encoded(model: Pretrained, request: Request) -> np.ndarray | list[np.ndarray]:
        if (form := form_of(model)) is None:
            return model.encode(request.text, **_options(model, request, names))
        query = names == QUERIES
        made = model.encode(request.text, query=query, **_options(model, request, names))
        return made if query else form.packed(made)

    return encoded


def prompts(*names: str) -> Callable[[Pretrained, Request], Sequence[str]]:
    """Returns the function of the prompts with which `prompted(*names)`, or without names `arrays`,
    encodes."""
    return lambda model, request: prompts_of(model, _options(model, request, names))


def _options(model: Pretrained, request: Request, names: Sequence[str]) -> dict[str, Any]:
    """Returns the options of `encode`: the user's, and the first of the model's prompts `names`
    where neither is given."""
    options = {name: value for name, value in request.settings.items() if value is not None}
    return {**(prompt_for(model, options, names) if names else {}), **options}


def likeness(
    model: Pretrained, asked: np.ndarray, stored: np.ndarray | list[np.ndarray]
) -> np.ndarray:
    """Returns the similarity of the model, [q, n]; rows of other vectors are `packed`."""
    form = form_of(model)
    return model.similarity(asked, stored if form is None else form.unpacked(stored))


def scored_lines(result: Result) -> Iterator[str]:
    """Yields a text, and the texts near it with their scores."""
    yield result["text"]
    for one in result.get("similar", result.get("found", ())):
        score = one["cosine"] if "cosine" in one else one["score"]
        yield f"  {score:7.4f}  {one['text']}"


def _check_vectors(request: Request) -> None:
    endings = (".npy", ".jsonl", ".csv", ".tsv", ".json")
    if request.output is not None and not request.output.lower().endswith(endings):
        raise UserError(
            f"vectors are written as {', '.join(endings[:-1])} or .json; given --output "
            f"{request.output}"
        )
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
        arrays=arrays,
        columns=("text", "vector"),
    ),
    Use(
        name="similar",
        lines=scored_lines,
        help="lines of a file by the cosine of their vectors with that of a text",
        options=SETTINGS,
        several="vectors",
        columns=("text", "similar"),
        ranking=Ranking(
            stored=arrays,
            asked=arrays,
            scores=cosines,
            prompts=prompts(),
            field="similar",
            score="cosine",
        ),
    ),
    Use(
        name="search",
        lines=scored_lines,
        help="lines of a file that answer a text, with the prompts and the similarity of the model",
        options=SETTINGS,
        several="vectors",
        columns=("text", "found"),
        ranking=Ranking(
            stored=prompted(*DOCUMENTS),
            asked=prompted(*QUERIES),
            scores=likeness,
            prompts=prompts(*DOCUMENTS),
            field="found",
            score="score",
        ),
    ),
)
