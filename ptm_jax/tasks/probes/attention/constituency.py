"""Constituents from distances of neighbouring words, without training (Kim et al. 2020, arXiv
2002.00737, "Are pre-trained language models aware of phrases?").

A distance of each two neighbours splits a sentence at the greatest one, and then both parts. The
distances are functions of the states (cos, l1, l2) or of the attention of a head (hellinger, jsd;
Table 1). A bias towards trees that branch to the right may be added (section 3.4).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import jax.numpy as jnp
import numpy as np

from ptm_jax.core.errors import UserError
from ptm_jax.core.types import Array
from ptm_jax.data.trees import treebanks
from ptm_jax.data.trees.parses import Tree
from ptm_jax.tasks.probes import word_states
from ptm_jax.tasks.probes.attention import word_maps
from ptm_jax.tasks.probes.questions import Answer, Question
from ptm_jax.tasks.probes.tree_probes import PUNCTUATION

if TYPE_CHECKING:
    from ptm_jax.inference.pretrained import Pretrained

Span = tuple[int, int]
"""Its first and its last word."""
DRAWS = 5
"""Random trees of a sentence."""


class Bracketed(NamedTuple):
    """A sentence without punctuation and empty elements: its words, and the spans of its phrases,
    without single words and the whole sentence."""

    words: tuple[str, ...]
    spans: frozenset[Span]


def sentences_of(file: Path) -> list[Bracketed]:
    """Returns the sentences of two words or more, of brackets (Penn Treebank) or CoNLL-U (.conllu).

    The phrase of a word in a dependency tree is the word with everything below it; trees that are
    not projective are left out. Raises UserError.
    """
    read = _of_dependencies if file.suffix == ".conllu" else _of_phrases
    trees = [read(tree) for tree in treebanks.read(file)]
    return [one for one in trees if one is not None and len(one.words) > 1]


def _of_phrases(tree: Tree) -> Bracketed:
    words, firsts, spans = [], [], set()
    for word, label, children in zip(tree.words, tree.labels, tree.children, strict=True):
        firsts.append(firsts[children[0]] if children else len(words))
        if children:
            spans.add((firsts[-1], len(words) - 1))
        elif label not in (*PUNCTUATION, "-NONE-"):
            words.append(word)
    return _bracketed(words, spans)


def _of_dependencies(tree: Tree) -> Bracketed | None:
    places = [i for i, label in enumerate(tree.labels) if label != "punct"]
    below: dict[int, set[int]] = {place: set() for place in range(len(tree.heads))}
    for number, place in enumerate(places):
        while place >= 0:
            below[place].add(number)
            place = tree.heads[place]
    words = [several for several in below.values() if several]
    if any(max(several) - min(several) >= len(several) for several in words):
        return None
    spans = {(min(several), max(several)) for several in words}
    return _bracketed([tree.words[place] for place in places], spans)


def _bracketed(words: list[str], spans: set[Span]) -> Bracketed:
    phrases = {(first, last) for first, last in spans if first < last}
    return Bracketed(tuple(words), frozenset(phrases - {(0, len(words) - 1)}))


def of_states(states: Array) -> dict[str, Array]:
    """Returns the distances [N, B, W-1] of the layers above the embeddings."""
    left, right = states[1:, :, :-1], states[1:, :, 1:]
    norms = jnp.linalg.norm(left, axis=-1) * jnp.linalg.norm(right, axis=-1)
    cosine = (left * right).sum(-1) / jnp.maximum(norms, 1e-8)
    difference = left - right
    return {
        "cos": (cosine + 1) / 2,
        "l1": jnp.abs(difference).sum(-1),
        "l2": jnp.linalg.norm(difference, axis=-1),
    }


def of_maps(maps: Array, pairs: Array) -> dict[str, Array]:
    """Returns the distances [B, 1+H, W-1] of a layer: the mean of the heads', and those of each.
    `jsd` is the square root of the Jensen-Shannon divergence."""
    left, right = maps[:, :, :-1], maps[:, :, 1:]
    middle = (left + right) / 2

    def divergence(part):
        ratio = jnp.maximum(part, 1e-12) / jnp.maximum(middle, 1e-12)
        return (part * jnp.log(ratio)).sum(-1)

    squares = (jnp.sqrt(left) - jnp.sqrt(right)) ** 2
    between = (divergence(left) + divergence(right)) / 2
    parts = {"hellinger": squares.sum(-1) / 2, "jsd": jnp.maximum(between, 0)}
    roots = {name: jnp.sqrt(part) for name, part in parts.items()}
    return {
        name: jnp.concatenate([root.mean(1, keepdims=True), root], 1)
        for name, root in roots.items()
    }


def biased(distances: np.ndarray, bias: float) -> np.ndarray:
    """Returns distances [K, W-1] plus bias * mean * (1 - i / (W-2)) at place i (Eq. 3)."""
    count = distances.shape[-1]
    if count < 2:
        return distances
    slope = 1 - np.arange(count) / (count - 1)
    return distances + bias * distances.mean(-1, keepdims=True) * slope


def split(distances: Sequence[float]) -> set[Span]:
    """Returns the spans of the tree of distances [W-1], without the whole sentence: the greatest
    distance, the first of several, divides a span."""
    spans, waiting = set(), [(0, len(distances))]
    while waiting:
        first, last = waiting.pop()
        if first == last:
            continue
        spans.add((first, last))
        best = max(range(first, last), key=distances.__getitem__)
        waiting += [(first, best), (best + 1, last)]
    return spans - {(0, len(distances))}


def scores(parsed: Iterable[tuple[frozenset[Span], Sequence[set[Span]]]]) -> tuple[np.ndarray, int]:
    """Returns the F1 [2, K] of the gold spans of sentences and K trees for each, and the number of
    sentences: the mean F1 of a sentence, and the F1 of all spans. Raises UserError without one.

    A sentence without gold spans has 1 where none is predicted, else 0.
    """
    sums, gold_spans, count = None, 0, 0
    for gold, several in parsed:
        common = np.array([len(spans & gold) for spans in several])
        sizes = np.array([len(spans) for spans in several])
        f1 = np.where(sizes + len(gold), 2 * common / np.maximum(sizes + len(gold), 1), 1.0)
        sums = np.stack([f1, common, sizes]) + (0 if sums is None else sums)
        gold_spans, count = gold_spans + len(gold), count + 1
    if sums is None:
        raise UserError("no sentence has two words and fits into the model")
    f1, common, sizes = sums
    return np.stack([f1 / count, 2 * common / np.maximum(sizes + gold_spans, 1)]), count


def baselines(sentences: Sequence[Bracketed], seed: int = 0) -> dict[str, float]:
    """Returns the mean F1 of trees that branch to the right, to the left, and of random ones, which
    drawn distances give."""
    draw = np.random.default_rng(seed)

    def parsed():
        for one in sentences:
            ramp = np.arange(len(one.words) - 1)
            rows = [-ramp, ramp, *draw.random((DRAWS, len(ramp)))]
            yield one.spans, [split(row.tolist()) for row in rows]

    right, left, *drawn = scores(parsed())[0][0]
    means = {"right branching": right, "left branching": left, "random trees": np.mean(drawn)}
    return {name: float(mean) for name, mean in means.items()}


def answered(
    model: Pretrained, question: Question, choice: Sequence[Bracketed], held: Sequence[Bracketed]
) -> Answer:
    """Returns the mean F1 of every function on the held sentences. The sentences of `choice` choose
    a head of each layer, and one function of all."""
    (tried, count), (tested, held_count) = (_f1(model, question, one) for one in (choice, held))
    layers = {name: f1[0, :, 0] for name, f1 in tested.items()}
    heads = {name: f1[0, :, 1:] for name, f1 in tested.items() if f1.shape[2] > 1}
    for name, by_head in heads.items():
        best = tried[name][0, :, 1:].argmax(1)
        layers[f"{name}, one head"] = np.take_along_axis(by_head, best[:, None], 1)[:, 0]
    name = max(tried, key=lambda one: tried[one][0].max())
    layer, head = np.unravel_index(tried[name][0].argmax(), tried[name][0].shape)
    place = f"{name} of layer {layer + 1}" + (f", head {head}" if head else "")
    sentence_f1, all_spans = tested[name][:, layer, head].tolist()
    figures = baselines(held, question.seed)
    figures |= {f"chosen: {place}": sentence_f1, "its F1 of all spans": all_spans}
    counts = {"sentences": count, "held out": held_count}
    counts["too long"] = len(choice) + len(held) - count - held_count
    return Answer(layers=layers, heads=heads, baselines=figures, counts=counts, first=1)


def _f1(
    model: Pretrained, question: Question, sentences: Sequence[Bracketed]
) -> tuple[dict[str, np.ndarray], int]:
    """Returns the F1 [2, N, 1] of a function of states, or [2, N, 1+H] of one of attention, and the
    number of sentences."""
    records, fitting = word_states.fitting_records(model, [one.words for one in sentences], 0)
    settings = {"batch": question.batch, "memory": question.memory}
    shapes: dict[str, tuple[int, int]] = {}

    def parsed():
        for number, arrays in word_maps.of_sentences(model, records, REDUCTION, **settings):
            one = sentences[fitting[number]]
            shapes.update({name: (*array.shape[:-1], 1)[:2] for name, array in arrays.items()})
            rows = np.concatenate([x.reshape(-1, x.shape[-1]) for x in arrays.values()])
            rows = biased(rows[:, : len(one.words) - 1], question.bias)
            yield one.spans, [split(row) for row in rows.tolist()]

    f1, count = scores(parsed())
    ends = np.cumsum([np.prod(shape) for shape in shapes.values()])
    parts = zip(shapes.items(), np.split(f1, ends[:-1], 1), strict=True)
    return {name: part.reshape(2, *shape) for (name, shape), part in parts}, count


REDUCTION = word_maps.Reduction(of_states, of_maps)
