"""Working copies: folders of this process that stand for folders of an object store.

`opened(url)` copies the small files of a folder of the store and returns the local folder, in which
everything reads and writes as on a disk. `push(folder)` writes what has changed into the store:
each file whole, the files that make a folder complete (`LAST`) after all others. Logs (`GROWING`)
are written in parts, NAME.parts/OFFSET, because an object cannot be appended to. Checkpoints stay
in the store (`training.shelves`), corpora are fetched once for a machine (`stores.fetched`).

Local names are in no message and no record: `named(text)` has URLs in their place.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import functools
import os
import re
import shutil
import tempfile
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path

from ptm_jax.core.errors import UserError
from ptm_jax.core.reading import check_local
from ptm_jax.data.stores import objects

GROWING = ("metrics.jsonl", "metrics.csv")
"""Files to which a run appends."""
LAST = ("record.json", "manifest.json", "config.json")
"""Files that are written after all others: what has them is complete."""
CACHES = ("features",)
"""Folders of a workdir that are not written into the store."""
HEAVY = ("checkpoints", "data", "tensorboard", "launch", "features", "profile", "programs")
"""Folders of a workdir that are not copied to this machine."""
PARTS = ".parts"
_CHECKPOINT = re.compile(r"(.+?)/(checkpoints(?:/step_\d+)?)")
ENDINGS = (".draft", ".partial", ".lock", ".fetched", ".preparing")
"""Endings of the names of files and folders that are not complete, and of locks."""


@dataclasses.dataclass
class Copy:
    """The local folder of a URL.

    pushed   {name: (size, time of the last change)} of the files that are in the store
    growing  {name: (bytes, CRC-32)} of the part of a log that is in the store
    """

    url: str
    folder: Path
    pushed: dict[str, tuple[int, int]] = dataclasses.field(default_factory=dict)
    growing: dict[str, tuple[int, int]] = dataclasses.field(default_factory=dict)
    lock: threading.Lock = dataclasses.field(default_factory=threading.Lock)

    def fetch(self) -> None:
        """Copies the object at the URL, or the files below it that are not heavy."""
        if objects.exists(self.url):
            objects.fetch(self.url, self.folder)
            self.pushed[""] = _state(self.folder)
            return
        parts: dict[str, dict[int, str]] = {}
        for name in objects.listed(self.url):
            log, _, offset = name.partition(f"{PARTS}/")
            if offset.isdecimal():
                parts.setdefault(log, {})[int(offset)] = objects.joined(self.url, name)
            elif not {*name.split("/")[:-1]} & {*HEAVY} and not _is_draft(Path(name)):
                objects.fetch(objects.joined(self.url, name), self.folder / name)
                self.pushed[name] = _state(self.folder / name)
        for log, urls in parts.items():
            self._join(log, urls)

    def _join(self, log: str, urls: dict[int, str]) -> None:
        """Writes a log from its parts. One that does not begin where the last one ends is old."""
        data = b""
        for offset in sorted(urls):
            if offset == len(data):
                data += objects.read(urls[offset])
        (self.folder / log).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / log).write_bytes(data)
        self.growing[log] = len(data), zlib.crc32(data)

    def push(self) -> None:
        """Writes the files that have changed into the store, and deletes those that are gone."""
        with self.lock:
            if self.folder.is_file():
                self._put("", self.folder)
                return
            files = {
                path.relative_to(self.folder).as_posix(): path
                for path in sorted(self.folder.rglob("*"))
                if path.is_file() and not _is_draft(path.relative_to(self.folder))
            }
            for name in sorted(files, key=_order):
                if name.rpartition("/")[2] in GROWING:
                    self._append(name, files[name].read_bytes())
                else:
                    self._put(name, files[name])
            absent = [name for name in self.pushed if name not in files]
            objects.delete(objects.joined(self.url, name) for name in absent)
            self.pushed = {name: self.pushed[name] for name in self.pushed if name in files}

    def _put(self, name: str, path: Path) -> None:
        """Writes a file if it has changed."""
        state = _state(path)
        if self.pushed.get(name) != state:
            objects.put(path, objects.joined(self.url, name) if name else self.url)
            self.pushed[name] = state

    def _append(self, log: str, data: bytes) -> None:
        """Writes the new part of a log, or all of it where an earlier part has changed."""
        size, crc = self.growing.get(log, (0, 0))
        again = zlib.crc32(data[:size]) != crc or len(data) < size
        size = 0 if again else size
        if again or data[size:]:
            folder = objects.joined(self.url, f"{log}{PARTS}")
            objects.write(objects.joined(folder, f"{size:012d}"), data[size:])
            if again:
                later = [name for name in objects.listed(folder) if int(name)]
                objects.delete(objects.joined(folder, name) for name in later)
        self.growing[log] = len(data), zlib.crc32(data)


_copies: dict[str, Copy] = {}
_names: dict[str, str] = {}


def opened(place: str | os.PathLike, option: str = "") -> Path:
    """Returns the working copy of a URL, made at the first call; of another path, the path.

    The folder is absent if the store has nothing at the URL. Raises UserError, with the `option`
    that named the place also for a URL that is no store's."""
    if not objects.is_store(place):
        if option:
            check_local(place, option)
        if _CHECKPOINT.fullmatch(os.fspath(place)) and copy_of(place) is not None:
            Path(place).mkdir(parents=True, exist_ok=True)  # its files stay in the store
        return Path(place)
    url, checkpoint = os.fspath(place).rstrip("/"), ""
    if match := _CHECKPOINT.fullmatch(url):
        url, checkpoint = match.groups()
    if url not in _copies:
        objects.check(url)
        folder = _home() / url.replace("://", "/")
        copy = Copy(url, folder)
        copy.fetch()
        folder.parent.mkdir(parents=True, exist_ok=True)
        _copies[url] = copy
        call_it(folder, url)
    folder = _copies[url].folder / checkpoint
    if checkpoint:  # its files stay in the store
        folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextlib.contextmanager
