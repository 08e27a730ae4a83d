"""Tags of words, and the entities of tag sequences.

Schemes of entities:
    lenient   conlleval's rule (Tjong Kim Sang and De Meulder 2003): an entity begins at a tag that
              begins one, or at a change of type
    IOB1, IOB2, IOE1, IOE2, IOBES, BILOU   strict: only valid sequences of the scheme are entities

The strict schemes follow seqeval's tables, including irregular cases of IOE1, and are tested
against it on random tags.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ptm_jax.core.errors import UserError, unknown
from ptm_jax.data.tokenizers import pieces
from ptm_jax.inference import head_scores
from ptm_jax.inference.text import classifying
from ptm_jax.inference.uses import Request, Result, Use
from ptm_jax.nn.heads.crf import decoder_of

if TYPE_CHECKING:
    from ptm_jax.data.tokenizers.tokenizing import Tokenizer
    from ptm_jax.inference.pretrained import Pretrained


HEAD = "tag"

Entity = tuple[str, int, int]
"""Its type, its first word, and the one after its last."""

# Pairs of prefixes, the tag before and the tag here; "=": of one type, "!": of two. "." is any
# prefix.
_RULES: dict[str, tuple[str, str, str]] = {
    "IOB1": ("OI II! BI IB= BB=", "BI= II=", "II! IO IB BO BI! BB="),
    "IOB2": (".B", "BI= II=", "IO II! IB BO BI! BB"),
    "IOE1": ("OI II! EI EE=", "II= IE=", "II! IO IE! EI= EE="),
    "IOE2": ("OI OE EI EE II! IE!", "IE= II=", "E."),
    "IOBES": (".B .S", "BI= BE= II= IE=", "S. E."),
    "BILOU": (".B .U", "BI= BL= II= IL=", "U. L."),
}
SCHEMES = ("lenient", *_RULES)
PREFIXES = "BIOESUL"


class Row(NamedTuple):
    """A row of a sentence: ids, token types, words from `first` to before `last`, and places.
    A place is the position of a word's first piece."""

    ids: np.ndarray
    types: np.ndarray
    first: int
    last: int
    places: np.ndarray


def tag(model: Pretrained, texts: Sequence[str], batch: int) -> list[list[tuple[str, str]]]:
    """`Pretrained.tag`."""
    sentences = [tuple(re.findall(r"[^ \t\r\n]+", text)) for text in texts]
    if () in sentences:
        raise UserError(
            f"text {sentences.index(()) + 1} is empty; give words with blanks between them"
        )
    if HEAD not in model.module.heads:
        raise UserError(
            f"{model.system.name} does not tag words: it has no head {HEAD!r}; fine-tune it with "
            "`ptm train --init MODEL --task NAME --data PATH`"
        )
    classes, tokenizer = model.module.heads[HEAD].classes, model._tokenizer()
    labels = classifying.names_of(model, classes)
    if not labels:
        raise UserError(
            f"{model.system.name} does not name its {classes} classes; fine-tune it on a "
            "task that tags words"
        )
    length = head_scores.length_of(model, labels is model.examples.labels, 128)
    tags = predict(model, labels, records_of(tokenizer, sentences), length, batch)
    return [
        list(zip(words, word_tags, strict=True))
        for words, word_tags in zip(sentences, tags, strict=True)
    ]


def records_of(
    tokenizer: Tokenizer, sentences: Sequence[Sequence[str]]
) -> list[dict[str, np.ndarray]]:
    """Returns the record of every sentence.
    "ids" has the ids of all words, "sizes" the number of pieces of each word."""
    rows = pieces.words_of(tokenizer, sentences)

    def lengths(row):
        return np.array([len(ids) for ids in row], np.int32)

    return [{"ids": np.concatenate(row).astype(np.int32), "sizes": lengths(row)} for row in rows]


def predict(
    model: Pretrained,
    labels: Sequence[str],
    records: Sequence[Mapping[str, np.ndarray]],
    length: int,
    batch: int,
) -> list[tuple[str, ...]]:
    """Predicts the tags of every record's words by the head `tag`."""
    tokenizer = model._tokenizer()
    rows = [list(rows_of(tokenizer, record["ids"], record["sizes"], length)) for record in records]
    groups = [
        [{"input_ids": row.ids, "token_type_ids": row.types}] for several in rows for row in several
    ]
    scores = iter(head_scores.scored(model, HEAD, groups, batch))
    decode = decoder_of(model.module.heads[HEAD])
    numbers = [
        [number for row in several for number in decode(model, next(scores)[row.places])]
        for several in rows
    ]
    return [tuple(labels[int(number)] for number in several) for several in numbers]


