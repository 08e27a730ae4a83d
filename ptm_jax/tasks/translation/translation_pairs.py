"""Pairs of sentences in two languages, to train and to measure translation on."""

from __future__ import annotations

import csv
import dataclasses
import functools
import io
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from ptm_jax.adapt.modules.bert_in_layers import BERT
from ptm_jax.core.errors import UserError
from ptm_jax.data.languages import codes, translations
from ptm_jax.data.tokenizers import saved
from ptm_jax.tasks.formats import tabular
from ptm_jax.tasks.formats.named_columns import NamedColumns
from ptm_jax.tasks.formats.tabular import Source
from ptm_jax.tasks.formats.targets import Targets, Written
from ptm_jax.tasks.formats.taskdata import Remarks, TaskExamples, halves, note
from ptm_jax.tasks.tables import table_cells as cells
from ptm_jax.training.start.init_models import Initial
from ptm_jax.training.start.other_files import ReadsOthers
from ptm_jax.training.workdirs import OTHER_TOKENIZER

if TYPE_CHECKING:
    from ptm_jax.core.slots import Examples
    from ptm_jax.core.types import Vocab
    from ptm_jax.data.tokenizers.tokenizing import Tokenizer
    from ptm_jax.tasks.formats.taskrows import Record


_WORD = re.compile(r"[^\W\d_][\w-]{0,30}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TranslationPairs(Targets, NamedColumns, ReadsOthers):
    """Rows of a sentence and its translation (`Targets` has the fields of a row).

    The data are `language:de-en=PATH`, from the first language to the second
    (`data.languages.translations`), one source or one to train on and one to hold out; or tables of
    two columns, source and target, or of any with two that are named (`with_columns`).

    context     number of sentences before a sentence of its document that its row has too, with
                the special token `separator` after each (Tiedemann and Scherrer 2017, section 3:
                "2+1" with 1). The target is the sentence alone. A row that is too long loses its
                beginning
    first       number of pairs to train on, the first ones in an order drawn with the seed `draw`,
                so that a smaller number is a part of a larger one. 0: all
    bert        path of a model inside the network that reads the source in its own tokens,
                bert_input_ids and bert_segment_ids [L] int32 (`adapt.modules.bert_in_layers`), or
                of its tokenizer alone, which a run has a copy of
    """

    uses: ClassVar[tuple[str, ...]] = (
        "ptm predict {folder} --input new.txt --output translations.csv",
        "ptm evaluate {folder} --task translation --data more.csv --predictions predictions.csv",
    )

    columns: tuple[str, ...] = ("source", "target")
    context: int = 0
    separator: str = "</s>"
    first: int = 0
    draw: int = 0
    bert: str = ""

    def __post_init__(self):
        if min(self.context, self.first) < 0:
            raise ValueError(
                f"context is {self.context} and first {self.first}; neither may be negative"
            )

    def settled(self, sources: Sequence[str]) -> TaskExamples:
        if not any(str(source).startswith(codes.START) for source in sources):
            return self
        _check(sources)
        languages = [codes.parsed(source)[0] for source in sources]
        if wrong := [pair for pair in languages if pair != languages[0]]:
            raise UserError(
                f"{sources[0]} and {'-'.join(wrong[0])} have other languages, or another "
                "direction; translation is from the first language to the second"
            )
        return dataclasses.replace(self, languages=languages[0])

    def like(self, trained: Examples) -> TaskExamples:
        if not isinstance(trained, TranslationPairs):
            return self
        fields = "languages", "context", "separator", "prefix", "answer", "start", "bert"
        fields += "source", "target", "columns"
        return dataclasses.replace(self, **{name: vars(trained)[name] for name in fields})

    def files(self, sources: Sequence[str]) -> dict[str, Source]:
        named = [str(source) for source in sources]
        if not any(source.startswith(codes.START) for source in named):
            return super().files(sources)
        _check(named)
        for source in named:
            translations.files_of(source)
        if len(named) == 1:
            return halves(named[0])
        return {"train": Source(named[0]), "heldout": Source(named[1])}

    def with_columns(
        self, sources: Sequence[str], texts: Sequence[str], labels: Sequence[str]
    ) -> TaskExamples:
        """Returns a copy that reads a column of the source and one of the translation.
        Raises UserError."""
        if len(texts) != 1 or len(labels) != 1:
            raise UserError(
                "a translation is read from two columns; name that of the source as --text-column "
                "and that of the translation as --label-column"
            )
        path = self.files(sources)["train"].path
        names = list(next(tabular.rows(path), ("", {}))[1])
        source, target = (cells.column_of(name, names, path) for name in (*texts, *labels))
        return dataclasses.replace(self, source=(source,), target=(target,), columns=())

    def reads(self, path: str, labels: bool = True) -> str:
        if self.columns or translations.is_source(path):
            return ""
        return f"{path}: reads {self.source[0]} and its translation {self.target[0]}"

    def _rows(self, path: Path, labels: bool) -> Iterator[tabular.Row]:
        if self.columns and path.suffix in (".csv", ".tsv"):
            _check_width(path, tabular.text_of(path, self.encoding), self.source + self.target)
        yield from super()._rows(path, labels)

    def is_file(self, source: str) -> bool:
        return translations.is_source(source) or super().is_file(source)

    def read(
        self, path: str | Path, remarks: Remarks | None = None, labels: bool = True
    ) -> Iterator[Written]:
        before: list[str] = []
        for one in self._pairs(str(path), remarks, labels):
            if one is None:
                before = []
                continue
            mark = f" {self.separator} "
            yield one._replace(source=mark.join([*before, one.source]))
            before = [*before, one.source][-self.context :] if self.context else []

    def _pairs(self, path: str, remarks: Remarks | None, labels: bool) -> Iterator[Written | None]:
        """Yields the pairs, and None where a document ends."""
        if not translations.is_source(path):
            rows = super().read(path, remarks, labels)
            first = list(itertools.islice(rows, 20))
            if first and _is_head([(one.source[len(self.prefix) :], one.target) for one in first]):
                note(remarks, "line of names of columns is the head of the table", first[0].place)
                del first[0]
            yield from itertools.chain(first, rows)
            return
        number = 0
        for source, target in translations.pairs(path):
            if not source:
                yield None
                continue
            number += 1
            place = f"{path}: pair {number}"
            yield Written(self.prefix + source, target if labels else None, place, number)

    def part(self, examples: list[Written]) -> list[Written]:
        if self.first > len(examples):
            raise UserError(
                f"{examples[0].place} begins {len(examples):,} pairs, and first is "
                f"{self.first:,}; give at most as many"
            )
        if not self.first:
            return examples
        order = np.random.default_rng(self.draw).permutation(len(examples))[: self.first]
        return [examples[index] for index in order]

    def with_models(self, models: Mapping[str, str]) -> TaskExamples:
        return dataclasses.replace(self, bert=models.get(BERT, self.bert))

    def save(self, folder: Path) -> None:
        if self.bert and not (folder / OTHER_TOKENIZER).exists():
            _tokenizer_of(self.bert).save(folder / OTHER_TOKENIZER)

    def within(self, folder: Path) -> Examples:
        copy = folder / OTHER_TOKENIZER
        if not self.bert or not copy.is_dir():
            return self
        return dataclasses.replace(self, bert=str(copy))

    def spec(self, length: int, vocab: Vocab) -> dict[str, tuple[tuple[int, ...], type]]:
        fields = ("bert_input_ids", "bert_segment_ids") if self.bert else ()
        return super().spec(length, vocab) | {name: ((length,), np.int32) for name in fields}

    def readings_of(self, texts: Sequence[str]) -> Mapping[str, Sequence[np.ndarray]]:
        if not self.bert:
            return {}
        tokenizer = _tokenizer_of(self.bert)
        plain = [text.replace(f" {self.separator} ", " ") for text in texts]
        return {BERT: [tokenizer.frame(ids)[0] for ids in tokenizer.encode_batch(plain)]}

    def features(
        self, tokenizer: Tokenizer, records: Sequence[Record], length: int
    ) -> tuple[list[list[Record]], Remarks]:
        groups, remarks = super().features(tokenizer, records, length)
        for group, record in zip(groups, records, strict=True):
            if BERT in record:
                ids = record[BERT][:length]
                group[0] |= {"bert_input_ids": ids, "bert_segment_ids": np.ones_like(ids)}
        return groups, remarks

    def encode(self, tokenizer: Tokenizer, examples: Sequence[Written]) -> list[Record]:
        records = self._encoded(tokenizer, examples)
        others = self.readings_of([example.source for example in examples])
        return [
            record | {name: rows[number].astype(np.int32) for name, rows in others.items()}
            for number, record in enumerate(records)
        ]

    def _encoded(self, tokenizer: Tokenizer, examples: Sequence[Written]) -> list[Record]:
        if not self.context:
            return super().encode(tokenizer, examples)
        if self.separator not in tokenizer.special_pieces:
            raise UserError(
                f"the separator {self.separator} is no special token of this tokenizer, which has: "
                f"{', '.join(tokenizer.special_pieces)}; set examples.separator"
            )
        sources = tokenizer.encode_batch([e.source for e in examples], specials=True)
        targets = tokenizer.encode_batch([e.target or "" for e in examples])
        return [{"source": a, "target": b} for a, b in zip(sources, targets, strict=True)]

    def shortened(self, ids: np.ndarray, size: int) -> np.ndarray:
        return ids[-size:] if self.context else ids[:size]


def _check(sources: Sequence[str]) -> None:
    """Raises UserError unless they are translations, one source or two."""
    named = [str(source) for source in sources]
    if tables := [source for source in named if source.endswith((".csv", ".tsv"))]:
        raise UserError(
            f"{tables[0]}: a table of two columns, source and target, is given without a language, "
            "alone or with a table to hold out"
        )
    if len(named) > 2 or not all(map(translations.is_source, named)):
        raise UserError(
            "translations are language:de-en=PATH, one source, or one to train on and one to "
            f"hold out; given {' '.join(named)}"
        )


def _check_width(path: Path, text: str, known: Sequence[str]) -> None:
    """Raises UserError for a table of more than two columns whose names are not known."""
    separator = "," if path.suffix == ".csv" else "\t"
    first = next(csv.reader(io.StringIO(text, newline=""), delimiter=separator), [])
    if len(first) > 2 and not {*first} & {*known}:
        names = ", ".join(name.strip()[:40] for name in first)
        raise UserError(
            f"{path}:1: {len(first)} columns ({names}); name that of the source as --text-column "
            "and that of the translation as --label-column"
        )


def _is_head(rows: Sequence[tuple[str, str | None]]) -> bool:
    """Returns whether the first row of a table names its columns: the codes or names of two
    languages, or two words where no other row has one word on each side."""
    source, target = rows[0]
    if target is None or source == target:
        return False
    if all(_names_language(name) for name in (source, target)):
        return True
    words = [all(_WORD.fullmatch(side or "") for side in row) for row in rows]
    return len(rows) > 1 and words[0] and not any(words[1:])


def _names_language(name: str) -> bool:
    try:
        return name.lower() in codes.NAMES or bool(codes.check(name))
    except UserError:
        return False


@functools.lru_cache(maxsize=2)
def _tokenizer_of(path: str) -> Tokenizer:
    """Returns the tokenizer of a run or a checkpoint. Raises UserError where it has none."""
    if Path(path).name == OTHER_TOKENIZER:
        return saved.load(path)
    try:
        tokenizer = Initial("", path).tokenizer()
    except UserError as error:
        raise UserError(
            f"the network has a model from {path}, whose tokenizer cannot be read ({error}); put "
            f"its folder back, or copy its tokenizer into the run as {OTHER_TOKENIZER}"
        ) from None
    if tokenizer is None:
        raise UserError(f"{path} has no tokenizer; name the run or the checkpoint of a model")
    return tokenizer
