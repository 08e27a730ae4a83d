"""Texts with a text to be written: summaries, translations, corrections; for encoders with a decoder.

`labels` and the metrics of such a task are its references. A prefix tells a model with many tasks which one it is (Raffel et
al. 2020, section 2.4).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np

from ptm_jax.core.errors import UserError
from ptm_jax.data import tables, taskrows
from ptm_jax.data.taskdata import ALONG, Record, Remarks, TaskExamples


class Written(NamedTuple):
    """A source, the text that is wanted, and where it stands."""

    source: str
    target: str | None
    place: str
    index: Any = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Targets(TaskExamples):
    """Rows of a source and a decoder's target.

    source, target   columns; the first of several that is there
    format           "": tables and JSON; "parallel": two files of lines, NAME.source and NAME.target by their suffix (a
                     language, as multi30k's train.en and train.de); "disfl": Disfl-QA's JSON of original and disfluent
    languages        the suffixes of parallel files
    prefix           stands before every source
    answer           tokens of a target at most

    Fields: input_ids, segment_ids, positions, token_type_ids [L], decoder_input_ids, decoder_labels, decoder_segment_ids,
    decoder_positions [L] int32, decoder_weights [L] float32. A target stands between the special tokens of its tokenizer;
    the decoder's first input is `start`, by default padding (T5's).
    """

    labels: ClassVar[tuple[str, ...]] = ()
    outputs: ClassVar[int] = 0

    source: tuple[str, ...] = ("document", "source", "article", "text")
    target: tuple[str, ...] = ("summary", "target", "highlights")
    format: Literal["", "parallel", "disfl"] = ""
    languages: tuple[str, ...] = ()
    prefix: str = ""
    answer: int = 128
    start: int | None = None
    columns: tuple[str, ...] = ()

    def spec(self, length: int, vocab: Any) -> dict[str, tuple[tuple[int, ...], type]]:
        """{field: (shape of one row, dtype)}."""
        del vocab
        decoder = ("decoder_input_ids", "decoder_labels", "decoder_segment_ids", "decoder_positions")
        whole = {name: ((length,), np.int32) for name in (*ALONG, *decoder)}
        return whole | {"decoder_weights": ((length,), np.float32)}

    def read(self, path: str | Path, remarks: Remarks | None = None, labels: bool = True) -> Iterator[Written]:
        del remarks
        for number, (place, fields) in enumerate(self._rows(Path(path), labels)):
            source = next((fields[name] for name in self.source if name in fields), None)
            target = next((fields[name] for name in self.target if name in fields), None)
            if source is None or (labels and target is None):
                names = self.source if source is None else self.target
                raise UserError(f"{place} has no field {' or '.join(names)}; it has: {', '.join(fields) or 'nothing'}")
            texts = [_joined(text) for text in (source, target)]
            if not texts[0].strip() or (labels and not texts[1].strip()):
                raise UserError(f"{place}: a text is empty; correct the line, or remove it")
            yield Written(self.prefix + texts[0].strip(), texts[1] and texts[1].strip(), place, fields.get("id", number))

    def _rows(self, path: Path, labels: bool) -> Iterator[tuple[str, dict]]:
        if self.format == "disfl":
            whole = tables.json_of(path, tables.text_of(path, self.encoding))
            for key, fields in whole.items():
                yield f"{path}: question {key}", {"source": fields["disfluent"], "target": fields["original"], "id": key}
        elif self.format == "parallel":
            files = [path.with_suffix(f".{language}") for language in self.languages]
            lines = [[line for _, line in tables.lines_of(file, self.encoding)] for file in files[: 1 + labels]]
            if labels and len(lines[0]) != len(lines[1]):
                sizes = f"{files[0]} has {len(lines[0])} lines and {files[1]} {len(lines[1])}"
                raise UserError(f"{sizes}; both must have as many")
            for number, texts in enumerate(zip(*lines, strict=True), 1):
                yield f"{files[0]}:{number}", dict(zip(("source", "target"), texts, strict=False))
        else:
            yield from tables.rows(path, columns=self.columns, needed=(self.source,), encoding=self.encoding)

    def texts(self, example: Written) -> Iterator[str]:
        yield from filter(None, (example.source, example.target))

    def encode(self, tokenizer: Any, examples: Sequence[Written]) -> list[Record]:
        source = tokenizer.encode_batch([e.source for e in examples])
        target = tokenizer.encode_batch([e.target or "" for e in examples])
        return [{"source": a, "target": b} for a, b in zip(source, target, strict=True)]

    def features(self, tokenizer: Any, records: Sequence[Record], length: int) -> tuple[list[list[Record]], Remarks]:
        size, remarks, groups = taskrows.room(tokenizer, False, length), Remarks(), []
        vocab, most = tokenizer.vocab, min(self.answer, length)
        within = taskrows.room(tokenizer, False, most)
        start = next(i for i in (self.start, vocab.pad, vocab.eos, vocab.sep) if i is not None)
        for record in records:
            remarks["cut"] += int(len(record["source"]) > size)
            if len(record["target"]) > within:
                remarks[f"targets are longer than {most} tokens; their ends are cut off"] += 1
            ids, types = tokenizer.frame(record["source"][:size])
            labels = tokenizer.frame(record["target"][:within])[0]
            groups.append([taskrows.row_of(
                ids, types, decoder_input_ids=np.append(start, labels[:-1]).astype(np.int32), decoder_labels=labels,
                decoder_segment_ids=np.ones(len(labels), np.int32),
                decoder_positions=np.arange(len(labels), dtype=np.int32), decoder_weights=np.ones(len(labels), np.float32),
            )])  # fmt: skip
        return groups, remarks


def _joined(text: Any) -> Any:
    """A text that is written as a list of sentences, or of their words."""
    return " ".join(map(_joined, text)) if isinstance(text, list) else text
