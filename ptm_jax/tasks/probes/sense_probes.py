"""Senses of words in the states of every layer (Coenen, Reif et al. 2019, arXiv 1906.02715, section
4): the nearest mean of a sense, and the same after a linear map that brings the states of one sense
together and those of other senses of the word apart.

The loss of the map B is the mean cosine of B h and B h' over pairs of different senses, without the
mean over pairs of one sense.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ptm_jax.core.errors import UserError
from ptm_jax.core.types import Array
from ptm_jax.tasks.formats import senses, tabular
from ptm_jax.tasks.probes.probe_data import Sentence
from ptm_jax.tasks.probes.questions import Answer, Part, Question

ByWord = Mapping[str, Mapping[str, Sequence[int]]]
"""{word: {sense: rows of the training states}}."""
BATCH, STEPS, RATE = 64, 500, 1e-3
"""Pairs of each kind in a step, steps, and the rate of Adam."""
PAIRS = 200
"""Pairs of each kind of a word, at most."""


def sentences_of(file: Path) -> list[Sentence]:
    """Returns sentences with a row (word, sense, place) for each word whose sense is annotated.

    A file is Raganato's XML (`tasks.formats.senses`), or a table or JSON lines with the fields
    word, sense, sentence and, if the word has another form in the sentence, its place from 0.
    Raises UserError with the place.
    """
    if file.suffix == ".xml":
        return [
            Sentence(
                tuple(token["token"] for token in tokens),
                tuple((f"{token['lemma']} {token['pos']}", token["senses"][0], str(i))
                      for i, token in enumerate(tokens) if token.get("senses")),
                None, place,
            )
            for place, tokens in senses.of_raganato(file, "utf-8-sig")
        ]  # fmt: skip
    needed = (("word",), ("sense",), ("sentence",))
    return [_sentence(place, row) for place, row in tabular.rows(file, needed=needed)]


def _sentence(place: str, row: tabular.Fields) -> Sentence:
    word, sense, sentence = (
        tabular.needed_text(place, row, name) for name in ("word", "sense", "sentence")
    )
    words = tuple(sentence.split())
    at = row.get("place")
    if at in (None, ""):
        lower = [one.lower() for one in words]
        if word.lower() not in lower:
            raise UserError(f"{place}: {word!r} is no word of the sentence; give its place, from 0")
        at = lower.index(word.lower())
    if not str(at).isdecimal() or int(at) >= len(words):
        raise UserError(f"{place}: the place {at} is none of the {len(words)} words, from 0")
    return Sentence(words, ((word, sense, str(int(at))),), None, place)


def answered(question: Question, train: Part, held: Part, counts: dict[str, int]) -> Answer:
    """Returns the accuracies on the held-out sentences. Words without a training sentence are left
    out. Raises UserError where no word has two senses."""
    known, tested = _annotated(train), _annotated(held)
    by_word: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for word, sense, at in known:
        by_word[word][sense].append(at)
    test = [row for row in tested if row[0] in by_word]
    if not any(len(several) > 1 for several in by_word.values()) or not test:
        raise UserError("no word has two senses in the training sentences and is held out")
    layers, width = train.states.shape[1:]
    b = trained(train.states, by_word, question.rank or width, question.seed)
    eye = np.broadcast_to(np.eye(width, dtype=np.float32), (layers, width, width))
    figures = {
        "nearest mean": accuracy(train.states, held.states, by_word, test, eye),
        "after the map": accuracy(train.states, held.states, by_word, test, b),
    }
    common = {word: max(several, key=lambda one: len(several[one])) for word, several in
              by_word.items()}  # fmt: skip
    hits = [common[word] == sense for word, sense, _ in test]
    counts |= {"train": len(known), "test": len(test), "unknown words": len(tested) - len(test)}
    counts["words with several senses"] = sum(len(several) > 1 for several in by_word.values())
    return Answer(
        layers=figures, baselines={"most frequent sense": float(np.mean(hits))}, counts=counts
    )


def _annotated(part: Part) -> list[tuple[str, str, int]]:
    """Returns the words, their senses, and their rows in the states."""
    starts = np.cumsum([0, *(len(one.words) for one in part.sentences)])
    return [
        (word, sense, int(start) + int(place))
        for start, one in zip(starts, part.sentences, strict=False)
        for word, sense, place in one.rows
    ]


def accuracy(
    known: np.ndarray, states: np.ndarray, by_word: ByWord, test: Sequence[tuple[str, str, int]],
    b: np.ndarray,
) -> np.ndarray:  # fmt: skip
    """Returns the share [N+1] of words whose sense is the one with the mean of the greatest cosine.

    known, states  [words, N+1, D] of the training sentences, and of those of `test`
    b              [N+1, D, K], the map
    """
    means = {
        word: np.stack([np.asarray(known[rows], np.float32).mean(0) for rows in several.values()])
        for word, several in by_word.items()
    }
    right = np.zeros(len(b))
    for word, sense, row in test:
        mapped = np.einsum("snd,ndk->nsk", np.concatenate([means[word], states[row][None]]), b)
        mapped /= np.maximum(np.linalg.norm(mapped, axis=-1, keepdims=True), 1e-8)
        best = np.einsum("nsk,nk->ns", mapped[:, :-1], mapped[:, -1]).argmax(1)
        right += np.array([*by_word[word]])[best] == sense
    return right / max(1, len(test))


def trained(states: np.ndarray, by_word: ByWord, rank: int, seed: int) -> np.ndarray:
    """Returns the map B [N+1, D, K] of each layer. Raises UserError without both kinds of pairs."""
    draw = np.random.default_rng(seed)
    pairs: dict[bool, list[np.ndarray]] = {True: [], False: []}
    for several in by_word.values():
        rows = np.array([(row, i) for i, some in enumerate(several.values()) for row in some])
        both = np.unique(np.sort(draw.integers(0, len(rows), (8 * PAIRS, 2))), axis=0)
        both = rows[both[both[:, 0] != both[:, 1]]]
        alike = both[:, 0, 1] == both[:, 1, 1]
        for kind in pairs:
            pairs[kind].append(draw.permutation(both[alike == kind, :, 0])[:PAIRS])
    same, other = (np.concatenate(pairs[kind]) for kind in (True, False))
    if not len(same) or not len(other):
        raise UserError(
            "no word has two sentences of one sense and one of another sense to train on"
        )
    layers, width = states.shape[1:]
    b = jnp.asarray(draw.normal(size=(layers, width, rank)) / width**0.5, jnp.float32)
    moments = optax.adam(RATE).init(b)
    for _ in range(STEPS):
        rows = [some[draw.integers(0, len(some), BATCH)] for some in (same, other)]
        batch = np.asarray(states[np.concatenate(rows).reshape(-1)], np.float32)
        b, moments = _step(b, moments, batch.transpose(1, 0, 2))
    return np.asarray(b)


def loss(b: Array, states: Array) -> Array:
    """Returns the loss [N+1] of states [N+1, 4 P, D]: P pairs of one sense, P pairs of two."""
    mapped = jnp.einsum("npd,ndk->npk", states, b)
    mapped /= jnp.maximum(jnp.linalg.norm(mapped, axis=-1, keepdims=True), 1e-8)
    cosines = (mapped[:, ::2] * mapped[:, 1::2]).sum(-1)
    same, other = jnp.split(cosines, 2, 1)
    return other.mean(1) - same.mean(1)


@jax.jit
def _step(b: Array, moments: optax.OptState, states: Array) -> tuple[Array, optax.OptState]:
    gradient = jax.grad(lambda b: loss(b, states).sum())(b)
    updates, moments = optax.adam(RATE).update(gradient, moments)
    return b + updates, moments
