"""Texts with a target text: summaries, translations, corrections; for encoders with a decoder.

A prefix selects the task of a model that was trained on several (Raffel et al. 2020, section 2.4).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import numpy as np

from ptm_jax.core.errors import UserError
from ptm_jax.inference import head_scores
from ptm_jax.inference.text.generating import WritesAnswers
from ptm_jax.tasks.formats import json_text, tabular, taskrows
from ptm_jax.tasks.formats.taskdata import Remarks, TaskExamples
from ptm_jax.tasks.formats.taskrows import Record

if TYPE_CHECKING:
    from ptm_jax.core.types import Vocab
    from ptm_jax.data.tokenizers.tokenizing import Tokenizer


class Written(NamedTuple):
    """A source, its target, and its place."""

    source: str
    target: str | None
    place: str
    index: Any = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Targets(TaskExamples, WritesAnswers):
    """Rows of a source and a decoder's target.

    source, target   columns; the first of several that exists
    format           "": tables and JSON; "parallel": two files of lines, NAME.source and
                     NAME.target by their suffix (a language, as multi30k's train.en and train.de);
                     "disfl": Disfl-QA's JSON of original and disfluent
    languages        the suffixes of parallel files
    prefix           text before each source
    answer           maximum number of tokens of a target

    Fields: input_ids, segment_ids, positions, token_type_ids [L], decoder_input_ids,
    decoder_labels, decoder_segment_ids, decoder_positions [L] int32, decoder_weights [L] float32. A
    target has the special tokens of its tokenizer. The decoder's first input is `start`, by default
    padding (T5).
    """

    one_group: ClassVar[bool] = True
    outputs: ClassVar[int] = 0

    source: tuple[str, ...] = ("document", "source", "article", "text")
    target: tuple[str, ...] = ("summary", "target", "highlights")
    format: Literal["", "parallel", "disfl"] = ""
    languages: tuple[str, ...] = ()
    prefix: str = ""
    answer: int = 128
    start: int | None = None
    columns: tuple[str, ...] = ()

    def spec(self, length: int, vocab: Vocab) -> dict[str, tuple[tuple[int, ...], type]]:
        decoder = (
            "decoder_input_ids",
            "decoder_labels",
            "decoder_segment_ids",
            "decoder_positions",
        )
        return taskrows.spec_of(length, along=decoder) | {
            "decoder_weights": ((length,), np.float32)
        }

    def first_token(self, vocab: Vocab) -> int | None:
        return next(
            (i for i in (self.start, vocab.pad, vocab.eos, vocab.sep) if i is not None), None
        )

    def read(
        self, path: str | Path, remarks: Remarks | None = None, labels: bool = True
    ) -> Iterator[Written]:
        for number, (place, fields) in enumerate(self._rows(Path(path), labels)):
            source = _joined(tabular.need(place, fields, *self.source)).strip()
            known = labels or any(name in fields for name in self.target)
            target = _joined(tabular.need(place, fields, *self.target)).strip() if known else None
            if not source or (labels and not target):
                raise UserError(f"{place}: a text is empty; correct the line, or remove it")
            yield Written(self.prefix + source, target, place, fields.get("id", number))

    def _rows(self, path: Path, labels: bool) -> Iterator[tabular.Row]:
        if self.format == "disfl":
            content = json_text.json_of(path, tabular.text_of(path, self.encoding))
            for key, fields in content.items():
                yield (
                    f"{path}: question {key}",
                    {"source": fields["disfluent"], "target": fields["original"], "id": key},
                )
        elif self.format == "parallel":
            fields = (self.source[0], self.target[0])[: 1 + labels]
            files = {
                field: path.with_suffix(f".{name}")
                for field, name in zip(fields, self.languages, strict=False)
            }
            yield from tabular.side_by_side(files, self.encoding)
        else:
            yield from tabular.rows(
                path, columns=self.columns, needed=(self.source,), encoding=self.encoding
            )

    def texts(self, example: Written) -> Iterator[str]:
        yield from filter(None, (example.source, example.target))

    def encode(self, tokenizer: Tokenizer, examples: Sequence[Written]) -> list[Record]:
        source = tokenizer.encode_batch([e.source for e in examples])
        target = tokenizer.encode_batch([e.target or "" for e in examples])
        return [{"source": a, "target": b} for a, b in zip(source, target, strict=True)]

    def shortened(self, ids: np.ndarray, size: int) -> np.ndarray:
        """Returns at most `size` ids of a source."""
        return ids[:size]

    def features(
        self, tokenizer: Tokenizer, records: Sequence[Record], length: int
    ) -> tuple[list[list[Record]], Remarks]:
        size, remarks, groups = head_scores.room(tokenizer, False, length), Remarks(), []
        vocab, limit = tokenizer.vocab, min(self.answer, length)
        within = head_scores.room(tokenizer, False, limit)
        start = self.first_token(vocab)
        for record in records:
            remarks["cut"] += int(len(record["source"]) > size)
            if len(record["target"]) > within:
                remarks[f"targets are longer than {limit} tokens; their ends are cut off"] += 1
            ids, types = tokenizer.frame(self.shortened(record["source"], size))
            labels = tokenizer.frame(record["target"][:within])[0]
            groups.append([taskrows.row_of(
                ids, types, decoder_input_ids=np.append(start, labels[:-1]).astype(np.int32),
                decoder_labels=labels,
                decoder_segment_ids=np.ones(len(labels), np.int32),
                decoder_positions=np.arange(len(labels), dtype=np.int32),
                decoder_weights=np.ones(len(labels), np.float32),
            )])  # fmt: skip
        return groups, remarks


def _joined(text: Any) -> str:
    """A text that is given as a list of sentences, or of their words."""
    return " ".join(map(_joined, text)) if isinstance(text, list) else str(text)
