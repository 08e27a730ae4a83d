"""Classes of texts: what the head `classify` says of each, by the names that the model was published or trained with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.special import softmax

from ptm_jax.core.errors import UserError
from ptm_jax.data.labelled import Labelled
from ptm_jax.objectives.downstream import Classification
from ptm_jax.tasks import inputs

HEAD = "classify"


def classify(model: Any, texts: Sequence[str], seconds: Sequence[str] | None, batch_size: int) -> list[dict[str, float]]:
    """`Pretrained.classify`."""
    if HEAD not in model.module.heads:
        raise UserError(
            f"{model.system.name} does not classify texts: it has no head {HEAD!r}; load a checkpoint of a class "
            "...ForSequenceClassification, or fine-tune with `ptm train --init MODEL --task NAME`"
        )
    rows = _framed(model, texts, seconds)
    names, kind = labels_of(model), kind_of(model)
    found: list[dict[str, float]] = [{} for _ in rows]
    for chosen in inputs.batches([ids for ids, _ in rows], batch_size):
        ids, mask = inputs.rectangle([rows[i][0] for i in chosen], model.vocab.pad)
        types = inputs.rectangle([rows[i][1] for i in chosen], 0)[0] if inputs.tells_types(model.module.encoder) else None
        scores = _probabilities(model(ids, mask, types).scores[HEAD], kind)
        for number, row in zip(chosen, scores, strict=True):
            found[number] = dict(zip(names, row.tolist(), strict=True))
    return found


def labels_of(model: Any) -> list[str]:
    """Names of the classes: the published config's `id2label`, those of the examples, or LABEL_0, LABEL_1, ..."""
    count = model.module.heads[HEAD].classes
    named = model.published("id2label", dict, {})
    if set(named) == {str(i) for i in range(count)}:
        names = [str(named[str(i)]) for i in range(count)]
    else:
        examples = model.system.examples
        names = list(examples.labels) if isinstance(examples, Labelled) else []
    # Two classes of one name would be one entry.
    return names if len(set(names)) == count else [f"LABEL_{i}" for i in range(count)]


def kind_of(model: Any) -> str:
    """What scores are: of `classes` that exclude each other, of `labels` that do not, or a `number`."""
    objective = model.system.objective
    if isinstance(objective, Classification):
        return objective.kind
    return "number" if model.module.heads[HEAD].classes == 1 else "classes"


def _framed(model: Any, texts: Sequence[str], seconds: Sequence[str] | None) -> list[tuple[np.ndarray, np.ndarray]]:
    """(ids, token types) of every text or pair between its special tokens."""
    tokenizer = model._tokenizer()
    rows = [(row,) for row in tokenizer.encode_batch(texts)]
    if seconds is not None:
        if len(seconds) != len(texts):
            raise UserError(f"{len(texts)} texts and {len(seconds)} pairs; give every text its second")
        rows = [(*row, second) for row, second in zip(rows, tokenizer.encode_batch(seconds), strict=True)]
    found = [tokenizer.frame(*row) for row in rows]
    model._check([ids for ids, _ in found], range(len(found)))
    return found


def _probabilities(scores: np.ndarray, kind: str) -> np.ndarray:
    scores = scores.astype(np.float64)
    if kind == "number":
        return scores
    if kind == "labels":
        return np.exp(-np.logaddexp(0.0, -scores))
    return softmax(scores, axis=-1)