def rows_of(tokenizer: Tokenizer, ids: np.ndarray, sizes: np.ndarray, length: int) -> Iterator[Row]:
    """Yields the rows of a sentence.
    Words have `sizes` pieces; a word longer than a row is truncated."""
    room = head_scores.room(tokenizer, False, length)
    ends, begin_of_text = (
        np.cumsum(sizes),
        int(np.flatnonzero(tokenizer.frame(np.array([-1], np.int32))[0] == -1)[0]),
    )
    for first, last in parts(sizes, room):
        begin = ends[first] - sizes[first]
        framed, types = tokenizer.frame(ids[begin : ends[last - 1]][:room])
        yield Row(
            framed,
            types,
            first,
            last,
            begin_of_text + (ends[first:last] - sizes[first:last] - begin),
        )


def parts(sizes: np.ndarray, room: int) -> list[tuple[int, int]]:
    """Returns the word ranges (start, stop) of the rows of a sentence.
    Each row has as many words as fit."""
    ranges, first, used = [], 0, 0
    for number, size in enumerate(sizes):
        if used and used + size > room:
            ranges.append((first, number))
            first, used = number, 0
        used += int(min(size, room))
    return [*ranges, (first, len(sizes))]


def spans_of(tagged: Sequence[tuple[str, str]]) -> list[dict[str, Any]]:
    """Returns the entities of a tagged text as (type, text, first word, word after the last)."""
    words, tags = [word for word, _ in tagged], [tag for _, tag in tagged]
    return [
        {"type": kind, "text": " ".join(words[a:b]), "start": a, "end": b}
        for kind, a, b in entities(tags)
    ]


def entities(tags: Sequence[str], scheme: str = "lenient") -> list[Entity]:
    """Returns the entities of one sentence's tags, in order.
    Raises UserError for an unknown scheme."""
    if scheme not in SCHEMES:
        raise unknown("scheme", scheme, SCHEMES)
    split = [_split(tag) for tag in tags] + [("O", "_")]
    return _lenient(split) if scheme == "lenient" else _strict(split, *_RULES[scheme])


def _split(tag: str) -> tuple[str, str]:
    """Returns (prefix, type) of a tag.
    A tag without a type has type "_"; a tag without a prefix is a type, whose runs are entities.
    Raises UserError for other spellings of a prefix."""
    if len(tag) < 2 or (tag[0] in PREFIXES and tag[1] == "-"):
        return tag[:1], tag[2:] or "_"
    if re.fullmatch(rf"[{PREFIXES}][_.:/|].+|.+[-_.:/|][BIESUL]", tag):
        raise UserError(
            f"the tag {tag!r} has its prefix in another place or form; write B-PER for the first "
            "word of a type PER, I-PER for its other words"
        )
    return "I", tag


def _lenient(tags: Sequence[tuple[str, str]]) -> list[Entity]:
    spans, begin, before = [], 0, ("O", "_")
    for place, (prefix, kind) in enumerate(tags):
        last, last_kind = before
        if last != "O" and (last in "ES" or prefix in "BSO" or last_kind != kind):
            spans.append((last_kind, begin, place))
        if prefix != "O" and (prefix in "BS" or last in "OES" or last_kind != kind):
            begin = place
        before = (prefix, kind)
    return spans


def _strict(tags: Sequence[tuple[str, str]], starts: str, insides: str, ends: str) -> list[Entity]:
    spans, place, before = [], 0, ("O", "_")
    while place < len(tags):
        if not _match(before, tags[place], starts):
            before, place = tags[place], place + 1
            continue
        end = place + 1
        while end < len(tags) and _match(tags[end - 1], tags[end], insides):
            end += 1
        if end < len(tags) and _match(tags[end - 1], tags[end], ends):
            spans.append((tags[place][1], place, end))
        before, place = tags[end - 1], end
    return spans


def _match(before: tuple[str, str], here: tuple[str, str], rules: str) -> bool:
    same = "=" if before[1] == here[1] else "!"
    return any(
        rule[0] in (".", before[0]) and rule[1] in (".", here[0]) and rule[2:] in ("", same)
        for rule in rules.split()
    )


def _results(model: Pretrained, request: Request) -> list[Result]:
    return [
        {
            "text": text,
            "tags": [{"word": word, "tag": tag} for word, tag in pairs],
            "entities": spans_of(pairs),
        }
        for text, pairs in zip(request.text, model.tag(request.text), strict=True)
    ]


def _lines(result: Result) -> Iterator[str]:
    yield " ".join(f"{one['word']}/{one['tag']}" for one in result["tags"])


def _cells(result: Result) -> Mapping[str, Any]:
    return {"text": result["text"], "tags": " ".join(one["tag"] for one in result["tags"])}


USES = (
    Use(
        name="tag",
        run=_results,
        lines=_lines,
        help="a tag for each word of texts",
        several="scores",
        columns=("text", "tags"),
        cells=_cells,
    ),
)
