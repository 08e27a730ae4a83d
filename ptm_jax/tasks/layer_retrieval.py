"""Translations found by the vectors of each layer (Hu et al. 2020, arXiv 2003.11080: XTREME's
sentence retrieval; row 214).

The vector of a sentence is the mean of a layer over its tokens, with the special ones. A sentence
counts as right where the nearest sentence of the other side, by the cosine, is its translation.
XTREME reads layer 7 of 12 on mBERT, and not the last.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ptm_jax.core.errors import UserError
from ptm_jax.data.languages import codes, translations
from ptm_jax.inference import inputs
from ptm_jax.inference.loading import load
from ptm_jax.inference.text import token_states
from ptm_jax.inference.text.vectors import unit
from ptm_jax.runs.evaluations import METHOD, Evaluation, Report, Request
from ptm_jax.runs.run import best_checkpoint
from ptm_jax.tasks.evaluating import in_language

if TYPE_CHECKING:
    from ptm_jax.inference.pretrained import Pretrained

BLOCK = 1024
"""Sentences whose similarities are in memory at once."""


def report(request: Request) -> Report:
    """Returns the accuracies by layer of each pair of languages. Raises UserError."""
    pairs = codes.grouped(request.data)
    if not pairs or any("-" not in name for name in pairs):
        raise UserError(
            "give translations as --data language:de-en=PATH, as of `ptm prepare`; "
            f"given {' '.join(request.data) or 'none'}"
        )
    model, accuracies, count = load(best_checkpoint(request.model)), {}, 0
    for name, sources in pairs.items():
        texts = list(itertools.chain.from_iterable(map(sentences, sources)))
        count += len(texts)
        first, second = (
            layers_of(in_language(model, code), side, request.batch)
            for code, side in zip(name.split("-"), zip(*texts, strict=True), strict=True)
        )
        accuracies[name] = [found(*both) for both in zip(first, second, strict=True)]
    means = np.mean([np.mean(both, 1) for both in accuracies.values()], 0)
    best = int(means.argmax())
    ways = [way for name in pairs for way in (name, "-".join(name.split("-")[::-1]))]
    rows = [
        [str(layer), *(f"{part[layer][way]:.4f}" for part in accuracies.values() for way in (0, 1))]
        for layer in range(len(means))
    ]
    if request.plot is not None:
        draw(request.plot, accuracies)
    document = {
        "task": request.task,
        "examples": count,
        "metrics": {"accuracy": float(means[best]), "layer": float(best)},
        "layers": accuracies,
        "source": ", ".join(request.data),
    }
    head = f"{request.task}: {count:,} translations, layer 0 is the embeddings"
    return Report(document=document, head=head, width=22, table=[["layer", *ways], *rows])


def sentences(source: str) -> Iterator[tuple[str, str]]:
    """Yields the pairs of sentences of `language:de-en=PATH`. Raises UserError."""
    for document in translations.documents(source):
        yield from zip(document.sentences[::2], document.sentences[1::2], strict=True)


def layers_of(model: Pretrained, texts: Sequence[str], batch: int = 32) -> np.ndarray:
    """Returns the means of the states of each text, [N+1, texts, D]. Long texts are cut.
    Raises UserError for a model without layers."""
    ids = model._tokenizer().encode_batch(list(texts), False)
    room = None if model.limit is None else model.limit - len(inputs.framed(model, ()))
    rows, means = [inputs.framed(model, row[:room]) for row in ids], [None] * len(texts)
    for chosen in inputs.batches(rows, batch):
        states, _ = token_states._states(model, [rows[i] for i in chosen], None, specials=True)
        for number, one in zip(chosen, states, strict=True):
            means[number] = one.mean(1)
    return np.stack(means, 1)


def found(first: np.ndarray, second: np.ndarray) -> tuple[float, float]:
    """Returns the shares of vectors [n, D] whose nearest of the other side is the one of the same
    number, of the first side and of the second."""
    sides = unit(first), unit(second)
    return _share(*sides), _share(*sides[::-1])


def _share(asked: np.ndarray, stored: np.ndarray) -> float:
    starts = range(0, len(asked), BLOCK)
    nearest = [(asked[start : start + BLOCK] @ stored.T).argmax(1) for start in starts]
    return float((np.concatenate(nearest) == np.arange(len(asked))).mean())


def draw(path: str | Path, accuracies: dict[str, list[tuple[float, float]]]) -> None:
    """Draws the mean of both directions by layer. Raises UserError for another kind of file."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.0, 3.5), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for name, both in accuracies.items():
        axes.plot(np.mean(both, 1), marker="o", label=name)
    axes.set(xlabel="layer", ylabel="accuracy", ylim=(0, 1))
    axes.legend()
    try:
        figure.savefig(path)
    except ValueError as error:
        raise UserError(f"{path}: {error}; name a .png, .svg or .pdf") from None


EVALUATIONS = (
    Evaluation(
        name="layer_retrieval", reads="task", run=report,
        refuses=(
            METHOD,
            (
                ("predictions", "adapter", "ensemble", "beside", "languages", "speed"),
                "{option} is not for layer_retrieval; leave it out",
            ),
        ),
        help="translations found by the mean vectors of each layer (--data language:de-en=PATH)",
    ),
)  # fmt: skip