def opening(place: str | os.PathLike, option: str) -> Iterator[Path]:
    """Yields the working copy of a URL, or the path; errors then name the URL."""
    try:
        yield opened(place, option)
    except UserError as error:
        raise UserError(named(str(error))) from error


def copy_of(path: str | os.PathLike) -> Copy | None:
    """Returns the working copy in which a path lies, or None."""
    place = Path(path).absolute()
    return next((one for one in _copies.values() if place.is_relative_to(one.folder)), None)


def url_of(path: str | os.PathLike) -> str | None:
    """Returns the URL for which a local path stands; of a URL, itself; of another path, None."""
    if objects.is_store(path):
        return os.fspath(path)
    if (copy := copy_of(path)) is None:
        return None
    name = Path(path).absolute().relative_to(copy.folder).as_posix()
    return copy.url if name == "." else objects.joined(copy.url, name)


def push(path: str | os.PathLike) -> None:
    """Writes what has changed in the working copy of a path into the store.
    Does nothing for other paths. Raises UserError."""
    if (copy := copy_of(path)) is not None:
        copy.push()


def refresh(path: str | os.PathLike) -> None:
    """Copies the files of the store again, which another process has written."""
    if (copy := copy_of(path)) is not None:
        copy.fetch()


def push_all() -> None:
    """Pushes every working copy of this process."""
    for copy in list(_copies.values()):
        copy.push()


def is_any() -> bool:
    """Whether this process has a working copy."""
    return bool(_copies)


def call_it(folder: Path, url: str) -> None:
    """Lets `named` write `url` in place of the local folder."""
    _names[str(folder)] = url


def named(text: str) -> str:
    """Returns a text with URLs in place of local names of them."""
    for folder, url in _names.items():
        text = text.replace(folder, url)
    return text


def _is_draft(name: Path) -> bool:
    """Whether a relative path is being written, or is a lock or a cache."""
    folders = name.parts[:-1]
    drafts = any(part.startswith((".", "draft_")) or part in CACHES for part in folders)
    return drafts or any(part.endswith(ENDINGS) for part in name.parts)


def _order(name: str) -> tuple[bool, int, str]:
    """Sorts names so that what completes a folder comes after what is in it."""
    last = name.rpartition("/")[2] in LAST
    return last, -name.count("/") if last else 0, name


def _state(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns


def scratch(name: str) -> Path:
    """Returns a folder of this process, which ends with it."""
    return _home() / f"_{name}"


@functools.cache
def _home() -> Path:
    """Returns the folder of all working copies of this process, which ends with it."""
    try:
        home = Path(tempfile.mkdtemp(prefix="ptm_jax_store_"))
    except OSError as error:
        raise UserError(
            f"cannot write into {tempfile.gettempdir()}: {error.strerror}; set TMPDIR"
        ) from None
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    return home.resolve()
