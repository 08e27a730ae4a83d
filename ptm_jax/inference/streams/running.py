"""Runs a use of a model over the lines of a file, block after block, and writes as it goes.

A block is read, computed with rows of similar length together, and written in the order of its
lines; then the next one is read. Batches have shapes that depend on each row alone
(`inference.steady`), so that neither the size of a block nor a restart changes a byte.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from ptm_jax.core.errors import UserError
from ptm_jax.inference import bars, steady
from ptm_jax.inference.streams import journal
from ptm_jax.inference.streams.lines import Line, Source, blocks
from ptm_jax.inference.streams.row_formats import Format, Row
from ptm_jax.inference.uses import Request, Use

BLOCK = 1024
"""Lines of a block."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stream:
    """A use of a model over the lines of a source.

    request   its settings; `text`, `pair` and `numbers` are those of each call
    block     lines that are computed together
    strict    whether the first refused line ends the run
    total     number of lines, where it is known
    """

    use: Use
    model: Any
    request: Request
    source: Source
    block: int = BLOCK
    strict: bool = False
    total: int | None = None

    def results(self, lines: Sequence[Line], width: int | None = None) -> list[Row]:
        """Returns a row for each line, in order; `width`: rows hold vectors."""
        fit = [line for line in lines if not line.fault]
        rows = dict(zip((line.number for line in fit), self._tried(fit, width), strict=True))
        return [rows.get(line.number) or Row(line, None, line.fault) for line in lines]

    def width(self) -> int:
        """Returns the width of the vectors."""
        if self.use.words:
            return self.model.width
        return self._computed([self._probe], 0).shape[1]

    @functools.cached_property
    def _sound(self) -> bool:
        """Raises UserError for a model or options that are refused, whatever the text is."""
        return self.use.words or len(self._computed([self._probe], 0 if self._ranks else None)) > 0

    @property
    def _ranks(self) -> bool:
        return self.use.ranking is not None

    @property
    def _probe(self) -> Line:
        return Line(1, self.use.probe, self.use.probe)

    def _tried(self, lines: Sequence[Line], width: int | None) -> list[Row]:
        """Rows of lines. Where they are refused, of each half: only refused lines are left."""
        if not lines:
            return []
        try:
            if self.use.words and len(lines) > 1:  # a product of more rows adds in another order
                return [row for line in lines for row in self._tried([line], width)]
            return list(map(Row, lines, self._computed(lines, width)))
        except UserError as error:
            if len(lines) == 1 and self._sound:
                return [Row(lines[0], None, re.sub(r"^(text|prompt) 1\b:? ", "it ", str(error)))]
        half = len(lines) // 2
        return [*self._tried(lines[:half], width), *self._tried(lines[half:], width)]

    def _computed(self, lines: Sequence[Line], width: int | None) -> Sequence[Any]:
        request = dataclasses.replace(
            self.request,
            text=tuple(line.text for line in lines),
            pair=tuple(line.pair for line in lines) if self.source.pair else (),
            numbers=tuple(line.number - 1 for line in lines),
        )
        arrays = self.use.ranking.stored if self._ranks else self.use.arrays
        with steady.shapes():
            return (self.use.run if width is None else arrays)(self.model, request)


@dataclasses.dataclass(frozen=True)
class Summary:
    """Rows of an output, how many of them were there before, and the refused lines."""

    rows: int
    before: int
    refused: journal.Refused


