"""Lines of several files, one file after the other, and their division into shards.

The lines are numbered as if the files were one. A shard has consecutive lines, and its bytes in the
output depend on them alone (`inference.steady`): the shards one after the other are the output of
one process. Where they begin is found in one pass over the files, and kept with their sizes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import glob
import hashlib
import itertools
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ptm_jax.core.archives import DAMAGED, opened
from ptm_jax.core.errors import UserError
from ptm_jax.core.reading import broken
from ptm_jax.data.stores import working
from ptm_jax.inference.streams.lines import Line, Source

STARTS = 1 << 20
"""Starts of lines that are held at most while the files are read. Of more lines, each second one,
each fourth one, ...: a shard begins at one of them."""
SHARDS, SHARD_BYTES = 16, 1 << 26
"""Default of shards: one for so many bytes, and at least 16."""
_PATTERN = "*?["


@dataclasses.dataclass(frozen=True)
class Piece:
    """`count` lines of a file (None: all that follow), from byte `offset`, after `before` lines.

    `path` is a path, or the URL of an object in a store.
    """

    path: str
    offset: int = 0
    before: int = 0
    count: int | None = None


@dataclasses.dataclass(frozen=True)
class Files(Source):
    """Pieces of files, one after the other; `before` lines come before all of them.

    `path` is the pattern of the files.
    """

    pieces: tuple[Piece, ...] = ()

    @property
    def paths(self) -> tuple[Path, ...]:
        return tuple(working.opened(piece.path) for piece in self.pieces)

    @property
    def count(self) -> int:
        """Returns the number of lines, where all pieces have one."""
        return sum(piece.count for piece in self.pieces)

    def columns(self) -> list[str]:
        return Source(self.paths[0]).columns()

    def lines(self) -> Iterator[Line]:
        """Yields the lines of all pieces, numbered one after the other. Raises UserError."""
        numbers = itertools.count(self.before + 1)
        for piece, path in zip(self.pieces, self.paths, strict=True):
            source = Source(path, self.text, self.pair, self.id, piece.offset, piece.before)
            with contextlib.closing(source.lines()) as lines:
                for line in itertools.islice(lines, piece.count):
                    yield dataclasses.replace(line, number=next(numbers))

    def digest(self) -> tuple[str, int | None]:
        facts = [Source(path).digest() for path in self.paths]
        counts = [count for _, count in facts]
        return _digest(one for one, _ in facts), None if None in counts else sum(counts)


def source_of(place: str) -> Source:
    """Returns the lines of a file, or of all files of a pattern, in the order of their names.
    Raises UserError where nothing matches, and for tables, whose files have heads of their own."""
    if not set(_PATTERN) & set(place) or os.path.exists(place):
        return Source(Path(place))
    paths = sorted(filter(os.path.isfile, glob.glob(place, recursive=True)))
    if not paths:
        raise UserError(f"nothing matches {place}; check the pattern")
    formats = {Source(Path(path)).format for path in paths}
    if not formats <= {""} and formats != {".jsonl"}:
        names = " and ".join(sorted(one or "text" for one in formats))
        raise UserError(f"{place} is {names}; a pattern is for files of text, or for .jsonl")
    return Files(Path(place), pieces=tuple(map(Piece, paths)))


@dataclasses.dataclass(frozen=True)
class File:
    """A file that was read: its size and time on the disk; bytes and lines, decompressed; and the
    sha256 of these bytes."""

    path: str
    size: int
    changed: int
    bytes: int
    lines: int
    sha256: str


@dataclasses.dataclass(frozen=True)
class Division:
    """Files, and for each shard (lines before it, bytes before it) in all of them; the last entry
    is their end."""

    files: tuple[File, ...]
    starts: tuple[tuple[int, int], ...]

    @property
    def count(self) -> int:
        """Returns the number of shards."""
        return len(self.starts) - 1

    @property
    def lines(self) -> int:
        return self.starts[-1][0]

    @property
    def digest(self) -> str:
        """Returns a sha256 of all files."""
        return _digest(file.sha256 for file in self.files)

    def shard(self, number: int, source: Source) -> Files:
        """Returns the lines of a shard, with the columns of `source`."""
        (begin, place), (end, _) = self.starts[number : number + 2]
        pieces, lines, size = [], 0, 0
        for file in self.files:
            first, last = max(begin, lines), min(end, lines + file.lines)
            if first < last:
                offset = place - size if first > lines else 0
                pieces.append(Piece(file.path, offset, first - lines, last - first))
            lines, size = lines + file.lines, size + file.bytes
        names = {name: vars(source)[name] for name in ("path", "text", "pair", "id")}
        return Files(**names, before=begin, pieces=tuple(pieces))


def division(paths: Sequence[Path], shards: int | None) -> Division:
    """Reads files, and divides their lines into shards of equally many. Raises UserError."""
    starts, files = _Starts(), []
    for path in paths:
        state, size, lines = hashlib.sha256(), starts.size, starts.lines
        last = b"\n"
        for chunk in _chunks(path):
            state.update(chunk)
            starts.add(chunk)
            last = chunk[-1:]
        if last != b"\n":
            starts.end_line()
        status = path.stat()
        facts = (starts.size - size, starts.lines - lines, state.hexdigest())
        files.append(File(_name(path), status.st_size, status.st_mtime_ns, *facts))
    if not starts.lines:
        raise UserError(f"{paths[0]} holds no text; give one text per line")
    count = shards or max(SHARDS, -(-starts.size // SHARD_BYTES))
    if shards is None:
        count = min(count, starts.lines)
    if not 1 <= count <= starts.lines:
        raise UserError(f"--shards is {count}; the input has {starts.lines:,} lines")
    return Division(tuple(files), starts.cuts(count))


class _Starts:
    """The bytes where lines start: of each line of a number that `step` divides."""

    def __init__(self):
        self.step, self.lines, self.size = 1, 0, 0
        self.places, self.held = [np.zeros(1, np.int64)], 1

    def add(self, chunk: bytes) -> None:
        """Adds the bytes that follow."""
        ends = np.flatnonzero(np.frombuffer(chunk, np.uint8) == ord("\n"))
        self._begin(self.size + 1 + ends)
        self.size += len(chunk)

    def end_line(self) -> None:
        """Ends a line that has no line feed."""
        self._begin(np.array([self.size]))

    def cuts(self, count: int) -> tuple[tuple[int, int], ...]:
        """Returns (lines before, bytes before) of shards, and the end."""
        places = np.concatenate(self.places)
        numbers = [number * self.lines // count // self.step for number in range(count)]
        cuts = [(number * self.step, int(places[number])) for number in numbers]
        return (*cuts, (self.lines, self.size))

    def _begin(self, places: np.ndarray) -> None:
        numbers = self.lines + 1 + np.arange(len(places))
        self.places.append(places[numbers % self.step == 0])
        self.lines, self.held = self.lines + len(places), self.held + len(self.places[-1])
        if self.held > STARTS:
            self.places = [np.concatenate(self.places)[::2]]
            self.step, self.held = 2 * self.step, len(self.places[0])


def read_or_made(
    path: Path, paths: Sequence[Path], shards: int | None, record: Mapping[str, Any]
) -> Division:
    """Returns the division in the file `path`, or makes it. Other processes wait for the first.

    `record` has what the output depends on beside the files. Raises UserError for another number
    of shards, and for another record.
    """
    with open(os.open(path, os.O_RDWR | os.O_CREAT, 0o644), "r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        fields = _fields(file.read())
        made = _division(fields)
        if made is None or _states(paths) != [(f.path, f.size, f.changed) for f in made.files]:
            made, old = division(paths, shards or (made and made.count)), made
            if old is not None and old.digest != made.digest:
                raise UserError(f"the input has changed since {path} was begun; {ADVICE}")
        if shards not in (None, made.count):
            raise UserError(f"{path.parent} has {made.count} shards, not {shards}; {ADVICE}")
        if fields.get("record", record) != record:
            raise UserError(f"{path} was begun with other options or another model; {ADVICE}")
        text = json.dumps({"record": record, **dataclasses.asdict(made)}).encode()
        file.seek(0)
        file.truncate()
        file.write(text)
    return made


ADVICE = "give another --output, or --overwrite to begin anew"


def _fields(data: bytes) -> dict[str, Any]:
    """Returns the object of a file; {} of one that is empty or torn."""
    try:
        return json.loads(data)
    except ValueError:
        return {}


def _division(fields: Mapping[str, Any]) -> Division | None:
    if "files" not in fields:
        return None
    files = tuple(File(**facts) for facts in fields["files"])
    return Division(files, tuple((line, place) for line, place in fields["starts"]))


def _states(paths: Sequence[Path]) -> list[tuple[str, int, int]]:
    return [(_name(path), path.stat().st_size, path.stat().st_mtime_ns) for path in paths]


def _name(path: Path) -> str:
    """Returns the name of a file for other processes and machines."""
    return working.url_of(path) or os.path.abspath(path)


def _chunks(path: Path) -> Iterator[bytes]:
    try:
        with opened(path) as stream:
            while chunk := stream.read(1 << 20):
                yield chunk
    except DAMAGED as error:
        raise broken(path, f"is a damaged archive ({error})") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror or error})") from None


def _digest(digests: Iterator[str]) -> str:
    return hashlib.sha256(" ".join(digests).encode()).hexdigest()
