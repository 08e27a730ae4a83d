"""Sources of text that are files: a path, a glob, a directory, or a URL that Beam reads."""

from __future__ import annotations

import contextlib
import glob
import hashlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from ptm_jax.core.errors import UserError, closest
from ptm_jax.core.reading import size_of
from ptm_jax.data.text import dataset_folders, remote, textfiles
from ptm_jax.data.text.documents import Document

_FORMATS = f"{', '.join(textfiles.FORMATS)} (or {', '.join(textfiles.COMPRESSIONS)})"


def names_of(source: str) -> list[str]:
    """Returns the files of a source, sorted.
    Raises UserError where there are none, or for a file of an unknown format."""
    if remote.is_remote(source):
        return _urls(source)
    path = Path(source).expanduser()
    if path.is_dir() and (splits := dataset_folders.splits_of(path)):
        splits = [splits["train"]] if "train" in splits else splits.values()
        files = [file for split in splits for file in dataset_folders.files_of(split)]
    elif path.is_dir():
        files = _once(p for p in path.rglob("*") if p.is_file() and textfiles.file_format(p))
        if not files:
            raise UserError(f"no text files below {source}; expected {_FORMATS}")
    elif path.exists():
        files = [path]
    else:
        files = _once(Path(p) for p in _globbed(path) if Path(p).is_file())
        if not files:
            raise UserError(_missing(source, path))
    for file in files:
        if textfiles.named_format(file) is None:
            raise UserError(f"{file} has no format that is read; expected {_FORMATS}: rename it")
        size_of(file)
    return [str(file) for file in files]


def documents(name: str, document_bytes: int) -> Iterator[Document]:
    """Yields the documents of a file or a URL (`textfiles.read`)."""
    if not remote.is_remote(name):
        yield from textfiles.read(Path(name), document_bytes)
        return
    with remote.local(name) as path:
        try:
            yield from textfiles.read(path, document_bytes)
        except UserError as error:
            raise UserError(str(error).replace(str(path), name)) from None


def fingerprint(name: str) -> str:
    """Returns the sha256 of a file or a URL."""
    if remote.is_remote(name):
        return remote.sha256(name)
    try:
        with Path(name).open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise UserError(f"{name} cannot be read: {error.strerror}; check its permissions") from None


def _once(paths: Iterable[Path]) -> list[Path]:
    """Returns distinct files, sorted.
    Of several names for one file it keeps the non-link, else the shortest."""
    names: dict[str, Path] = {}
    for file in sorted(
        paths, key=lambda p: (os.path.realpath(p) != os.path.abspath(p), len(p.parts), p)
    ):
        names.setdefault(os.path.realpath(file), file)
    return sorted(names.values())


def _globbed(path: Path) -> Iterator[str]:
    """Yields the matches of a pattern, as `glob.glob(recursive=True)`, but `**` enters a directory
    with many names once."""
    if "**" not in path.parts:
        yield from glob.glob(str(path))
        return
    at = path.parts.index("**")
    head, tail = path.parts[:at], path.parts[at + 1 :] or ("*",)
    for root in glob.glob(str(Path(*head))) if head else ["."]:
        for folder in _folders(root):
            yield from _globbed(Path(glob.escape(folder), *tail))


def _folders(root: str) -> Iterator[str]:
    """Yields a directory and all directories below it that are not hidden: real ones first, then
    directories that only a link reaches."""
    links, seen = [root] if os.path.isdir(root) else [], set()
    while links:
        pending = [links.pop(0)]
        while pending:
            folder = pending.pop()
            if (real := os.path.realpath(folder)) in seen:
                continue
            seen.add(real)
            yield folder
            with contextlib.suppress(OSError), os.scandir(folder) as entries:
                for entry in sorted(entries, key=lambda e: e.name):
                    if not entry.name.startswith(".") and entry.is_dir():
                        (links if entry.is_symlink() else pending).append(entry.path)


def _urls(source: str) -> list[str]:
    matches = remote.match(source)
    names = [name for name in matches if textfiles.file_format(Path(name))]
    if not names:
        reason = (
            f"{matches[0]} has no format that is read" if matches else f"nothing matches {source}"
        )
        raise UserError(
            f"{reason}; expected {_FORMATS}, a pattern of them or a folder that ends in /"
        )
    return names


def _missing(source: str, path: Path) -> str:
    if any(c in source for c in "*?["):
        return f"no file matches {source}; check the pattern (and quote it in the shell)"
    near = (
        closest(path.name, [p.name for p in path.parent.iterdir()]) if path.parent.is_dir() else ""
    )
    return (
        f"no such data source: {source}; expected a file, a glob, a directory, tfds:NAME or "
        f"pydocs.{near}"
    )
