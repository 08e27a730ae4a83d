"""The lines of a file that are nearest to some texts, by exact comparison of their vectors.

The lines are read in blocks, and the best of each text are kept. With an index their vectors lie in
a folder: `vectors.npy`, mapped into memory, its record (`streams.journal`) with the hashes of the
model and of the file, and `source.json` with the path of the file and the checksum of the vectors.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ptm_jax.core.errors import UserError
from ptm_jax.core.reading import read_json
from ptm_jax.inference import bars
from ptm_jax.inference.streams.lines import Line, blocks
from ptm_jax.inference.streams.row_formats import Array, Row
from ptm_jax.inference.streams.running import Stream, Summary, refused_in, written
from ptm_jax.inference.uses import Result

VECTORS, SOURCE = "vectors.npy", "source.json"
ROWS = 1 << 16
"""Vectors of an index that are compared at once."""


@dataclasses.dataclass
class Best:
    """The best lines of each of q texts so far: scores and indices, each [q, at most `top`]."""

    top: int
    scores: np.ndarray
    indices: np.ndarray

    @classmethod
    def of(cls, texts: int, top: int) -> Best:
        return cls(top, np.zeros((texts, 0), np.float32), np.zeros((texts, 0), np.int64))

    def add(self, scores: np.ndarray, first: int) -> None:
        """Adds the scores [q, n] of lines `first`, first + 1, ...; NaN is a refused line."""
        indices = np.broadcast_to(np.arange(first, first + scores.shape[1]), scores.shape)
        scores = np.concatenate([self.scores, np.where(np.isnan(scores), -np.inf, scores)], 1)
        indices = np.concatenate([self.indices, indices], 1)
        order = np.argsort(-scores, 1, kind="stable")[:, : self.top]
        self.scores = np.take_along_axis(scores, order, 1)
        self.indices = np.take_along_axis(indices, order, 1)


def nearest(stream: Stream, texts: Sequence[str]) -> tuple[list[Result], Summary]:
    """Returns the nearest lines of a stream to each text, best first. Raises UserError."""
    asked = _asked(stream, texts)
    best, lines_of_best, count, refused = Best.of(len(texts), stream.request.top), {}, 0, []
    with bars.bar(stream.total, "line") as bar:
        for block in blocks(stream.source.lines(), stream.block):
            rows = stream.results(block, 0)
            refused += refused_in(rows, count)
            best.add(_scores(stream, asked, rows), count)
            lines_of_best |= {count + n: line for n, line in enumerate(block)}
            lines_of_best = {n: lines_of_best[n] for n in np.unique(best.indices).tolist()}
            count += len(rows)
            bar.update(len(rows))
    if not count:
        raise UserError(f"{stream.source.name} holds no text; give one text per line")
    return _results(stream, texts, best, lines_of_best), Summary(count, 0, refused)


def _scores(stream: Stream, asked: np.ndarray, rows: Sequence[Row]) -> np.ndarray:
    """Returns the scores [q, rows] float32; those of refused lines are NaN."""
    used = [number for number, row in enumerate(rows) if not row.refused]
    vectors = [rows[number].result for number in used]
    one_size = len({len(vector) for vector in vectors}) < 2
    count = len(asked) if isinstance(asked, list) else asked.shape[0]
    scores = np.full((count, len(rows)), np.nan, np.float32)
    if used:
        stored = np.stack(vectors) if one_size else vectors
        scores[:, used] = stream.use.ranking.scores(stream.model, asked, stored)
    return scores


def indexed(
    stream: Stream, texts: Sequence[str], folder: Path, record: Mapping[str, Any], overwrite: bool
) -> tuple[list[Result], Summary]:
    """`nearest`, with the vectors of an index, which is made first if there is none.

    Raises UserError for an index of another model or file, or with other vectors than were written,
    unless `overwrite`.
    """
    asked = _asked(stream, texts)
    if not isinstance(asked, np.ndarray):
        raise UserError(
            "an --index holds one dense vector a line, and this model gives other vectors; leave "
            "--index out"
        )
    folder.mkdir(parents=True, exist_ok=True)
    form, path = Array(asked.shape[1]), folder / VECTORS
    summary = written(stream, form, path, record, overwrite=overwrite, option="--index")
    checksum = _checked(folder, summary)
    fields = {"input": str(stream.source.path.absolute()), "checksum": checksum}
    (folder / SOURCE).write_text(json.dumps(fields) + "\n")
    vectors = np.load(path, mmap_mode="r")
    best = Best.of(len(texts), stream.request.top)
    for first in range(0, len(vectors), ROWS):
        stored = np.asarray(vectors[first : first + ROWS])
        best.add(stream.use.ranking.scores(stream.model, asked, stored), first)
    numbers = np.unique(best.indices).tolist()
    lines = _lines_at(stream.source.lines(), numbers)
    return _results(stream, texts, best, lines), summary


def _checked(folder: Path, summary: Summary) -> int:
    """Returns the CRC-32 of the vectors. Raises UserError where it is not the one of an index that
    was complete before."""
    checksum = 0
    with (folder / VECTORS).open("rb") as file:
        while piece := file.read(1 << 20):
            checksum = zlib.crc32(piece, checksum)
    if summary.before == summary.rows and (folder / SOURCE).is_file():
        fields = read_json(folder / SOURCE, "the source of an index")
        if isinstance(fields, dict) and fields.get("checksum", checksum) != checksum:
            raise UserError(
                f"{folder / VECTORS} has changed since it was written; give --overwrite to build "
                "the index anew"
            )
    return checksum


def source_of(folder: Path) -> str:
    """Returns the path of the file of an index. Raises UserError where there is no index."""
    if not (folder / SOURCE).is_file():
        raise UserError(f"{folder} is no index yet; give the lines as --input, to make it")
    fields = read_json(folder / SOURCE, "the source of an index")
    if not isinstance(fields, dict) or not isinstance(fields.get("input"), str):
        raise UserError(f"{folder / SOURCE} names no file; give it as --input")
    if not Path(fields["input"]).is_file():
        raise UserError(
            f"{folder} has the vectors of {fields['input']}, which is no longer there; give the "
            "file's new place as --input"
        )
    return fields["input"]


def _asked(stream: Stream, texts: Sequence[str]) -> np.ndarray:
    if stream.request.top < 1:
        raise UserError(f"--top is {stream.request.top}; it must be at least 1")
    request = dataclasses.replace(stream.request, text=tuple(texts))
    return stream.use.ranking.asked(stream.model, request)


def _lines_at(lines: Iterator[Line], numbers: Sequence[int]) -> dict[int, Line]:
    """{index: line} of sorted indices."""
    chosen, place = {}, 0
    for number in numbers:
        chosen[number] = next(itertools.islice(lines, number - place, None))
        place = number + 1
    return chosen


def _results(
    stream: Stream, texts: Sequence[str], best: Best, lines: Mapping[int, Line]
) -> list[Result]:
    ranking, results = stream.use.ranking, []
    for text, scores, indices in zip(texts, best.scores, best.indices, strict=True):
        nearest_lines = [
            {"line": lines[index].number, ranking.score: score, "text": lines[index].text}
            for score, index in zip(scores.tolist(), indices.tolist(), strict=True)
            if score > -np.inf
        ]
        results.append({"text": text, ranking.field: nearest_lines})
    return results
