"""Multi-document questions: HotpotQA (Yang et al. 2018, arXiv 1809.09600), the distractor setting.

The two stages of Tu et al. 2020 (arXiv 1911.00484) use two classes of examples of the same files:
`HopDocuments` to rank documents, `HopReading` to read the relevant ones. A file is the official
JSON, or has contexts and facts by columns, as in the Hugging Face library.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from ptm_jax.core.errors import UserError
from ptm_jax.data.tokenizers import pieces
from ptm_jax.inference import head_scores
from ptm_jax.tasks.formats import json_text, tabular, taskdata, taskrows
from ptm_jax.tasks.formats.hops import Hop, named, names_of
from ptm_jax.tasks.formats.json_text import one_text, texts_of
from ptm_jax.tasks.formats.tabular import need, needed_text
from ptm_jax.tasks.formats.taskdata import Remarks, TaskExamples
from ptm_jax.tasks.formats.taskrows import ALONG, Record

if TYPE_CHECKING:
    from ptm_jax.core.types import Vocab
    from ptm_jax.data.tokenizers.tokenizing import Tokenizer


KINDS = ("span", "yes", "no")
"""Kinds of answers."""


class _Hops(TaskExamples):
    """Reading and encoding the files."""

    def read(
        self, path: str | Path, remarks: Remarks | None = None, labels: bool = True
    ) -> Iterator[Hop]:
        text = tabular.text_of(Path(path), self.encoding)
        rows = json_text.json_of(Path(path), text)
        if not isinstance(rows, list):
            raise UserError(f"{path}:1: no list of questions, which HotpotQA's format is")
        places, unique = json_text.Places(path, text), json_text.Unique()
        for number, row in enumerate(rows):
            stated = (
                next((row[name] for name in ("_id", "id") if name in row), None)
                if isinstance(row, dict)
                else None
            )
            index, place = (
                (number, f"{path}: question {number + 1}")
                if stated is None
                else (stated, places.of(str(stated)))
            )
            yield self._hop(unique(place, str(index)), str(index), row, remarks, labels)

    @staticmethod
    def _hop(place, index, row, remarks, labels) -> Hop:
        question = needed_text(place, row, "question")
        documents = tuple(
            (one_text(place, "title", t), texts_of(place, "sentences", s))
            for t, s in _pairs(row, "context", ("title", "sentences"), place)
        )
        if (
            not question.strip()
            or not documents
            or not any("".join(s).strip() for _, s in documents)
        ):
            raise UserError(
                f"{place}: the question or its documents are empty; correct it, or remove it"
            )
        hop = Hop(question, documents, "", place, index)
        if not labels:
            return hop
        answer, sizes = (
            needed_text(place, row, "answer"),
            {title: len(sentences) for title, sentences in documents},
        )
        facts = tuple(
            (str(t), int(n))
            for t, n in _pairs(row, "supporting_facts", ("title", "sent_id"), place)
        )
        if strange := [title for title, _ in facts if title not in sizes]:
            raise UserError(
                f"{place}: a fact names the document {strange[0]!r}, which is not there; "
                "correct the title"
            )
        for _ in [fact for fact in facts if not 0 <= fact[1] < sizes[fact[0]]]:
            taskdata.note(
                remarks,
                "facts name sentences that their documents do not have, and count as missed",
                place,
            )
        hop = hop._replace(
            answer=answer,
            facts=facts,
            kind=answer.lower() if answer.lower() in KINDS[1:] else "span",
        )
        if hop.kind == "span" and _found(hop) is None:
            taskdata.note(
                remarks,
                "answers are in none of the documents of their facts, and are no targets",
                place,
            )
        return hop

    def texts(self, example: Hop) -> Iterator[str]:
        yield example.question
        yield from (example.text(number) for number in range(len(example.documents)))

    def encode(self, tokenizer: Tokenizer, examples: Sequence[Hop]) -> list[Record]:
        """Encodes the tokens of all documents with their document and sentence number (0: the
        title), the names in sentences, and the positions of answer and facts."""
        asked = tokenizer.encode_batch([example.question for example in examples])
        every = [
            example.text(number) for example in examples for number in range(len(example.documents))
        ]
        texts = iter(pieces.pieces_of(tokenizer, every))
        records = []
        for example, question in zip(examples, asked, strict=True):
            read = [next(texts) for _ in example.documents]
            owner = np.repeat(np.arange(len(read)), [len(part.ids) for part in read])
            sentence = [
                _sentences(example, number, part.starts) for number, part in enumerate(read)
            ]
            record = dict(
                zip(
                    ("ids", "starts", "ends"),
                    map(np.concatenate, zip(*read, strict=True)),
                    strict=True,
                )
            )
            record |= {
                "question": question,
                "document": owner,
                "sentence": np.concatenate(sentence),
            }
            record |= named(example)
            titles = [title for title, _ in example.documents]
            facts = [
                number for title, n in example.facts for number in (titles.index(title), n + 1)
            ]
            answer, place = (
                np.array([-1, -1], np.int32),
                _found(example) if example.kind == "span" else None,
            )
            if place is not None:
                answer = taskrows.tokens_of(record, *place[1:], among=owner == place[0])
            kind = KINDS.index(example.kind) if example.kind else -1
            record |= {
                "facts": np.array(facts),
                "gold": np.array(example.gold),
                "answer": answer,
                "kind": np.array([kind]),
            }
            records.append({name: np.asarray(value, np.int32) for name, value in record.items()})
        return records


@dataclasses.dataclass(frozen=True, kw_only=True)
class HopDocuments(_Hops):
    """Rows of a question and one of its documents, `documents` rows per question.
    Missing documents are empty rows.

    Fields: input_ids, segment_ids, positions, token_type_ids [L] int32, `grade` [] int32: 0 for an
    irrelevant document, 1 for a relevant one, 2 for one that also contains the answer (Tu et al.
    2020, section 3.1), -1 for an empty row.
    """

    fill: ClassVar[Mapping[str, float]] = {"grade": -1}

    documents: int = 10

    @property
    def readings(self) -> int:
        return self.documents

    @property
    def outputs(self) -> int:
        """Documents of a question."""
        return self.documents

    def spec(self, length: int, vocab: Vocab) -> dict[str, tuple[tuple[int, ...], type]]:
        return taskrows.spec_of(length, one=("grade",))

    def features(
        self, tokenizer: Tokenizer, records: Sequence[Record], length: int
    ) -> tuple[list[list[Record]], Remarks]:
        size, remarks, groups = head_scores.room(tokenizer, True, length), Remarks(), []
        for record in records:
            rows, held = (
                [],
                set(record["document"][record["answer"][record["answer"] >= 0]].tolist()),
            )
            count = int(record["document"].max()) + 1
            if count > self.documents:
                remarks[
                    f"questions have more than {self.documents} documents; the rest is not read"
                ] += 1
            for number in range(min(count, self.documents)):
                text = record["ids"][record["document"] == number]
                remarks["cut"] += int(len(record["question"]) + len(text) > size)
                ids, types = tokenizer.frame(*taskrows.shortened(record["question"], text, size))
                grade = int(number in record["gold"]) + int(
                    number in record["gold"] and number in held
                )
                rows.append(taskrows.row_of(ids, types, grade=grade))
            blank = {name: np.zeros(1, np.int32) for name in ALONG}
            groups.append(rows + [{**blank, "grade": -1}] * (self.documents - len(rows)))
        return groups, remarks


@dataclasses.dataclass(frozen=True, kw_only=True)
class HopReading(_Hops):
    """Rows of a question and its documents, by default the documents with its facts.
    If they do not fit in a row, the longer document is cut first.

    Fields: input_ids, segment_ids, positions, token_type_ids [L] int32, `answer_start`,
    `answer_end` [] (-1: no span), `answer_kind` [] (the index in `KINDS`, -1 in padding rows),
    `sentence_of` [L]: the number of a token's sentence in the row, 1, 2, .., 0 outside; and for up
    to S = `sentences` sentences:

        facts              [S]   1 on supporting facts, 0 on others, -1 without a sentence
        sentence_document  [S]   1, 2, .., in the order of the row; 0 without a sentence
        sentence_asked     [S]   1 if it shares a name with the question
        sentence_names     [S]   a bit for each name shared by sentences of several documents

    Names are runs of capitalised words and numbers; Tu et al. use named entities and noun phrases.
    """

    fill: ClassVar[Mapping[str, float]] = {
        "answer_start": -1,
        "answer_end": -1,
        "answer_kind": -1,
        "facts": -1,
    }
    outputs: ClassVar[int] = len(KINDS)

    question: int = 64
    sentences: int = 40

    def spec(self, length: int, vocab: Vocab) -> dict[str, tuple[tuple[int, ...], type]]:
        fields = taskrows.spec_of(
            length, along=("sentence_of",), one=("answer_start", "answer_end", "answer_kind")
        )
        of = ("facts", "sentence_document", "sentence_asked", "sentence_names")
        return fields | {name: ((self.sentences,), np.int32) for name in of}

    def features(
        self, tokenizer: Tokenizer, records: Sequence[Record], length: int
    ) -> tuple[list[list[Record]], Remarks]:
        read, remarks = self.readings_of(
            tokenizer, records, length, [record["gold"] for record in records]
        )
        return [[reading.row] for reading in read], remarks

    def readings_of(
        self,
        tokenizer: Tokenizer,
        records: Sequence[Record],
        length: int,
        chosen: Sequence[Sequence[int]],
    ) -> tuple[list[HopRow], Remarks]:
        """Returns the row of each question with its chosen documents."""
        remarks = Remarks()
        return [
            self._reading(tokenizer, r, length, c, remarks)
            for r, c in zip(records, chosen, strict=True)
        ], remarks

    def _reading(self, tokenizer, record, length, chosen, remarks) -> HopRow:
        question = record["question"][: self.question]
        if len(record["question"]) > self.question:
            remarks[
                f"questions are longer than {self.question} tokens; their ends are cut off"
            ] += 1
        parts = [np.flatnonzero(record["document"] == number) for number in chosen]
        room = head_scores.room(tokenizer, True, length) - len(question)
        if room < len(parts):
            raise UserError(
                f"rows of {length} tokens have no room for documents beside a question; make "
                "them longer"
            )
        remarks["cut"] += int(sum(map(len, parts)) > room)
        while sum(map(len, parts)) > room:
            longest = max(range(len(parts)), key=lambda i: len(parts[i]))
            others_length = sum(len(part) for i, part in enumerate(parts) if i != longest)
            others = max((len(part) for i, part in enumerate(parts) if i != longest), default=0)
            parts[longest] = parts[longest][
                : max(room - others_length, min(others, len(parts[longest]) - 1))
            ]
        places = np.concatenate(parts) if parts else np.zeros(0, np.int64)
        marks, types = tokenizer.frame(question, -1 - np.arange(len(places)))
        offset = int(np.flatnonzero(marks < 0)[0]) if len(places) else 0
        ids = np.where(marks < 0, 0, marks).astype(np.int32)
        ids[offset : offset + len(places)] = record["ids"][places]
        row, known = self._fields(record, places, chosen, remarks)
        along = np.zeros(len(ids), np.int32)
        along[offset : offset + len(places)] = row.pop("sentence_of")
        where = {int(place): slot + offset for slot, place in enumerate(places)}
        ends = [where.get(int(place), -1) for place in record["answer"]]
        ends = ends if min(ends) >= 0 else (-1, -1)
        row |= {
            "answer_start": ends[0],
            "answer_end": ends[1],
            "answer_kind": int(record["kind"][0]),
        }
        return HopRow(taskrows.row_of(ids, types, sentence_of=along, **row), offset, places, known)

    def _fields(self, record, places, chosen, remarks):
        """(the fields of the sentences, the document and number of each)."""
        keys = list(
            zip(
                record["document"][places].tolist(),
                record["sentence"][places].tolist(),
                strict=True,
            )
        )
        known = list(dict.fromkeys(key for key in keys if key[1] > 0))
        if len(known) > self.sentences:
            remarks[
                f"questions have more than {self.sentences} sentences; the others are plain text"
            ] += 1
            known = known[: self.sentences]
        number = {key: n for n, key in enumerate(known, 1)}
        facts = set(zip(record["facts"][::2].tolist(), record["facts"][1::2].tolist(), strict=True))
        names = names_of(record, set(known))
        wanted, rank = (
            set(record["asked"].tolist()),
            {int(document): n for n, document in enumerate(chosen, 1)},
        )
        owners: dict[int, set[int]] = {}
        for key in known:
            for name in names.get(key, ()):
                owners.setdefault(name, set()).add(key[0])
        bits = {
            name: 1 << n
            for n, name in enumerate([n for n, of in owners.items() if len(of) > 1][:31])
        }
        row = {
            "sentence_of": [number.get(key, 0) for key in keys],
            "facts": [int(key in facts) for key in known],
            "sentence_document": [rank[key[0]] for key in known],
            "sentence_asked": [int(bool(names.get(key, set()) & wanted)) for key in known],
            "sentence_names": [
                sum(bits.get(name, 0) for name in names.get(key, ())) for key in known
            ],
        }
        return {
            name: np.array(value, np.int64).astype(np.int32) for name, value in row.items()
        }, known


class HopRow(NamedTuple):
    """A row, the offset of its text, its tokens of the record, and its sentences.
    A sentence is (document, sentence)."""

    row: dict[str, Any]
    offset: int
    places: np.ndarray
    sentences: list[tuple[int, int]]


def _pairs(row: Any, name: str, columns: tuple[str, str], place: str) -> list[tuple[Any, Any]]:
    """Pairs, given as pairs or by columns."""
    value = need(place, row, name)
    if isinstance(value, dict):
        return list(zip(*(need(place, value, column) for column in columns), strict=True))
    return [tuple(pair) for pair in value]


def _found(hop: Hop) -> tuple[int, int, int] | None:
    """Returns (document, start, end in characters) of the answer: in a supporting fact, else in its
    document."""
    if not hop.answer:
        return None
    facts = set(hop.facts)
    for number in hop.gold:
        title, sentences = hop.documents[number]
        at = len(title) + 1
        for n, sentence in enumerate(sentences):
            if (title, n) in facts and hop.answer in sentence:
                begin = at + sentence.index(hop.answer)
                return number, begin, begin + len(hop.answer)
            at += len(sentence)
    for number in hop.gold:
        begin = hop.text(number).find(hop.answer)
        if begin >= 0:
            return number, begin, begin + len(hop.answer)
    return None


def _sentences(hop: Hop, number: int, starts: np.ndarray) -> np.ndarray:
    """The sentence of each token, 0 in the title."""
    title, sentences = hop.documents[number]
    begins = len(title) + 1 + np.cumsum([0, *(len(sentence) for sentence in sentences)])
    return np.searchsorted(begins[:-1], starts, side="right")
