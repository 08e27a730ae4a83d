"""Precision, recall and F1 of each class, with its number of gold examples."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ptm_jax.inference.text.tags import entities
from ptm_jax.tasks.metrics.measures import f_of


class ClassScores(NamedTuple):
    """Figures of a class: fractions, and the number of gold examples."""

    precision: float
    recall: float
    f1: float
    support: int


def of_sets(
    names: Iterable[str], gold: Sequence[Iterable[str]], predicted: Sequence[Iterable[str]]
) -> dict[str, ClassScores]:
    """Returns the figures of each class of the gold and predicted classes of every example."""
    true = {(number, name) for number, group in enumerate(gold) for name in group}
    chosen = {(number, name) for number, group in enumerate(predicted) for name in group}
    return _figures(names, true, chosen)


def of_classes(
    names: Iterable[str], gold: Sequence[str], predicted: Sequence[str]
) -> dict[str, ClassScores]:
    """Returns the figures of each class where an example has one."""
    return of_sets(names, [[name] for name in gold], [[name] for name in predicted])


def of_entities(
    gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]
) -> dict[str, ClassScores]:
    """Returns the figures of each type of entity, by conlleval's rule."""
    spans = (
        [[(start, end, kind) for kind, start, end in entities(tags)] for tags in every]
        for every in (gold, predicted)
    )
    return of_spans(*spans)


def of_spans(
    gold: Sequence[Iterable[tuple[int, int, str]]],
    predicted: Sequence[Iterable[tuple[int, int, str]]],
) -> dict[str, ClassScores]:
    """Returns the figures of each type of the spans (start, end, type) of every example."""
    true, chosen = (
        {((number, start, end), kind)
         for number, spans in enumerate(every) for start, end, kind in spans}
        for every in (gold, predicted)
    )  # fmt: skip
    return _figures(sorted({kind for _, kind in true | chosen}), true, chosen)


def _figures(
    names: Iterable[str], true: set[tuple[object, str]], chosen: set[tuple[object, str]]
) -> dict[str, ClassScores]:
    figures: dict[str, ClassScores] = {}
    for name in names:
        gold = {pair for pair in true if pair[1] == name}
        positives = {pair for pair in chosen if pair[1] == name}
        f1, precision, recall = f_of(len(gold & positives), len(positives), len(gold))
        figures[name] = ClassScores(precision, recall, f1, len(gold))
    return figures


def lines(figures: Mapping[str, ClassScores]) -> list[str]:
    """Returns a table of the classes with their mean in the last row."""
    rows = [*figures.items(), ("mean", macro(figures))]
    width = min(40, max(len("class"), *(len(name) for name, _ in rows)))
    head = f"  {'class':<{width}}  precision  recall      f1  support"
    return [head] + [
        f"  {name[:width]:<{width}}  {one.precision:9.4f}  {one.recall:6.4f}  {one.f1:6.4f}  "
        f"{one.support:7,}"
        for name, one in rows
    ]


def macro(figures: Mapping[str, ClassScores]) -> ClassScores:
    """Returns the mean of the classes that have gold examples, and the sum of their examples."""
    counted = [one for one in figures.values() if one.support]
    if not counted:
        return ClassScores(0.0, 0.0, 0.0, 0)
    means = (sum(column) / len(counted) for column in list(zip(*counted, strict=True))[:3])
    return ClassScores(*means, sum(one.support for one in figures.values()))
