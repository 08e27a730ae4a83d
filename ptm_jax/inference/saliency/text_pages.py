"""Views of a model on a text, each a page that a notebook shows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ptm_jax.core.errors import UserError, unknown
from ptm_jax.inference.saliency import attributions, faithfulness, saliency_pages
from ptm_jax.inference.saliency.attention_pages import attention_page, neuron_page
from ptm_jax.inference.saliency.context_pages import Sentence as Sentence
from ptm_jax.inference.saliency.context_pages import context_page
from ptm_jax.inference.saliency.html_pages import Page

if TYPE_CHECKING:
    from ptm_jax.inference.pretrained import Pretrained

DEFAULT = ("integrated_gradients", "gradient_input", "gradient", "occlusion")


def saliency_page(
    model: Pretrained, text: str, *, target: str | None = None, pair: str | None = None,
    methods: Sequence[str] = DEFAULT,
    steps: int = attributions.STEPS, samples: int = attributions.SAMPLES, seed: int = 0,
) -> Page:  # fmt: skip
    """Returns the page of the scores of a text's tokens by several methods, with the faithfulness
    of each. `target` and `pair` are those of `predicted.function_of`. Raises UserError."""
    if min(steps, samples) < 1 or not methods:
        raise UserError("--steps and --samples must be at least 1, and --methods needs a name")
    function = attributions.function_of(model, text, target, pair)
    settings = {"steps": steps, "samples": samples, "seed": seed}
    results = {name: attributions.explained(function, name, **settings) for name in methods}
    figures = {
        name: faithfulness.faithfulness(function, one.scores) for name, one in results.items()
    }
    title = f"{model.system.name}: {next(iter(results.values())).target}"
    ends = np.searchsorted(function.text, (function.place, function.index)).tolist()
    answer = (ends[0], ends[1]) if function.question.kind == "span" else None
    separators = [] if pair is None else np.flatnonzero(function.ids == model.vocab.sep)
    second = int(np.searchsorted(function.text, separators[0])) if len(separators) else None
    return saliency_pages.page(title, results, figures, answer, second)


VIEWS: Mapping[str, Callable[..., Page]] = {
    "saliency": saliency_page,
    "attention": attention_page,
    "neurons": neuron_page,
    "contexts": context_page,
}
"""{name: function of (model, text, options of its own) -> page}."""


def view(model: Pretrained, text: str, by: str = "saliency", **options: object) -> Page:
    """Returns the page of one of `VIEWS`. Raises UserError."""
    if by not in VIEWS:
        raise unknown("view", by, VIEWS)
    return VIEWS[by](model, text, **options)
