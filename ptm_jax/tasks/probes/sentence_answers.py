"""States of sentences: SentEval's probing tasks, and their decomposition into words and roles."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ptm_jax.core.errors import UserError
from ptm_jax.tasks.formats import tabular
from ptm_jax.tasks.probes import linear_probes, tensor_products, word_states
from ptm_jax.tasks.probes.questions import Answer, Part, Question
from ptm_jax.tasks.probes.tensor_products import Products
from ptm_jax.tasks.probes.word_states import WordStates

if TYPE_CHECKING:
    from ptm_jax.inference.pretrained import Pretrained

SPLITS = ("tr", "va", "te")


def sentences(model: Pretrained, question: Question) -> Answer:
    """Returns the accuracy of probes of the states of sentences (Conneau et al. 2018): the training
    split trains them, `va` chooses the epoch, and `te` is measured. Raises UserError."""
    if len(question.data) != 1:
        raise UserError("--by sentences reads one file of tr, va or te, a label, and a sentence")
    rows = sorted(read(Path(question.data[0])), key=lambda row: SPLITS.index(row[0]))
    states, fitting = _states(model, [(row[2],) for row in rows], question)
    too_long = len(rows) - len(fitting)
    rows = [rows[number] for number in fitting]
    counts = {split: sum(row[0] == split for row in rows) for split in SPLITS}
    labels = np.array([row[1] for row in rows])
    test = len(rows) - counts["te"]
    names, ids = np.unique(labels[:test], return_inverse=True)
    if len(names) < 2 or not counts["te"]:
        raise UserError(
            f"{question.data[0]}: expected two labels or more in tr, and sentences of te"
        )
    ids, known = ids.astype(np.int32), np.isin(labels[test:], names)
    probe = linear_probes.train(
        states[:test], ids, len(names), hidden=question.hidden, held=counts["va"] or None,
        seed=question.seed,
    )  # fmt: skip
    tested = np.searchsorted(names, labels[test:][known]).astype(np.int32)
    accuracy = linear_probes.accuracy(probe, states[test:][known], tested) * known.mean()
    frequent = names[np.bincount(ids).argmax()]
    baselines = {"most frequent label": float(np.mean(labels[test:] == frequent))}
    counts |= {"too long": too_long, "labels": len(names)}
    return Answer(layers={"accuracy": accuracy}, baselines=baselines, counts=counts)


def read(file: Path) -> list[tuple[str, str, str]]:
    """Returns (split, label, sentence) of SentEval's files. Raises UserError with the place."""
    rows = []
    for number, line in enumerate(tabular.text_of(file).split("\n"), 1):
        cells = line.rstrip("\r").split("\t")
        if not line.strip():
            continue
        if len(cells) != 3 or cells[0] not in SPLITS or not cells[2].strip():
            raise UserError(
                f"{file}:{number}: expected tr, va or te, a label and a sentence between tabs"
            )
        rows.append((cells[0], cells[1], cells[2]))
    if not any(row[0] == "tr" for row in rows):
        raise UserError(f"{file}: has no sentence of tr")
    return rows


def roles(question: Question, train: Part, held: Part, counts: dict[str, int]) -> Answer:
    """Returns the mean squared error [N+1] of each scheme of roles (`tensor_products`), beside the
    error of the mean state of the training sentences."""
    parts, model = (train, held), train.model
    every = [*train.sentences, *held.sentences]
    types = sorted({word for sentence in every for word in sentence.words})
    alone = word_states.of_sentences(model, [[word] for word in types], word_states.folder())
    vectors = np.zeros((len(types), train.states.shape[-1]), np.float32)
    vectors[list(alone.fitting)] = alone.states[:, 0]
    vectors = (vectors - vectors.mean(0)) / vectors.std()
    states = [_of_part(part, question) for part in parts]
    mean = states[0].mean(0)
    layers = {"mean state": ((states[1] - mean) ** 2).mean((0, 2))}
    numbers = {word: number for number, word in enumerate(types)}
    words = _padded([[numbers[word] for word in sentence.words] for sentence in every], 0)
    stop = len(train.sentences)
    lengths = np.array([len(sentence.words) for sentence in every], np.float32)
    scale = 1 / lengths if question.pool == "mean" else np.ones_like(lengths)
    for name, scheme in tensor_products.schemes(every, question.seed).items():
        known: dict[Hashable, int] = {}
        for role in (role for row in scheme[:stop] for role in row):
            known.setdefault(role, len(known))
        places = _padded([[known.get(role, -1) for role in row] for row in scheme], -1)
        sides = [
            Products(part, words[rows], places[rows], scale[rows])
            for part, rows in zip(states, (slice(stop), slice(stop, None)), strict=True)
        ]
        params = tensor_products.train(sides[0], vectors, len(known), seed=question.seed)
        layers[name] = tensor_products.error(params, sides[1], vectors)
    return Answer(layers=layers, baselines={}, counts=counts)


def _states(model: Pretrained, words: Sequence[Sequence[str]], question: Question) -> WordStates:
    """Returns the states of sentences: of their first token, or of words that are whole texts."""
    first = question.pool == "first"
    folder, memory = word_states.folder(), question.memory
    return word_states.of_sentences(
        model, words, folder, question.batch, first=first, memory=memory
    )


def _of_part(part: Part, question: Question) -> np.ndarray:
    """Returns the states [n, N+1, D] float32 of the sentences of a part."""
    if question.pool == "first":
        words = [sentence.words for sentence in part.sentences]
        return np.asarray(_states(part.model, words, question)[0], np.float32)
    ends = np.cumsum([len(sentence.words) for sentence in part.sentences])
    parts = np.split(part.states, ends[:-1])
    return np.stack([words.mean(0, dtype=np.float32) for words in parts])


def _padded(rows: Sequence[Sequence[int]], value: int) -> np.ndarray:
    table = np.full((len(rows), max(map(len, rows))), value, np.int32)
    for number, row in enumerate(rows):
        table[number, : len(row)] = row
    return table
