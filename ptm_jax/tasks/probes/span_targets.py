"""Labelled spans of sentences, and pairs of spans: the tasks of edge probes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from ptm_jax.core.errors import UserError
from ptm_jax.inference.text import tags
from ptm_jax.tasks.probes import probe_data
from ptm_jax.tasks.probes.probe_data import Sentence, Target


class Targets(NamedTuple):
    """Labelled spans, or pairs of spans.

    spans   [n, 1 or 2, 2] int64: first word and the word after the last, counted through all
            sentences
    labels  names of each target
    """

    spans: np.ndarray
    labels: list[tuple[str, ...]]


def targets_of(sentences: Sequence[Sentence], label: str, seed: int = 0) -> Targets:
    """Returns the targets of sentences.

    label  "targets" of JSON lines and brackets; "segment": runs of tags with B- and I-, as entities
           and chunks; "phrase": subtrees of several words without a gap, by the relation of their
           head; "deprel": each word and its head; other names as in `probe_data.labelled`

    Raises UserError for a label that no word has, or targets of one and of two spans.
    """
    spans, labels, first = [], [], 0
    for sentence in sentences:
        for target in _of_sentence(sentence, label):
            spans.append(np.array(target.spans) + first)
            labels.append(target.labels)
        first += len(sentence.words)
    if not labels:
        words, names = probe_data.labelled(
            sentences, "arc-label" if label == "deprel" else label, seed
        )
        return Targets(np.stack([words, words + 1], -1), [(name,) for name in names.tolist()])
    if len({len(one) for one in spans}) > 1:
        raise UserError("some targets have one span and others two; divide them into two files")
    return Targets(np.array(spans, np.int64), labels)


def segment_f1(
    sentences: Sequence[Sentence], words: np.ndarray, predicted: np.ndarray
) -> np.ndarray:
    """Returns the F1 [K] of the segments of predicted tags [K, n] of words [n]. Other words have
    the tag O."""
    ends = np.cumsum([len(sentence.words) for sentence in sentences])
    spelled = np.full((len(predicted), ends[-1]), "O", object)
    spelled[:, words] = predicted

    def segments(tagged: np.ndarray) -> set[tuple[int, tags.Entity]]:
        parts = enumerate(np.split(tagged, ends[:-1]))
        return {(number, one) for number, part in parts for one in tags.entities(list(part))}

    gold = segments(np.array([row[-1] for one in sentences for row in one.rows], object))
    several = [segments(row) for row in spelled]
    return np.array([2 * len(one & gold) / max(1, len(one) + len(gold)) for one in several])


def _of_sentence(sentence: Sentence, label: str) -> Iterator[Target]:
    if label == "targets":
        yield from sentence.targets
    elif label == "segment" and sentence.heads is None and sentence.rows:
        for kind, begin, end in tags.entities([row[-1] for row in sentence.rows]):
            yield Target(((begin, end),), (kind,))
    elif label == "phrase" and sentence.heads is not None:
        spans, sizes = [(word, word + 1) for word in range(len(sentence.words))], {}
        for word in range(len(sentence.words)):
            node = word
            while node >= 0:
                begin, end = spans[node]
                spans[node] = min(begin, word), max(end, word + 1)
                sizes[node] = sizes.get(node, 0) + 1
                node = sentence.heads[node]
        for word, (begin, end) in enumerate(spans):
            if 1 < sizes[word] == end - begin < len(sentence.words):
                yield Target(((begin, end),), (sentence.rows[word][7].partition(":")[0],))
