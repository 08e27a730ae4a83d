"""Outputs in shards, OUT-00003-of-00016.jsonl: written each as one output, by any number of
processes.

A shard gets its name when it is complete. In a folder a process locks the shard that it writes
(`journal`), takes shards that no other one has, and goes on in one that a dead process began. A
store has no locks: there a process writes the shards of its own number.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ptm_jax.core.errors import UserError
from ptm_jax.data.stores import objects, working
from ptm_jax.inference.streams import divided, journal, running
from ptm_jax.inference.streams.row_formats import Format

WAIT = 0.5
"""Seconds between two looks at shards that other processes write."""


@dataclasses.dataclass(frozen=True)
class Place:
    """Where shards lie: a folder or the URL of one, and the begin and the ending of their names."""

    folder: str
    stem: str
    ending: str

    @classmethod
    def of(cls, output: str) -> Place:
        """Returns the place of --output, the file that the shards make up."""
        folder, _, name = (working.url_of(output) or os.path.abspath(output)).rpartition("/")
        return cls(folder, Path(name).stem, Path(name).suffix)

    @property
    def remote(self) -> bool:
        return objects.is_store(self.folder)

    def name(self, number: int, count: int) -> str:
        return f"{self.stem}-{number:05d}-of-{count:05d}{self.ending}"

    def path(self, number: int, count: int) -> Path:
        return Path(self.folder) / self.name(number, count)

    def complete(self, count: int) -> set[int]:
        """Returns the numbers of the shards that are there."""
        if self.remote:
            names = set(objects.names(self.folder))
        else:
            names = {path.name for path in Path(self.folder).glob(f"{self.stem}-*{self.ending}")}
        return {number for number in range(count) if self.name(number, count) in names}

    def division(
        self, paths: Sequence[Path], shards: int | None, record: Mapping[str, Any]
    ) -> divided.Division:
        """Returns the division of the lines of files, as a first process made it. Raises
        UserError."""
        name = f"{self.stem}.shards.json"
        if not self.remote:
            Path(self.folder).mkdir(parents=True, exist_ok=True)
            return divided.read_or_made(Path(self.folder) / name, paths, shards, record)
        with tempfile.TemporaryDirectory() as folder:
            path, url = Path(folder) / name, objects.joined(self.folder, name)
            if objects.exists(url):
                objects.fetch(url, path)
            made = divided.read_or_made(path, paths, shards, record)
            objects.put(path, url)
        return made

    def clear(self) -> None:
        """Deletes all shards and their records."""
        if self.remote:
            raise UserError(f"--overwrite deletes no objects; remove those of {self.folder}")
        for path in Path(self.folder).glob(f"{self.stem}-[0-9]*-of-[0-9]*{self.ending}*"):
            path.unlink()
        (Path(self.folder) / f"{self.stem}.shards.json").unlink(missing_ok=True)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Writer:
    """A model over lines, and where its rows go. `record` is as for `running.written`."""

    stream: running.Stream
    form: Format
    place: Place
    division: divided.Division
    record: Mapping[str, Any]

    def write(self, number: int) -> running.Summary:
        """Writes a shard, or the part of it that is missing. Raises UserError, `journal.Busy` where
        another process writes it."""
        source = self.division.shard(number, self.stream.source)
        stream = dataclasses.replace(self.stream, source=source, total=source.count)
        with self._path(number) as path:
            return running.written(stream, self.form, path, self.record, overwrite=False)

    @contextlib.contextmanager
    def _path(self, number: int) -> Iterator[Path]:
        """Yields the path of a shard; in a store a local one, which is copied at the end."""
        count = self.division.count
        if not self.place.remote:
            yield self.place.path(number, count)
            return
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / self.place.name(number, count)
            yield path
            objects.put(path, objects.joined(self.place.folder, path.name))


def written(
    writer: Writer, index: int, processes: int, say: Callable[[str], None]
) -> list[running.Summary]:
    """Writes the missing shards of all, as process `index` of several, its own ones first.

    In a folder it returns when all shards are complete. Returns what it wrote. Raises UserError.
    """
    count = writer.division.count
    complete = writer.place.complete(count)
    order = sorted(range(count), key=lambda number: (number - index) % processes != 0)
    if writer.place.remote:
        order = [number for number in order if number % processes == index]
    missing, summaries, waits = [n for n in order if n not in complete], [], False
    while missing:
        busy = []
        for number in missing:
            try:
                summary = writer.write(number)
            except journal.Busy:
                busy.append(number)
                continue
            if summary.before < summary.rows:
                before = f", {summary.before:,} of them before" if summary.before else ""
                say(f"{writer.place.name(number, count)}: {summary.rows:,} rows{before}")
                summaries.append(summary)
        if busy and not waits:
            waits = True
            say(f"waiting for {len(busy)} shards that other processes write")
        if busy == missing:
            time.sleep(WAIT)
        missing = busy
    return summaries