def written(
    stream: Stream, form: Format, output: Path, record: Mapping[str, Any], *, overwrite: bool,
    option: str = "--output",
) -> Summary:  # fmt: skip
    """Writes the output of a stream, or the part of it that is missing; `option` named it.
    The output gets its name when it is complete (`journal`). Raises UserError."""
    journal.check(output, overwrite, option)
    with journal.locked(output) as file:
        old = journal.begun(file, output, record, form, option) if not overwrite else None
        begun = old or journal.Begun()
        if begun.complete:
            journal.published(output)
            return Summary(begun.rows, begun.rows, begun.refused)
        lines, texts = stream.source.lines(), journal.Texts()
        state = journal.entry(begun.rows, begun.size, [], _skipped(stream, lines, texts, begun))
        journal.restart(file, record, begun, state["texts"])
        refused, partial = list(begun.refused), journal.partial_of(output)
        if output.exists() and not (begun.size and partial.exists()):
            output.resolve().replace(partial)  # of an older version, or to be overwritten
        with partial.open("r+b" if begun.size else "wb") as target:
            target.truncate(begun.size)
            target.seek(begun.size)
            target.write(b"" if begun.size else form.begin())
            for data, state in _blocks(stream, lines, texts, begun, form):
                journal.write(file, state)
                target.write(data)
                form.finish(target, state["rows"])
                journal.flush(target)
                refused += state["refused"]
            _ended(file, form, target, state)
        journal.published(output)
        return Summary(state["rows"], begun.rows, refused)


def printed(stream: Stream, form: Format, target: BinaryIO) -> Summary:
    """Writes a stream to standard output, or to a pipe. Raises UserError."""
    begun, lines = journal.Begun(), stream.source.lines()
    target.write(form.begin())
    rows, refused = 0, []
    for data, entry in _blocks(stream, lines, journal.Texts(), begun, form):
        target.write(data)
        target.flush()
        rows, refused = entry["rows"], refused + entry["refused"]
    target.write(form.end(rows))
    target.flush()
    return Summary(rows, 0, refused)


def refused_in(rows: Sequence[Row], before: int) -> journal.Refused:
    """Returns the refused lines of rows that follow `before` others."""
    numbered = enumerate(rows, before + 1)
    return [(number, row.line.number, row.refused) for number, row in numbered if row.refused]


def _skipped(stream: Stream, lines: Iterator[Line], texts: journal.Texts, begun) -> str:
    """Reads the lines of the complete part. Returns the hash of their texts. Raises UserError if
    they differ from those of the output, which only standard input can do."""
    value = ""
    for number, line in enumerate(itertools.islice(lines, begun.rows), 1):
        value = texts.add([line])
        if number == begun.texts[0] and value != begun.texts[1]:
            raise UserError(
                f"{stream.source.name} begins with other lines than those of the output; give "
                "another --output, or --overwrite to begin anew"
            )
    return value


def _blocks(
    stream: Stream, lines: Iterator[Line], texts: journal.Texts, begun: journal.Begun,
    form: Format,
) -> Iterator[tuple[bytes, dict[str, Any]]]:  # fmt: skip
    """Yields (bytes, entry of the record) of each block, which go to the end of `target`.
    Raises UserError."""
    count, width = begun.rows, form.width if form.arrays else None
    size = begun.size or len(form.begin())
    with bars.bar(stream.total, "line", begun.rows) as bar:
        for block in blocks(lines, stream.block):
            rows = stream.results(block, width)
            fault = next((row for row in rows if row.refused), None)
            first = not count and not stream.source.before
            if first and stream.use.words and all(row.refused for row in rows):
                raise UserError(
                    f"{stream.source.name}: all of the first {len(rows):,} lines are refused, line "
                    f"{rows[0].line.number} because {rows[0].refused}"
                )
            if stream.strict and fault is not None:
                rows = rows[: rows.index(fault)]
            data = form.rows(rows, not count)
            refused = refused_in(rows, count)
            count, size = count + len(rows), size + len(data)
            yield data, journal.entry(count, size, refused, texts.add([row.line for row in rows]))
            if stream.strict and fault is not None:
                raise UserError(
                    f"{stream.source.name}: line {fault.line.number} is refused: {fault.refused}; "
                    "correct it, or leave --strict out"
                )
            bar.update(len(rows))
    if not count:
        raise UserError(f"{stream.source.name} holds no text; give one text per line, or --text")


def _ended(file: BinaryIO, form: Format, target: BinaryIO, state: dict[str, Any]) -> None:
    """Writes the end of an output and of its record."""
    target.write(form.end(state["rows"]))
    form.finish(target, state["rows"])
    journal.flush(target)
    journal.write(file, {**state, "refused": [], "bytes": target.tell(), "complete": True})
