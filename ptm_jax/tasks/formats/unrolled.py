"""SuperGLUE's nested and marked tasks as pairs of texts.
Wang et al. 2019, arXiv 1905.00537; row 208.

    wic      two sentences with the word between asterisks in each; also the original files
             (Pilehvar and Camacho-Collados 2019): SPLIT.data.txt, or its folder, with
             SPLIT.gold.txt beside it
    wsc      the text with the pronoun between asterisks, and the noun that it may refer to
    multirc  the passage, and a question with one of its answers; the answers of a question are a
             group
    record   the passage, and the query with one entity of the passage in its gap; the entities of a
             query are a group

Deviation: the paper's baseline classifies the states of WiC's words and WSC's spans; here they are
marked in the text, as in T5 (Raffel et al. 2020, appendix B), so that any classifier of pairs can
be used.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ptm_jax.core.errors import UserError
from ptm_jax.tasks.formats import tabular
from ptm_jax.tasks.formats.tabular import Fields, Row, format_of, needs

DATA = ".data.txt"
"""End of the names of WiC's original files."""


def _label(record: Fields) -> Fields:
    return {"label": record["label"]} if "label" in record else {}


@format_of("wic")
def _wic(path: Path, encoding: str) -> Iterator[Row]:
    path = next(iter(sorted(path.glob("*" + DATA))), path) if path.is_dir() else path
    records = (
        _original_wic(path, encoding)
        if path.name.endswith(DATA)
        else tabular.rows(path, encoding=encoding)
    )
    for place, record in records:
        texts = []
        for number in "12":
            text, start, end = needs(
                place, record, f"sentence{number}", f"start{number}", f"end{number}"
            )
            start, end = int(start), int(end)
            if not 0 <= start < end <= len(text):
                where = f"outside sentence{number} of {len(text)} characters"
                raise UserError(f"{place}: the word from {start} to {end} lies {where}")
            texts.append(f"{text[:start]}* {text[start:end]} *{text[end:]}")
        yield (
            place,
            {
                "first": texts[0],
                "second": texts[1],
                "index": record.get("idx", 0),
                **_label(record),
            },
        )


def _original_wic(path: Path, encoding: str) -> Iterator[Row]:
    """The original's lines of a word, its part of speech and places as 2-5, and two texts of words,
    as SuperGLUE's rows."""
    gold = path.with_name(path.name.removesuffix(DATA) + ".gold.txt")
    labels = (
        [line.strip() for _, line in tabular.lines_of(gold, encoding)] if gold.is_file() else None
    )
    every = list(tabular.lines_of(path, encoding))
    if labels is not None and len(labels) != len(every):
        raise UserError(
            f"{path} has {len(every)} lines and {gold} has {len(labels)}; both must have as many"
        )
    for (number, line), label in zip(every, labels or [None] * len(every), strict=True):
        place, cells = f"{path}:{number}", line.split("\t")
        places = cells[2].split("-") if len(cells) == 5 else ()
        if (
            len(places) != 2
            or not all(one.isdigit() for one in places)
            or label not in (None, "T", "F")
        ):
            raise UserError(
                f"{place}: expected word, part of speech, places as 2-5, and two texts; "
                f"given {line[:40]!r}"
            )
        record = {"idx": number - 1} | ({} if label is None else {"label": label == "T"})
        for side, at, text in zip("12", map(int, places), cells[3:], strict=True):
            words = text.split(" ")
            start = len(" ".join([*words[:at], ""]))
            record |= {
                f"sentence{side}": text,
                f"start{side}": start,
                f"end{side}": start + len("".join(words[at : at + 1])),
            }
        yield place, record


@format_of("wsc")
def _wsc(path: Path, encoding: str) -> Iterator[Row]:
    for place, record in tabular.rows(path, encoding=encoding):
        text, target = needs(place, record, "text", "target")
        noun, at, pronoun = needs(place, target, "span1_text", "span2_index", "span2_text")
        words, size = text.split(" "), len(pronoun.split())
        if not 0 <= int(at) <= len(words) - size:
            raise UserError(
                f"{place}: the pronoun's place {at} lies outside the text of {len(words)} words"
            )
        marked = [
            *words[: int(at)],
            "*",
            *words[int(at) : int(at) + size],
            "*",
            *words[int(at) + size :],
        ]
        yield (
            place,
            {
                "first": " ".join(marked),
                "second": noun,
                "index": record.get("idx", 0),
                **_label(record),
            },
        )


@format_of("multirc")
def _multirc(path: Path, encoding: str) -> Iterator[Row]:
    for place, record in tabular.rows(path, encoding=encoding):
        passage, number = needs(place, record, "passage", "idx")
        text, questions = needs(place, passage, "text", "questions")
        for question in questions:
            asked, answers, at = needs(place, question, "question", "answers", "idx")
            for answer in answers:
                words, which = needs(place, answer, "text", "idx")
                label = {"label": str(int(answer["label"]))} if "label" in answer else {}
                index = {"passage": number, "question": at, "answer": which}
                group = {"index": index, "group": f"{number}/{at}"}
                yield place, {"first": text, "second": f"{asked} {words}", **group, **label}


@format_of("record")
def _record(path: Path, encoding: str) -> Iterator[Row]:
    for place, entry in tabular.rows(path, encoding=encoding):
        passage, queries = needs(place, entry, "passage", "qas")
        text, spans = needs(place, passage, "text", "entities")
        for span in spans:
            if not 0 <= span["start"] <= span["end"] < len(text):
                raise UserError(
                    f"{place}: the entity from {span['start']} to {span['end']} lies outside "
                    "the passage"
                )
        entities = list(dict.fromkeys(text[span["start"] : span["end"] + 1] for span in spans))
        passage = text.replace("@highlight\n", "- ")
        for query in queries:
            gap, number = needs(place, query, "query", "idx")
            answers = (
                [answer["text"] for answer in query["answers"]] if "answers" in query else None
            )
            for entity in entities:
                label = {} if answers is None else {"label": str(int(entity in answers))}
                yield place, {
                    "first": passage, "second": gap.replace("@placeholder", entity),
                    "index": number, "group": number,
                    "facts": {"entity": entity, "answers": answers}, **label,
                }  # fmt: skip
