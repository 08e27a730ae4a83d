"""Spans of words: edge probes, and clusters of phrases."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ptm_jax.core.errors import UserError
from ptm_jax.tasks.probes import linear_probes, span_probes, span_targets
from ptm_jax.tasks.probes.questions import Answer, Part, Question
from ptm_jax.tasks.probes.span_probes import Edges
from ptm_jax.tasks.probes.span_targets import Targets

PHRASES = 3000, 500
"""Phrases that are clustered, and that are assigned to the clusters, at most."""


def edges(question: Question, train: Part, held: Part, counts: dict[str, int]) -> Answer:
    """Returns the micro F1 of edge probes of the layers 0 to n, beside a control task."""
    parts = _targets(question, train, held)
    names = sorted({name for labels in parts[0].labels for name in labels})
    unseen = sum(name not in names for labels in parts[1].labels for name in labels)
    parts = [
        Edges(part.states, spans, _columns(names, labels))
        for part, (spans, labels) in zip((train, held), parts, strict=True)
    ]
    params = span_probes.train(parts[0], seed=question.seed)
    scores = span_probes.f1(params, parts[1], unseen)
    types = [_texts(part, one) for part, one in zip((train, held), parts, strict=True)]
    rows = np.concatenate([part.targets for part in parts])
    train_rows = np.arange(len(types[0]))
    drawn = rows[linear_probes.control([*types[0], *types[1]], train_rows, question.seed)]
    fakes = [parts[0]._replace(targets=drawn[: len(types[0])])]
    fakes += [parts[1]._replace(targets=drawn[len(types[0]) :])]
    control = span_probes.f1(span_probes.train(fakes[0], seed=question.seed), fakes[1])
    common = parts[1].targets[:, parts[0].targets.sum(0).argmax()].sum()
    total = parts[1].targets.sum() + unseen
    baselines = {
        "most frequent label": float(2 * common / (len(parts[1].targets) + total)),
        "expected layer": linear_probes.expected_layer(scores),
        "centre of gravity": linear_probes.centre_of_gravity(params["mix"]),
    }
    layers = {"f1 of layers 0 to n": scores, "gain": np.diff(scores, prepend=scores[0])}
    layers |= {"control task": control, "selectivity": scores - control}
    counts |= {"labels": len(names), "train": len(types[0]), "test": len(types[1])}
    return Answer(layers=layers, baselines=baselines, counts=counts)


def phrases(question: Question, train: Part, held: Part, counts: dict[str, int]) -> Answer:
    """Returns the normalised mutual information of clusters and labels (Jawahar et al. 2019,
    section 3): k-means of the first and last state of a phrase, their product and difference."""
    from sklearn.cluster import KMeans
    from sklearn.metrics import normalized_mutual_info_score

    draw, vectors, labels = np.random.default_rng(question.seed), [], []
    targets = _targets(question, train, held)
    for part, (spans, names), limit in zip((train, held), targets, PHRASES, strict=True):
        chosen = np.sort(draw.permutation(len(spans))[:limit])
        first, last = (np.float32(part.states[at]) for at in (spans[chosen, 0] - (0, 1)).T)
        vectors.append(np.concatenate([first, last, first * last, first - last], -1))
        labels.append([names[row][0] for row in chosen])
    count = len({*labels[0]})
    if len(labels[0]) <= count:
        raise UserError(f"there are {len(labels[0])} phrases for {count} clusters; give more text")
    scores = []
    for layer in range(vectors[0].shape[1]):
        means = KMeans(count, n_init=3, random_state=question.seed).fit(vectors[0][:, layer])
        clusters = means.predict(vectors[1][:, layer])
        scores.append(normalized_mutual_info_score(labels[1], clusters))
    drawn = draw.integers(0, count, len(labels[1]))
    baselines = {"nmi of drawn clusters": float(normalized_mutual_info_score(labels[1], drawn))}
    counts |= {"clusters": count, "train": len(labels[0]), "test": len(labels[1])}
    return Answer(layers={"nmi": np.array(scores)}, baselines=baselines, counts=counts)


def _targets(question: Question, train: Part, held: Part) -> list[Targets]:
    parts = [
        span_targets.targets_of(part.sentences, question.label, question.seed)
        for part in (train, held)
    ]
    sides = sorted({part.spans.shape[1] for part in parts})
    if len(sides) > 1:
        raise UserError("the targets of one file have one span, and of the other two")
    if question.by == "phrases" and sides == [2]:
        raise UserError(f"the label {question.label} has pairs of spans; take --by spans")
    if len({name for labels in parts[0].labels for name in labels}) < 2:
        raise UserError(f"the label {question.label} has one value in the training sentences")
    return parts


def _columns(names: Sequence[str], labels: Sequence[Sequence[str]]) -> np.ndarray:
    columns = {name: column for column, name in enumerate(names)}
    targets = np.zeros((len(labels), len(names)), np.float32)
    for row, several in enumerate(labels):
        targets[row, [columns[name] for name in several if name in columns]] = 1
    return targets


def _texts(part: Part, targets: Edges) -> list[str]:
    """Returns the words of the first span of each target: in a control task a word decides the
    label of its edge, too (Hewitt and Liang 2019, section 2)."""
    words = [word.lower() for sentence in part.sentences for word in sentence.words]
    return [" ".join(words[first:last]) for first, last in targets.spans[:, 0]]
