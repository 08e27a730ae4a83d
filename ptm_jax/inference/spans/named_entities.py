"""Entities of types that are given as text: GLiNER's rows, scores and decoding.

Zaratiana et al. 2023, arXiv 2311.08526. A row is

    [CLS] <<ENT>> type <<ENT>> type ... <<SEP>> word word ... [SEP]

A tokenizer without the two markers has its mask and separator tokens in their places, so that the
task needs no new row of an embedding.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ptm_jax.core.errors import UserError
from ptm_jax.data.tokenizers import pieces
from ptm_jax.inference import head_scores, inputs
from ptm_jax.inference.decoding.settings import bucket
from ptm_jax.inference.forward_pass import forward
from ptm_jax.inference.text import tags
from ptm_jax.inference.uses import Request, Result, Use

if TYPE_CHECKING:
    from ptm_jax.data.tokenizers.tokenizing import Tokenizer
    from ptm_jax.inference.pretrained import Pretrained


HEAD = "spans"
TYPE, SEPARATOR = "<<ENT>>", "<<SEP>>"
"""The markers before each type and after the last, as the releases spell them."""
WORD = re.compile(r"\w+(?:[-_]\w+)*|\S")
"""A word of a text: letters and digits, with hyphens inside, or another character."""
LENGTH = 384
"""Tokens of a row of a model that was not trained here."""


class Span(NamedTuple):
    """An entity: its first word, the one after its last, its type and its probability."""

    start: int
    end: int
    type: str
    score: float


class Markers(NamedTuple):
    """Ids of the marker before a type and of the one after the last type."""

    type: int
    separator: int


def markers_of(tokenizer: Tokenizer) -> Markers:
    """Returns the markers of a tokenizer: GLiNER's, else its mask and separator.
    Raises UserError where it has neither."""
    vocab = tokenizer.vocab
    known = tokenizer.id(TYPE), tokenizer.id(SEPARATOR)
    if None in known:
        known = vocab.mask, vocab.eos if vocab.sep is None else vocab.sep
    if None in known:
        raise UserError(
            f"the tokenizer has no {TYPE} and {SEPARATOR}, and no mask and separator to take for "
            "them; choose an encoder with these"
        )
    return Markers(*known)


class Prompt:
    """Makes the rows of sentences for types.

    pieces   ids of each type
    """

    def __init__(self, tokenizer: Tokenizer, types: Sequence[str], length: int):
        self.markers, self._tokenizer = markers_of(tokenizer), tokenizer
        self.pieces = pieces.words_of(tokenizer, [types])[0]
        self._room = head_scores.room(tokenizer, False, length)
        framed = tokenizer.frame(np.array([-1], np.int32))[0]
        self._begin = int(np.flatnonzero(framed == -1)[0]) + 1  # places are counted from 1

    def size(self, number: int) -> int:
        """Returns the tokens of a type with its marker."""
        return 1 + len(self.pieces[number])

    @property
    def reserved(self) -> int:
        """Tokens of a row for types: those of all types, or half of the row."""
        total = 1 + sum(map(self.size, range(len(self.pieces))))
        return min(total, self._room // 2)

    def groups(self) -> list[list[int]]:
        """Returns the numbers of the types of each prompt, so that each has room."""
        several: list[list[int]] = [[]]
        used = 1
        for number in range(len(self.pieces)):
            if several[-1] and used + self.size(number) > self.reserved:
                several.append([])
                used = 1
            several[-1].append(number)
            used += self.size(number)
        return several

    def fitting(self, numbers: Sequence[int]) -> list[int]:
        """Returns the first of the types, as many as have room."""
        ends = 1 + np.cumsum([self.size(number) for number in numbers])
        return list(numbers[: max(1, int((ends <= self.reserved).sum()))])

    def parts(self, sizes: np.ndarray) -> list[tuple[int, int]]:
        """Returns the word ranges (start, stop) of the rows of a sentence."""
        return tags.parts(sizes, self._room - self.reserved)

    def row(self, numbers: Sequence[int], words: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
        """Returns the tokens of a row, and the places of types and words (1: the first token)."""
        marker = np.array([self.markers.type], np.int32)
        prompt = [part for number in numbers for part in (marker, self.pieces[number])]
        parts = [*prompt, np.array([self.markers.separator], np.int32), *words]
        begins = self._begin + np.cumsum([0, *map(len, parts)])[:-1]
        ids, types = self._tokenizer.frame(np.concatenate(parts)[: self._room])
        places = begins[2 * len(numbers) + 1 :]
        return {
            "input_ids": ids, "token_type_ids": np.zeros_like(types),
            "type_places": begins[: 2 * len(numbers) : 2].astype(np.int32),
            "word_places": np.where(places < self._begin + self._room, places, 0).astype(np.int32),
        }  # fmt: skip


def words_of(record: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """Returns the ids of each word of a record (`tags.records_of`)."""
    return np.split(record["ids"], np.cumsum(record["sizes"])[:-1])


def decoded(spans: Sequence[Span], nested: bool = False) -> list[Span]:
    """Returns the spans without those that overlap a more probable one, in order of their starts.

    With `nested`, a span may lie inside another one, and no two have both ends in common.
    """
    chosen: list[Span] = []
    for span in sorted(spans, key=lambda span: -span.score):
        if not any(_excludes(span, other, nested) for other in chosen):
            chosen.append(span)
    return sorted(chosen, key=lambda span: span.start)


def _excludes(a: Span, b: Span, nested: bool) -> bool:
    if (a.start, a.end) == (b.start, b.end):
        return True
    inside = (a.start <= b.start and b.end <= a.end) or (b.start <= a.start and a.end <= b.end)
    return a.start < b.end and b.start < a.end and not (nested and inside)


def predict(
    model: Pretrained,
    types: Sequence[str],
    records: Sequence[Mapping[str, np.ndarray]],
    *,
    length: int,
    batch: int,
    threshold: float = 0.5,
    nested: bool = False,
) -> list[list[Span]]:
    """Returns the entities of each record (`tags.records_of`) whose probability is above the
    `threshold`."""
    head_scores.check(model, HEAD)
    prompt = Prompt(model._tokenizer(), types, length)
    rows, origins = [], []
    for number, record in enumerate(records):
        words = words_of(record)
        for first, last in prompt.parts(record["sizes"]):
            for group in prompt.groups():
                rows.append(prompt.row(group, words[first:last]))
                origins.append((number, first, group))
    spans: list[list[Span]] = [[] for _ in records]
    for (number, first, group), scores in zip(origins, _scores(model, rows, batch), strict=True):
        words = len(scores)
        with np.errstate(over="ignore"):
            probabilities = 1 / (1 + np.exp(-scores[..., : len(group)]))  # float32, as the package
        for word, more, place in np.argwhere(probabilities > threshold).tolist():
            if word + more < words:
                begin, score = first + word, float(probabilities[word, more, place])
                spans[number].append(Span(begin, begin + more + 1, types[group[place]], score))
    return [decoded(several, nested) for several in spans]


def _scores(
    model: Pretrained, rows: Sequence[Mapping[str, np.ndarray]], batch: int
) -> list[np.ndarray]:
    """Returns the scores [words, K, T] of each row."""
    results: list[np.ndarray] = [np.zeros(0)] * len(rows)
    types = bucket(max((len(row["type_places"]) for row in rows), default=1))
    for chosen in inputs.batches([row["input_ids"] for row in rows], batch):
        part = [rows[number] for number in chosen]
        ids, mask = inputs.rectangle([row["input_ids"] for row in part], model.vocab.pad)
        fields = inputs.batch_of(model.module.encoder, model.vocab, ids, attention_mask=mask)
        count, width = fields["input_ids"].shape
        for name, size in (("word_places", width), ("type_places", types)):
            fields[name] = np.zeros((count, size), np.int32)
            for place, row in enumerate(part):
                fields[name][place, : len(row[name])] = row[name]
        fields["rows"] = np.arange(count, dtype=np.int32)
        wanted = f"scores/{HEAD}"
        scores = forward(model.module, model.head, (wanted,), model.weights, fields)[wanted]
        for place, number in enumerate(chosen):
            results[number] = np.asarray(scores[place])[
                : int((part[place]["word_places"] > 0).sum())
            ]
    return results


def entities(
    model: Pretrained,
    texts: Sequence[str],
    types: Sequence[str],
    *,
    threshold: float = 0.5,
    nested: bool = False,
    batch: int = 32,
) -> list[list[dict[str, Any]]]:
    """`Pretrained.entities`."""
    types = tuple(dict.fromkeys(name.strip() for name in types))
    if not types or "" in types:
        raise UserError("name the types of entities as words, such as person or city")
    if not 0 <= threshold < 1:
        raise UserError(f"the threshold is {threshold}; it is a probability below 1")
    matches = [list(WORD.finditer(text)) for text in texts]
    if [] in matches:
        raise UserError(f"text {matches.index([]) + 1} is empty; give words")
    words = [[match[0] for match in several] for several in matches]
    records = tags.records_of(model._tokenizer(), words)
    length = head_scores.length_of(model, model.examples.labelled, LENGTH)
    options = {"length": length, "batch": batch, "threshold": threshold, "nested": nested}
    spans = predict(model, types, records, **options)
    return [
        [_shown(text, span, several) for span in spans_of_text]
        for text, several, spans_of_text in zip(texts, matches, spans, strict=True)
    ]


def _shown(text: str, span: Span, words: Sequence[re.Match[str]]) -> dict[str, Any]:
    start, end = words[span.start].start(), words[span.end - 1].end()
    return {
        "start": start, "end": end, "text": text[start:end], "type": span.type,
        "score": span.score,
    }  # fmt: skip


def _results(model: Pretrained, request: Request) -> list[Result]:
    settings = request.settings
    threshold = settings["threshold"]
    types = [name for part in settings["types"] for name in part.split(",")]
    entities_of = model.entities(
        request.text, types, threshold=0.5 if threshold is None else threshold,
        nested=settings["nested"],
    )  # fmt: skip
    return [
        {"text": text, "entities": several}
        for text, several in zip(request.text, entities_of, strict=True)
    ]


def _lines(result: Result) -> Iterator[str]:
    yield result["text"]
    for one in result["entities"]:
        yield f"  {one['score']:7.4f}  {one['type']}: {one['text']}"


def _check(request: Request) -> None:
    if not request.settings["types"]:
        raise UserError("--task entities needs the types as text: give --types person city")


USES = (
    Use(
        name="entities",
        run=_results,
        lines=_lines,
        help="spans of texts with types that are given as text",
        options=("types", "threshold", "nested"),
        check=_check,
        columns=("text", "entities"),
    ),
)
