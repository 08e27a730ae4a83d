"""SuperGLUE's nested and marked tasks as pairs of texts (Wang et al. 2019, arXiv 1905.00537; row 208).

    wic      two sentences with the word between asterisks in each
    wsc      the text with the pronoun between asterisks, and the noun that it may stand for
    multirc  the passage, and a question with one of its answers; the answers of a question are a group
    record   the passage, and the query with one entity of the passage in its gap; the entities of a query are a group

Deviation: the paper's baseline reads WiC's words and WSC's spans off the states of their tokens; here they are marked in the
text, as T5 does (Raffel et al. 2020, appendix B), so that any classifier of pairs will do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ptm_jax.core.errors import UserError
from ptm_jax.data import tables

Fields = dict[str, Any]


def _get(place: str, record: Any, *names: str) -> list[Any]:
    """The fields of a record. Raises UserError with its place."""
    for name in names:
        if not isinstance(record, dict) or name not in record:
            there = ", ".join(record) if isinstance(record, dict) else "nothing"
            raise UserError(f"{place} has no field {name}; it has: {there}")
    return [record[name] for name in names]


def _label(record: Fields) -> Fields:
    return {"label": record["label"]} if "label" in record else {}


def wic(path: Path, labels: bool) -> Iterator[tuple[str, Fields]]:
    """Words in context: do they mean the same?"""
    del labels
    for place, record in tables.rows(path):
        texts = []
        for number in "12":
            text, start, end = _get(place, record, f"sentence{number}", f"start{number}", f"end{number}")
            start, end = int(start), int(end)
            if not 0 <= start < end <= len(text):
                where = f"outside sentence{number} of {len(text)} characters"
                raise UserError(f"{place}: the word from {start} to {end} lies {where}")
            texts.append(f"{text[:start]}* {text[start:end]} *{text[end:]}")
        yield place, {"first": texts[0], "second": texts[1], "index": record.get("idx", 0), **_label(record)}


def wsc(path: Path, labels: bool) -> Iterator[tuple[str, Fields]]:
    """Winograd schemas: does the pronoun stand for the noun?"""
    del labels
    for place, record in tables.rows(path):
        text, target = _get(place, record, "text", "target")
        noun, at, pronoun = _get(place, target, "span1_text", "span2_index", "span2_text")
        words, size = text.split(" "), len(pronoun.split())
        if not 0 <= int(at) <= len(words) - size:
            raise UserError(f"{place}: the pronoun's place {at} lies outside the text of {len(words)} words")
        marked = [*words[: int(at)], "*", *words[int(at) : int(at) + size], "*", *words[int(at) + size :]]
        yield place, {"first": " ".join(marked), "second": noun, "index": record.get("idx", 0), **_label(record)}


def multirc(path: Path, labels: bool) -> Iterator[tuple[str, Fields]]:
    """Questions with several right answers, each answer on its own."""
    for place, record in tables.rows(path):
        passage, number = _get(place, record, "passage", "idx")
        text, questions = _get(place, passage, "text", "questions")
        for question in questions:
            asked, answers, at = _get(place, question, "question", "answers", "idx")
            for answer in answers:
                said, which = _get(place, answer, "text", "idx")
                label = {"label": str(int(_get(place, answer, "label")[0]))} if labels or "label" in answer else {}
                place_in = {"passage": number, "question": at, "answer": which}
                yield place, {
                    "first": text, "second": f"{asked} {said}", "index": place_in, "group": f"{number}/{at}", **label,
                }  # fmt: skip


def record(path: Path, labels: bool) -> Iterator[tuple[str, Fields]]:
    """Cloze queries about news: which entity of the passage stands in the gap?"""
    for place, entry in tables.rows(path):
        passage, queries = _get(place, entry, "passage", "qas")
        text, spans = _get(place, passage, "text", "entities")
        for span in spans:
            if not 0 <= span["start"] <= span["end"] < len(text):
                raise UserError(f"{place}: the entity from {span['start']} to {span['end']} lies outside the passage")
        entities = list(dict.fromkeys(text[span["start"] : span["end"] + 1] for span in spans))
        passage = text.replace("@highlight\n", "- ")
        for query in queries:
            gap, number = _get(place, query, "query", "idx")
            answers = [answer["text"] for answer in query.get("answers", ())] if labels or "answers" in query else None
            for entity in entities:
                facts = {"entity": entity, "answers": answers}
                label = {} if answers is None else {"label": str(int(entity in answers))}
                filled = gap.replace("@placeholder", entity)
                yield place, {
                    "first": passage, "second": filled, "index": number, "group": number, "facts": facts, **label,
                }  # fmt: skip


FORMATS: dict[str, Callable[[Path, bool], Iterator[tuple[str, Fields]]]] = {
    "wic": wic, "wsc": wsc, "multirc": multirc, "record": record,
}  # fmt: skip
"""What `Labelled.format` may name of these."""
