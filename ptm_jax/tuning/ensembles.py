"""Ensembles: combine several models of a task by the mean of their scores.

Examples: ULMFiT's two directions (Howard and Ruder 2018, arXiv 1801.06146, section 3.3), the
teachers of MT-DNN's distillation (Liu et al. 2019, arXiv 1904.09482, with the mean of
probabilities), and one model fine-tuned with several seeds. The mean is taken for classes, tags,
numbers and the start and end of answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from ptm_jax.core import slots
from ptm_jax.core.errors import UserError
from ptm_jax.inference import html_tables
from ptm_jax.inference.outputs import Output
from ptm_jax.inference.pretrained import Pretrained
from ptm_jax.inference.text.classifying import names_of


class Ensemble(Pretrained):
    """Models as one model with the mean of their scores.
    They have equal vocabulary, task heads and names of classes.

    The mean of class scores is the normalised geometric mean of the probabilities. `classify`,
    `tag`, `answer` and the tasks on such heads use the mean. An ensemble has no parameters, so it
    does not generate, fill masks or embed, and a conditional random field cannot decode its tags.

    Raises UserError: fewer than two models, or models that do not fit the first.
    """

    def __init__(self, models: Sequence[Pretrained]):
        if len(models) < 2:
            raise UserError(f"an ensemble of {len(models)}; give at least two models")
        first = models[0]
        for number, model in enumerate(models[1:], 2):
            if what := _differs(first, model):
                raise UserError(
                    f"model {number} has other {what} than the first; an ensemble needs the same"
                )
        for name in ("system", "tokenizer", "vocab", "tower", "published"):
            object.__setattr__(self, name, vars(first)[name])
        object.__setattr__(self, "models", tuple(models))

    def __repr__(self) -> str:
        return f"Ensemble({', '.join(model.system.name for model in self.models)})"

    def _repr_html_(self) -> str:
        return html_tables.table(
            ("model",), ((model.system.name,) for model in self.models), "Ensemble"
        )

    @property
    def params(self) -> Any:
        """Raises UserError: an ensemble has none."""
        raise UserError(
            f"an ensemble of {len(self.models)} models has only the mean of the scores of "
            "their task heads; for this "
            "take one of them, or the mean of their parameters (`ptm average`)"
        )

    def encode(self, *texts, **options) -> np.ndarray:
        """Raises UserError: the states of different models have no mean."""
        return self.params

    def __call__(self, *arrays, **options) -> Output:
        """An `Output` with the mean scores alone.
        Raises UserError for a head whose scores are no plain arrays."""
        scores_by_name: dict[str, Any] = {}
        for model in self.models:
            for name, scores in model(*arrays, **options).scores.items():
                parts = scores if isinstance(scores, tuple) else (scores,)
                if not all(
                    isinstance(part, np.ndarray) and part.dtype.kind == "f" for part in parts
                ):
                    raise UserError(
                        f"{model.system.name} answers in steps (head {name!r}), which have "
                        "no mean; give one"
                    )
                scores_by_name.setdefault(name, []).append(scores)

        def mean(*parts):
            return np.mean(parts, 0, np.float64).astype(parts[0].dtype)

        return Output(
            hidden=None,
            scores={name: jax.tree.map(mean, *scores) for name, scores in scores_by_name.items()},
        )


def _differs(first: Pretrained, other: Pretrained) -> str:
    """Returns the first property that must be equal in two models of an ensemble but differs; "" if
    there is none."""
    hashes = [None if model.tokenizer is None else model.tokenizer.hash for model in (first, other)]
    if hashes[0] != hashes[1] or first.vocab.size != other.vocab.size:
        return "words"
    sizes = [_sizes(model) for model in (first, other)]
    if sizes[0] != sizes[1]:
        return f"heads ({_named(sizes[1])}; {_named(sizes[0])})"
    for classes in filter(None, sizes[0].values()):
        mine, its = names_of(first, classes), names_of(other, classes)
        if mine != its:
            return f"classes ({', '.join(its) or 'unnamed'}; {', '.join(mine) or 'unnamed'})"
    return ""


def _sizes(model: Pretrained) -> dict[str, int | None]:
    """{task head: number of its classes, or None}"""
    return {name: slots.classes_of(model.module.heads[name]) for name in sorted(model.scored)}


def _named(sizes: dict[str, int | None]) -> str:
    return (
        ", ".join(
            name if size is None else f"{name} of {size} classes" for name, size in sizes.items()
        )
        or "none"
    )
