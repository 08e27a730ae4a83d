"""`ptm probe`: figures of each layer of a frozen encoder, with their baselines, and a picture."""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from ptm_jax.core.errors import UserError, unknown
from ptm_jax.tasks.probes import (
    linear_probes,
    probe_data,
    sense_probes,
    sentence_answers,
    span_answers,
    span_targets,
    tree_probes,
    word_states,
)
from ptm_jax.tasks.probes.attention import attention_probes, constituency
from ptm_jax.tasks.probes.probe_data import Labelled, Sentence
from ptm_jax.tasks.probes.questions import Answer, Part, Question
from ptm_jax.tasks.probes.tree_probes import ParsedStates
from ptm_jax.tasks.probes.word_states import Rows

if TYPE_CHECKING:
    from ptm_jax.inference.pretrained import Pretrained

LABELS = {
    "labels": ("upos", "tag"), "attention": ("arc", "arc"),
    "spans": ("deprel", "segment"), "phrases": ("phrase", "segment"),
}  # fmt: skip
"""{value of `by`: (label of CoNLL-U, label of columns) where the question has none}."""
One = TypeVar("One")
HELD = 5
"""Every so many sentences of a single file one is held out."""


def answered(
    model: Pretrained, question: Question, say: Callable[[str], None] | None = None
) -> Answer:
    """Trains the probes, and returns their figures on the held-out sentences. Raises UserError.

    say  receives a line with the size of the states, before they are computed
    """
    if question.by not in (kinds := (*_ANSWERS, "sentences", "constituency")):
        raise unknown("probe", question.by, kinds)
    if not 1 <= len(question.data) <= 2:
        raise UserError("give one file, of which a fifth is held out, or two: to train, held out")
    if not model.module.encoder or model.module.encoder.gives_vectors:
        raise UserError(f"{model.system.name} has no layers of states for words; take an encoder")
    if question.by == "sentences":
        return sentence_answers.sentences(model, question)
    if question.by == "constituency":
        parts = _divided([constituency.sentences_of(Path(file)) for file in question.data])
        return constituency.answered(model, question, *parts)
    read = sense_probes.sentences_of if question.by == "senses" else probe_data.sentences_of
    train, held = _divided([read(Path(file)) for file in question.data])
    parts, folder = [], word_states.folder()
    for sentences in (train, held):
        words = [sentence.words for sentence in sentences]
        if question.by == "attention":  # is computed for the pairs alone
            fitting = word_states.fitting_records(model, words, 0)[1]
            states = word_states.WordStates(np.zeros((0, 1, 1), np.float16), fitting)
        else:
            states = word_states.of_sentences(
                model, words, folder, question.batch, memory=question.memory, say=say
            )
        parts.append(Part(model, [sentences[i] for i in states.fitting], states.states))
    counts = {"sentences": len(parts[0].sentences), "held out": len(parts[1].sentences)}
    counts["too long"] = len(train) + len(held) - sum(counts.values())
    if question.by in LABELS:
        label = question.label or probe_data.usual_label(train, LABELS[question.by])
        question = dataclasses.replace(question, label=label)
    answer = _ANSWERS[question.by](question, *parts, counts)
    return dataclasses.replace(answer, label=question.label)


def _divided(files: Sequence[Sequence[One]]) -> tuple[list[One], list[One]]:
    if len(files) == 2:
        return list(files[0]), list(files[1])
    train = [one for i, one in enumerate(files[0]) if i % HELD != HELD - 1]
    held = list(files[0][HELD - 1 :: HELD])
    if not held:
        raise UserError(
            f"there are {len(train)} sentences; at least {HELD} are needed, or two files"
        )
    return train, held


def _labels(question: Question, train: Part, held: Part, counts: dict[str, int]) -> Answer:
    both = train, held
    parts = [probe_data.labelled(one.sentences, question.label, question.seed) for one in both]
    names = sorted({*parts[0].labels})
    if len(names) < 2:
        raise UserError(f"the label {question.label} has the one value {names[0]} in the sentences")
    unseen = ~np.isin(parts[1].labels, names)
    parts[1] = Labelled(parts[1].words[~unseen], parts[1].labels[~unseen])
    if not len(parts[1].labels):
        raise UserError(f"no held-out word has a {question.label} of the training sentences")
    ids = [np.searchsorted(names, part.labels).astype(np.int32) for part in parts]
    rows = [_rows(question, one, part.words) for one, part in zip(both, parts, strict=True)]
    probe = linear_probes.train(
        rows[0], ids[0], len(names), hidden=question.hidden, seed=question.seed
    )
    layers = {"accuracy": linear_probes.accuracy(probe, rows[1], ids[1])}
    types = [_types(part, one.sentences) for one, part in zip(both, parts, strict=True)]
    drawn = linear_probes.control([*types[0], *types[1]], ids[0], question.seed)
    drawn_train, drawn_held = drawn[: len(ids[0])], drawn[len(ids[0]) :]
    fake = linear_probes.train(
        rows[0], drawn_train, len(names), hidden=question.hidden, seed=question.seed
    )
    layers["control task"] = linear_probes.accuracy(fake, rows[1], drawn_held)
    layers["selectivity"] = layers["accuracy"] - layers["control task"]
    if question.label == "tag" and any(name.startswith("B-") for name in names):
        tags = np.array(names)[linear_probes.predictions(probe, rows[1])]
        words = parts[1].words[:, 0]
        layers["segment f1"] = span_targets.segment_f1(held.sentences, words, tags)
    if question.bits:
        length = linear_probes.description_length(rows[0], ids[0], len(names), question.seed)
        layers["bits a label"] = length / len(ids[0])
        layers["compression"] = len(ids[0]) * np.log2(len(names)) / length
    baselines = {
        "most frequent label": float(np.mean(ids[1] == np.bincount(ids[0]).argmax())),
        "most frequent label of the word": _of_word(types, ids),
    }
    attention = question.by == "attention"
    if attention:
        every = [one.reshape(len(one), 1, -1) for one in rows]
        probe = linear_probes.train(every[0], ids[0], len(names), seed=question.seed)
        baselines["all layers"] = float(linear_probes.accuracy(probe, every[1], ids[1])[0])
    else:
        mixed = linear_probes.train(rows[0], ids[0], len(names), mixed=True, seed=question.seed)
        layers["layers 0 to n"] = linear_probes.accuracy(mixed, rows[1], ids[1])
        baselines["expected layer"] = linear_probes.expected_layer(layers["layers 0 to n"])
        baselines["centre of gravity"] = linear_probes.centre_of_gravity(mixed.params["mix"])
    counts |= {"labels": len(names), "train": len(ids[0]), "test": len(ids[1])}
    return Answer(layers=layers, baselines=baselines, counts=counts, first=int(attention))


