"""Precision, recall and F1 of entities (`inference.text.tags.entities`)."""

from __future__ import annotations

from collections.abc import Sequence

from ptm_jax.inference.text.tags import entities
from ptm_jax.tasks.metrics.measures import f_of


def entity_scores(
    gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]], scheme: str = "lenient"
) -> dict[str, float]:
    """Precision, recall and F1 of the entities of all sentences together."""
    true = {(i, *entity) for i, tags in enumerate(gold) for entity in entities(tags, scheme)}
    predictions = {
        (i, *entity) for i, tags in enumerate(predicted) for entity in entities(tags, scheme)
    }
    return dict(
        zip(
            ("f1", "precision", "recall"),
            f_of(len(true & predictions), len(predictions), len(true)),
            strict=True,
        )
    )


def surface_scores(
    words: Sequence[Sequence[str]],
    gold: Sequence[Sequence[str]],
    predicted: Sequence[Sequence[str]],
) -> dict[str, float]:
    """F1 over the set of different (spelling, type), WNUT 2017's second measure.
    Derczynski et al. 2017, section 4."""

    def forms(every):
        return {
            (" ".join(sentence[a:b]), kind)
            for sentence, tags in zip(words, every, strict=True)
            for kind, a, b in entities(tags)
        }

    true, predictions = forms(gold), forms(predicted)
    return {"surface_f1": f_of(len(true & predictions), len(predictions), len(true))[0]}
