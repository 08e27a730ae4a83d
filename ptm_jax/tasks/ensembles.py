"""Several models of a task as one, whose scores are the mean of theirs.

As ULMFiT's two directions (Howard and Ruder 2018, arXiv 1801.06146, section 3.3), the teachers of MT-DNN's distillation (Liu
et al. 2019, arXiv 1904.09482, which takes the mean of probabilities), and one model fine-tuned with several seeds. The mean
of scores is the same rule for classes, tags, numbers and the ends of answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from ptm_jax.core.errors import UserError
from ptm_jax.tasks.evaluating import names_of
from ptm_jax.tasks.pretrained import Output, Pretrained


class Ensemble(Pretrained):
    """Models that read the same ids and have the same task heads, with the mean of their scores in the place of one's.

    Of classes that is the geometric mean of the probabilities, made to add up to 1 again; of numbers, and of the beginning
    and the end of an answer, the mean. What it says of texts by `classify`, `tag` and `answer`, and of the tasks that
    are told by such heads, is the ensemble's; it has no parameters, so it neither generates nor fills masks nor embeds, and
    no conditional random field finds its tags. The models may differ in all but vocabulary, heads and names of classes.

    Raises UserError: fewer than two models, or models that do not fit the first.
    """

    def __init__(self, models: Sequence[Pretrained]):
        if len(models) < 2:
            raise UserError(f"an ensemble of {len(models)}; give at least two models")
        first = models[0]
        for number, model in enumerate(models[1:], 2):
            if what := _differs(first, model):
                raise UserError(f"model {number} has other {what} than the first; an ensemble needs the same")
        for name in ("system", "tokenizer", "vocab", "tower", "published"):
            object.__setattr__(self, name, getattr(first, name))
        object.__setattr__(self, "models", tuple(models))

    def __repr__(self) -> str:
        return f"Ensemble({', '.join(model.system.name for model in self.models)})"

    @property
    def params(self) -> Any:
        """None of its own."""
        raise UserError(
            f"an ensemble of {len(self.models)} models has only the mean of what their task heads say of texts, tokens and "
            "spans; for this take one of them, or the mean of their parameters (`ptm average`)"
        )

    def encode(self, *texts, **options) -> np.ndarray:
        """No: the states of different models have no mean."""
        return self.params

    def __call__(self, *arrays, **options) -> Output:
        """An `Output` of scores alone, the means of all models'. Raises UserError where a head's are not plain arrays."""
        found: dict[str, Any] = {}
        for model in self.models:
            for name, scores in model(*arrays, **options).scores.items():
                parts = scores if isinstance(scores, tuple) else (scores,)
                if not all(isinstance(part, np.ndarray) and part.dtype.kind == "f" for part in parts):
                    raise UserError(f"{model.system.name} answers in steps (head {name!r}), which have no mean; give one")
                found.setdefault(name, []).append(scores)
        mean = lambda *parts: np.mean(parts, 0, np.float64).astype(parts[0].dtype)
        return Output(hidden=None, scores={name: jax.tree.map(mean, *scores) for name, scores in found.items()})


def _differs(first: Pretrained, other: Pretrained) -> str:
    """What keeps two models from being one ensemble; "" where nothing does."""
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
    """{task head: its classes, None where it has none}"""
    return {name: getattr(model.module.heads[name], "classes", None) for name in sorted(model.scored)}


def _named(sizes: dict[str, int | None]) -> str:
    return ", ".join(name if size is None else f"{name} of {size} classes" for name, size in sizes.items()) or "none"
