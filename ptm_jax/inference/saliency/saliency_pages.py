"""A page of the saliency of a text by several methods."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ptm_jax.inference.saliency.attributions import Attribution
from ptm_jax.inference.saliency.html_pages import Page


def page(
    title: str, results: Mapping[str, Attribution], figures: Mapping[str, Mapping[str, float]],
    answer: tuple[int, int] | None = None, second: int | None = None,
) -> Page:  # fmt: skip
    """Returns the page.

    results  {method: the scores of the text}
    figures  {method: its figures of faithfulness}
    answer   the first and the last token of an answer, which is framed
    second   the first token of the second text
    """
    first = next(iter(results.values()))
    data = {
        "pieces": list(first.pieces),
        "target": first.target,
        "mask": first.mask,
        "answer": answer,
        "second": second,
        "methods": [
            {
                "name": name,
                "scores": np.round(one.scores, 6).tolist(),
                "figures": dict(figures[name]),
            }
            for name, one in results.items()
        ],
    }
    document = {
        "target": first.target, "prediction": first.prediction, "measure": first.measure,
        "tokens": list(first.pieces),
        "methods": {
            name: {"scores": one.scores.tolist(), **figures[name]} for name, one in results.items()
        },
    }  # fmt: skip
    about = (
        f"Prediction {first.target}: {first.measure} {first.prediction:.4f}. "
        "Blue tokens carry it, orange and underlined ones speak against it. Choose a method in "
        "the table." + " The answer has a frame." * (answer is not None)
    )
    return Page(title, "saliency", data, about, document)