def _rows(question: Question, part: Part, words: np.ndarray) -> Rows | np.ndarray:
    """Returns the inputs of the probes of words [n, 1], or of pairs [n, 2]."""
    if question.by != "attention":
        return Rows(part.states, words)
    if words.shape[1] == 1:
        raise UserError(
            f"--by attention reads pairs of words; give --label {' or '.join(probe_data.ARCS)}, "
            f"not {question.label}"
        )
    sentences = [one.words for one in part.sentences]
    return attention_probes.features(
        part.model, sentences, words, batch=question.batch, memory=question.memory
    )


def _types(part: Labelled, sentences: Sequence[Sentence]) -> list[str]:
    """Returns the word of each label, or both words of a pair."""
    words = [word.lower() for sentence in sentences for word in sentence.words]
    return [" ".join(words[i] for i in row) for row in part.words]


def _of_word(types: Sequence[Sequence[str]], ids: Sequence[np.ndarray]) -> float:
    """The accuracy of each word's most frequent label in the training sentences."""
    counts: dict[str, Counter] = defaultdict(Counter)
    for word, index in zip(types[0], ids[0].tolist(), strict=True):
        counts[word][index] += 1
    common = int(np.bincount(ids[0]).argmax())
    best = {word: several.most_common(1)[0][0] for word, several in counts.items()}
    return float(np.mean([best.get(w, common) == i for w, i in zip(types[1], ids[1], strict=True)]))


def _trees(question: Question, train: Part, held: Part, counts: dict[str, int]) -> Answer:
    parsed, test = _parsed(train), _parsed(held)
    if len(parsed) < 2 or not test:
        raise UserError(
            "the structural probe needs at least two sentences of two words, and one held out"
        )
    stop = max(1, len(parsed) // 10)
    layers: dict[str, np.ndarray] = {}
    for depth, scores in ((False, tree_probes.distance_scores), (True, tree_probes.depth_scores)):
        b = tree_probes.train(
            parsed[stop:], parsed[:stop], depth=depth, rank=question.rank, seed=question.seed
        )
        layers |= scores(test, b)
    baselines = {"uuas of a chain": tree_probes.chain_uuas(test)}
    return Answer(layers=layers, baselines=baselines, counts=counts)


def _parsed(part: Part) -> list[ParsedStates]:
    parsed, first = [], 0
    for sentence in part.sentences:
        if sentence.heads is None:
            raise UserError(
                f"{sentence.place}: there are no trees; --by structural reads CoNLL-U (.conllu)"
            )
        marks = np.array([row[3] in tree_probes.PUNCTUATION for row in sentence.rows])
        last = first + len(sentence.words)
        if len(sentence.words) > 1:
            parsed.append(ParsedStates(part.states[first:last], sentence.heads, marks))
        first = last
    return parsed


_ANSWERS = {
    "labels": _labels, "structural": _trees, "spans": span_answers.edges,
    "phrases": span_answers.phrases, "roles": sentence_answers.roles, "attention": _labels,
    "senses": sense_probes.answered,
}  # fmt: skip
"""{value of `by`: (question, training part, held-out part, counts) -> answer}."""


def draw(answer: Answer, title: str, path: Path) -> None:
    """Writes a picture: a curve of each figure over the layers."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 4))
    marks = "o", "s", "^", "D", "v", "P", "X"
    shown = [name for name in answer.layers if name not in ("bits a label", "compression")]
    for name, mark in zip(shown, marks, strict=False):
        values = answer.layers[name]
        axes.plot(np.arange(len(values)) + answer.first, values, marker=mark, label=name)
    for name, value in answer.baselines.items():
        if 0 <= value <= 1:
            axes.axhline(value, color="grey", linestyle=":", linewidth=1)
            axes.annotate(name, (answer.first, value), fontsize=8, color="grey", va="bottom")
    top = max([1.0, *(np.nanmax(answer.layers[name]) for name in shown)])
    axes.set(xlabel="layer", title=title, ylim=(min(0, *axes.get_ylim()), top))
    axes.legend()
    figure.tight_layout()
    figure.savefig(path)
    pyplot.close(figure)
