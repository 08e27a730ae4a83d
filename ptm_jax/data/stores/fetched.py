"""Corpora of object stores, fetched once for a machine into a bounded folder of the cache.

    CACHE/stores/HASH/      the files of a corpus, HASH of its URL and its manifest

The least recently used corpora that no process uses are deleted where a new one needs room:
PTM_STORE_GB gigabytes in all (default: what the disk has free). Without a cache (PTM_CACHE=off) a
corpus is fetched for one process.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from ptm_jax.core import cache
from ptm_jax.core.errors import UserError
from ptm_jax.data.stores import objects, working

MANIFEST = "manifest.json"
LIMIT = "PTM_STORE_GB"
_handles: dict[Path, int] = {}
"""{folder: the open file whose lock keeps other processes from deleting it}."""


def is_corpus(place: str | os.PathLike) -> bool:
    """Whether a folder or URL holds a prepared corpus."""
    if objects.is_store(place):
        return objects.exists(objects.joined(os.fspath(place), MANIFEST))
    return (Path(place) / MANIFEST).is_file()


def corpus(place: str | os.PathLike) -> Path:
    """Returns the folder of a corpus on this machine, which is fetched if it is in a store.
    Other folders, and those without a manifest, are returned as they are. Raises UserError."""
    url = working.url_of(place)
    if url is None or (not objects.is_store(place) and (Path(place) / MANIFEST).is_file()):
        return Path(place)
    try:
        manifest = objects.read(objects.joined(url, MANIFEST))
    except FileNotFoundError:
        return working.opened(place)
    home = working.scratch("corpora") if cache.home() is None else cache.home() / "stores"
    folder = home / hashlib.sha256(url.encode() + manifest).hexdigest()[:24]
    try:
        cache.make_private(home)
        with cache.alone(folder.with_suffix(".lock"), folder.is_dir()):
            if not folder.is_dir():
                _fetch(url, folder)
            _use(folder)
        os.utime(folder)
    except OSError as error:
        raise UserError(
            f"cannot fetch {url} into {home}: {error.strerror or error}; free space there, or name "
            "another folder with PTM_CACHE"
        ) from error
    working.call_it(folder, url)
    return folder


def _fetch(url: str, folder: Path) -> None:
    """Fetches a corpus. Raises OSError or UserError, after which nothing of it is left."""
    entries = objects.listed(url)
    _make_room(folder.parent, entries, url)
    draft = folder.with_suffix(".draft")
    shutil.rmtree(draft, ignore_errors=True)
    try:
        for name, entry in entries.items():
            objects.fetch(objects.joined(url, name), draft / name)
            if (size := (draft / name).stat().st_size) != entry.size:
                raise UserError(
                    f"{objects.joined(url, name)} came with {size} of {entry.size} bytes; run the "
                    "same command again"
                )
        draft.rename(folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _make_room(home: Path, entries: Mapping[str, objects.Entry], url: str) -> None:
    """Deletes the least recently used corpora until a new one fits. Raises UserError."""
    size = sum(entry.size for entry in entries.values())
    limit = _limit()
    folders = sorted((path for path in home.iterdir() if path.is_dir()), key=_last_use)
    sizes = {path: _size(path) for path in folders}
    room = min(2**63 if limit is None else limit, sum(sizes.values()) + _free(home))
    for path in folders:
        if sum(sizes.values()) + size > room and _is_unused(path):
            shutil.rmtree(path, ignore_errors=True)
            del sizes[path]
    if limit is not None and size > limit:
        raise UserError(
            f"{url} has {size / 1e9:.3g} GB, more than {LIMIT}={limit / 1e9:g} of this machine; "
            "raise it, or give a corpus on a shared disk"
        )
    if size > (free := _free(home)):
        raise UserError(
            f"{url} has {size / 1e9:.3g} GB, and {home} has {free / 1e9:.3g} GB free; name a "
            "folder on a larger disk with PTM_CACHE"
        )


def _limit() -> int | None:
    text = os.environ.get(LIMIT)
    if text is None:
        return None
    try:
        return int(float(text) * 1e9)
    except ValueError:
        raise UserError(f"{LIMIT} is {text!r}; expected a number of gigabytes") from None


def _free(folder: Path) -> int:
    return shutil.disk_usage(folder).free


def _use(folder: Path) -> None:
    """Marks a folder as used, until this process ends."""
    if folder not in _handles:
        path = folder.with_suffix(".used")
        _handles[folder] = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(_handles[folder], fcntl.LOCK_SH)


def _is_unused(folder: Path) -> bool:
    with cache.locked(folder.with_suffix(".used"), wait=False) as handle:
        return handle is not None


def _last_use(path: Path) -> float:
    return path.stat().st_mtime


def _size(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
