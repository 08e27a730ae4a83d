"""Sentences of words with labels or trees, for probes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ptm_jax.core.errors import UserError, unknown
from ptm_jax.core.reading import shown
from ptm_jax.data.trees import treebanks
from ptm_jax.tasks.formats import tabular

COLUMNS = {"upos": 3, "xpos": 4, "deprel": 7}
"""Columns of CoNLL-U with a label of each word; other names are features of column 6."""
ARCS = ("arc", "arc-label")
"""Labels of a pair of words: whether the second is the head of the first, and the relation."""


ANCESTORS = ("parent", "grandparent", "great-grandparent")
"""Labels of a word in brackets: the phrases above it (Liu et al. 2019, appendix A)."""


class Target(NamedTuple):
    """One or two spans (first word, word after the last) of a sentence, and their labels."""

    spans: tuple[tuple[int, int], ...]
    labels: tuple[str, ...]


class Sentence(NamedTuple):
    """Words, their columns, and the places of their heads (-1: the root; None: no tree).
    A sentence of JSON lines has targets in place of columns. One of brackets has its phrases as
    targets, and the columns of a word are its ancestors from above and its tag."""

    words: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    heads: tuple[int, ...] | None
    place: str
    targets: tuple[Target, ...] = ()


class Labelled(NamedTuple):
    """Labels of words, or of pairs of words.

    words   [n, 1 or 2] int64: numbers of words, counted through all sentences
    labels  [n] names
    """

    words: np.ndarray
    labels: np.ndarray


def sentences_of(file: Path) -> list[Sentence]:
    """Returns the sentences of CoNLL-U (.conllu), of JSON lines with spans (.jsonl), of brackets
    (.mrg, .ptb), else of lines with a word first and a tag last, with blank lines between
    sentences. Raises UserError with the place."""
    if file.suffix in (".mrg", ".ptb"):
        return list(_of_brackets(file))
    if file.suffix == ".jsonl":
        sentences = list(_of_json(file))
        if not any(sentence.targets for sentence in sentences):
            raise UserError(f"{file}: no line has a target; give spans with labels")
        return sentences
    if file.suffix != ".conllu":
        return list(_of_columns(file))
    rows = _rows_of(file)
    return [
        Sentence(tree.words, tuple(next(rows)), tree.heads, tree.place)
        for tree in treebanks.read(file)
    ]


def usual_label(sentences: Sequence[Sentence], names: tuple[str, str]) -> str:
    """Returns "targets" for JSON lines, and for spans of brackets, else the name for CoNLL-U or for
    columns."""
    if any(one.targets and (not one.rows or "segment" in names) for one in sentences):
        return "targets"
    return names[sentences[0].heads is None] if sentences else names[0]


def labelled(sentences: Sequence[Sentence], label: str, seed: int = 0) -> Labelled:
    """Returns the labels of the words or pairs of sentences.

    label  "upos", "xpos", "deprel" or a feature of CoNLL-U, as "Number": words without it are left
           out; "tag" of other files; "parent" and others of `ANCESTORS` in brackets; "arc": each
           word with its head, and with another word that is drawn; "arc-label": the relation of
           each word and its head; "targets" of JSON lines, whose spans have one word and one label

    Raises UserError for a label that no word has.
    """
    words, labels, first = [], [], 0
    draw = np.random.default_rng(seed)
    for sentence in sentences:
        for pair, name in _of_sentence(sentence, label, draw):
            words.append([first + place for place in pair])
            labels.append(name)
        first += len(sentence.words)
    if not labels:
        raise unknown("label", label, _names(sentences))
    return Labelled(np.array(words, np.int64), np.array(labels))


def _of_sentence(
    sentence: Sentence, label: str, draw: np.random.Generator
) -> Iterator[tuple[tuple[int, ...], str]]:
    if label == "targets":
        for target in sentence.targets:
            if len(target.labels) > 1 or any(end - begin > 1 for begin, end in target.spans):
                raise UserError(
                    f"{sentence.place}: a target has several words or labels; use --by spans"
                )
            yield tuple(begin for begin, _ in target.spans), target.labels[0]
        return
    if label in ARCS:
        if sentence.heads is None:
            raise UserError(
                f"{sentence.place}: there are no heads; {label} reads CoNLL-U (.conllu)"
            )
        for word, head in enumerate(sentence.heads):
            if head < 0:
                continue
            if label == "arc-label":
                yield (word, head), sentence.rows[word][7].partition(":")[0]
                continue
            yield (word, head), "head"
            others = [i for i in range(len(sentence.words)) if i not in (word, head)]
            if others:
                yield (word, int(draw.choice(others))), "none"
        return
    for place, row in enumerate(sentence.rows):
        if sentence.heads is None:
            value = row[-1] if label == "tag" else ""
            if label in ANCESTORS and sentence.targets:
                value = row[-2 - ANCESTORS.index(label)]
        elif label in COLUMNS:
            value = row[COLUMNS[label]]
            value = value.partition(":")[0] if label == "deprel" else value
        else:
            value = _features(row).get(label, "")
        if value not in ("", "_"):
            yield (place,), value


def _features(row: Sequence[str]) -> dict[str, str]:
    return dict(part.split("=", 1) for part in row[5].split("|") if "=" in part)


def _names(sentences: Sequence[Sentence]) -> list[str]:
    if any(sentence.targets for sentence in sentences):
        return ["tag", *ANCESTORS, "targets"] if sentences[0].rows else ["targets"]
    if any(sentence.heads is None for sentence in sentences):
        return ["tag"]
    features = {name for one in sentences for row in one.rows for name in _features(row)}
    return [*COLUMNS, *ARCS, *sorted(features)]


def _rows_of(file: Path) -> Iterator[list[tuple[str, ...]]]:
    """Yields the columns of the words of each sentence, for a file that `treebanks` reads."""
    rows: list[tuple[str, ...]] = []
    for line in [*tabular.text_of(file).split("\n"), ""]:
        fields = tuple(line.rstrip("\r").split("\t"))
        if fields[0].isdecimal():
            rows.append(fields)
        elif not line.strip() and rows:
            yield rows
            rows = []


def _of_columns(file: Path) -> Iterator[Sentence]:
    rows: list[tuple[str, ...]] = []
    first = 1
    for number, line in enumerate([*tabular.text_of(file).split("\n"), ""], 1):
        fields = tuple(line.split())
        if fields and fields[0] != "-DOCSTART-":
            if len(fields) < 2:
                raise UserError(
                    f"{file}:{number}: a word without a tag; expected at least 2 columns"
                )
            first = first if rows else number
            rows.append(fields)
        elif rows:
            yield Sentence(tuple(row[0] for row in rows), tuple(rows), None, f"{file}:{first}")
            rows = []


def _of_brackets(file: Path) -> Iterator[Sentence]:
    """Yields the sentences of a treebank, without empty elements and marks of functions."""
    for tree in treebanks.read(file):
        names = [re.split("[-=|]", label)[0] or label for label in tree.labels]
        words, rows, phrases, firsts = [], [], [], []
        for node, children in enumerate(tree.children):
            firsts.append(firsts[children[0]] if children else len(words))
            if children and firsts[-1] < len(words):
                phrases.append(Target(((firsts[-1], len(words)),), (names[node],)))
            elif not children and tree.labels[node] != "-NONE-":
                above = [node]
                for _ in ANCESTORS:
                    above.append(tree.heads[above[-1]] if above[-1] >= 0 else -1)
                words.append(tree.words[node])
                rows.append((words[-1], *("_" if n < 0 else names[n] for n in reversed(above))))
        if words:
            yield Sentence(tuple(words), tuple(rows), None, tree.place, tuple(phrases))


def _of_json(file: Path) -> Iterator[Sentence]:
    """Yields the sentences of jiant's edge-probing files (Tenney et al. 2019a)."""
    for place, fields in tabular.rows(file):
        words = tuple(tabular.needed_text(place, fields, "text").split())
        targets = tabular.need(place, fields, "targets")
        if not words or type(targets) is not list:
            raise UserError(f"{place}: expected words in text, and a list of targets")
        yield Sentence(words, (), None, place, tuple(_target(place, words, t) for t in targets))


def _target(place: str, words: Sequence[str], target: dict) -> Target:
    label = tabular.need(place, target, "label")
    labels = tuple(label) if type(label) is list else (label,)
    spans = [tabular.need(place, target, "span1")]
    spans += [target["span2"]] if target.get("span2") is not None else []
    for span in spans:
        whole_numbers = type(span) is list and [type(x) for x in span] == [int, int]
        if not (whole_numbers and 0 <= span[0] < span[1] <= len(words)):
            raise UserError(
                f"{place}: the span {shown(span)} does not fit {len(words)} words; write the first "
                "word, from 0, and the word after the last"
            )
    if not all(isinstance(label, str) for label in labels):
        raise UserError(f"{place}: the label {shown(label)} is no text and no list of texts")
    return Target(tuple((first, last) for first, last in spans), labels)
