"""Text classification: the probabilities of the head `classify`, by class name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ptm_jax.core import slots
from ptm_jax.core.errors import UserError
from ptm_jax.inference import head_scores
from ptm_jax.inference.uses import Request, Result, Use
from ptm_jax.objectives.tasks.downstream import label_kind

if TYPE_CHECKING:
    from ptm_jax.inference.pretrained import Pretrained


HEAD = "classify"


class Pairs(slots.Examples):
    """Labelled examples. `of_pairs`: whether every one has two texts."""

    of_pairs: bool = False


class Prediction(NamedTuple):
    """A class and the probability of each class, or a number."""

    label: str
    scores: Mapping[str, float]
    number: float = float("nan")


def predicted(
    labels: Sequence[str], scores: np.ndarray, number: float = float("nan")
) -> Prediction:
    """Returns the prediction from scores [C]."""
    chances = dict(zip(labels, _probabilities(scores, "classes").tolist(), strict=True))
    return Prediction(max(chances, key=chances.get), chances, number)


def classify(
    model: Pretrained, texts: Sequence[str], seconds: Sequence[str] | None, batch_size: int
) -> list[dict[str, float]]:
    """`Pretrained.classify`."""
    if HEAD not in model.module.heads:
        raise UserError(
            f"{model.system.name} does not classify texts: it has no head {HEAD!r}; load a "
            "checkpoint of a class "
            "...ForSequenceClassification, or fine-tune with `ptm train --init MODEL --task NAME`"
        )
    rows = [
        [{"input_ids": ids, "token_type_ids": types}]
        for ids, types in _framed(model, texts, seconds)
    ]
    names, kind = labels_of(model), kind_of(model)
    scores = [
        _probabilities(row, kind).tolist()
        for row in head_scores.scored(model, HEAD, rows, batch_size)
    ]
    return [dict(zip(names, row, strict=True)) for row in scores]


def labels_of(model: Pretrained) -> list[str]:
    """Returns distinct class names: the model's, or LABEL_0, LABEL_1, ..."""
    count = model.module.heads[HEAD].classes
    names = names_of(model, count)
    return list(names) if len(set(names)) == count else [f"LABEL_{i}" for i in range(count)]


def names_of(model: Pretrained, classes: int) -> tuple[str, ...]:
    """Returns the class names in the model's order; () if it has none.

    They are from its fine-tuning task or the published config's `id2label`.
    """
    labels = model.examples.labels
    if isinstance(labels, tuple) and len(labels) == classes:
        return labels
    named = model.published("id2label", dict, {})
    return (
        tuple(str(named[str(i)]) for i in range(classes))
        if set(named) == {str(i) for i in range(classes)}
        else ()
    )


def kind_of(model: Pretrained) -> str:
    """Returns the kind of scores.
    Mutually exclusive `classes`, independent `labels`, or a `number`."""
    default = "number" if model.module.heads[HEAD].classes == 1 else "classes"
    return label_kind(model.system.objective) or default


def _framed(
    model: Pretrained, texts: Sequence[str], seconds: Sequence[str] | None
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Returns (ids, token types) of every text or pair with special tokens."""
    tokenizer = model._tokenizer()
    rows = [(row,) for row in tokenizer.encode_batch(texts)]
    if seconds is not None:
        if len(seconds) != len(texts):
            raise UserError(
                f"{len(texts)} texts and {len(seconds)} pairs; give every text its second"
            )
        rows = [
            (*row, second)
            for row, second in zip(rows, tokenizer.encode_batch(seconds), strict=True)
        ]
    framed = [tokenizer.frame(*row) for row in rows]
    model._check([ids for ids, _ in framed])
    return framed


def _probabilities(scores: np.ndarray, kind: str) -> np.ndarray:
    scores = scores.astype(np.float64)
    if kind == "number":
        return scores
    if kind == "labels":
        return np.exp(-np.logaddexp(0.0, -scores))
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def _results(model: Pretrained, request: Request) -> list[Result]:
    if not request.pair and _reads_pairs(model):
        raise UserError(
            f"{request.model} was trained on pairs of texts; give every --text its --pair, or a "
            "table with --pair-column"
        )
    classes = model.classify(request.text, request.pair or None)
    pairs = [{"pair": second} for second in request.pair] or [{}] * len(request.text)
    results = []
    for text, pair, labels in zip(request.text, pairs, classes, strict=True):
        best = {"label": max(labels, key=labels.get)} if len(labels) > 1 else {}
        results.append({"text": text, **pair, **best, "labels": labels})
    return results


def _reads_pairs(model: Pretrained) -> bool:
    return isinstance(model.examples, Pairs) and model.examples.of_pairs


def lines_of(result: Result) -> Iterator[str]:
    """Yields a text and its classes by falling probability; the number of a regression as it is."""
    yield " | ".join(result[name] for name in ("text", "pair") if name in result)
    number = len(result["labels"]) == 1
    for label, value in sorted(result["labels"].items(), key=lambda pair: -pair[1]):
        yield f"  {value:7.4f}  {label}" if number else f"  {value:6.1%}  {label}"


def cells_of(result: Result) -> Mapping[str, object]:
    """Returns the best class and its probability, or the number of a regression as the score."""
    label = max(result["labels"], key=result["labels"].get)
    return {**result, "label": result.get("label", label), "score": result["labels"][label]}


def check_pairs(request: Request) -> None:
    """Raises UserError unless every text has its pair, or none has one."""
    if request.pair and len(request.pair) != len(request.text):
        raise UserError(
            f"{len(request.text)} texts and {len(request.pair)} pairs; give every --text its --pair"
        )


USES = (
    Use(
        name="classify",
        run=_results,
        lines=lines_of,
        help="classes of texts or pairs of texts",
        options=("pair",),
        check=check_pairs,
        several="scores",
        columns=("text", "pair", "label", "score"),
        cells=cells_of,
    ),
)
