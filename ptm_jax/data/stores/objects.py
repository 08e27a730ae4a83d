"""Objects of a store by URL: gs://BUCKET/NAME (gcsfs) and s3://BUCKET/NAME (s3fs).

A store has no folders and no rename. An object is written whole: it has its old content until the
new one is complete. Credentials, endpoints and retries are the libraries' own (Application Default
Credentials, STORAGE_EMULATOR_HOST; AWS_PROFILE, AWS_ENDPOINT_URL). Every function raises UserError
in one line.
"""

from __future__ import annotations

import base64
import contextlib
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ptm_jax.core.errors import UserError

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

PACKAGES = {"gs": "gcsfs", "s3": "s3fs"}
"""{scheme of a URL: the package that opens it}."""
_URL = re.compile(r"(gs|s3)://[^/]+(/.*)?", re.DOTALL)
_REFUSED = re.compile(r"\b(40[13]|access ?denied|forbidden|unauthorized|permission)", re.IGNORECASE)
_HTML = re.compile(r"<[^>]*>")


class Entry(NamedTuple):
    """An object: its bytes, and 32 bits of the checksum that the store made of them."""

    size: int
    checksum: int


def is_store(place: str | os.PathLike) -> bool:
    """Whether a path is the URL of an object store."""
    return _URL.fullmatch(os.fspath(place)) is not None


def joined(url: str, *names: str) -> str:
    """Returns the URL of a name below a URL."""
    return "/".join([url.rstrip("/"), *names])


def listed(url: str) -> dict[str, Entry]:
    """Returns {name below `url`: entry} of all objects there."""
    with _errors(url, "read") as system:
        system.invalidate_cache()
        objects = system.find(url, detail=True)
    prefix = url.rstrip("/").partition("://")[2] + "/"
    entries = {name.lstrip("/"): facts for name, facts in objects.items()}
    return {
        name.removeprefix(prefix): Entry(int(facts["size"] or 0), _checksum(facts))
        for name, facts in entries.items()
        if name.startswith(prefix) and not name.endswith("/")
    }


def names(url: str) -> list[str]:
    """Returns the names of objects and folders directly below `url`, sorted."""
    with _errors(url, "read") as system:
        system.invalidate_cache()
        with contextlib.suppress(FileNotFoundError):
            return sorted({name.rstrip("/").rpartition("/")[2] for name in system.ls(url, False)})
    return []


def exists(url: str) -> bool:
    """Whether there is an object at a URL."""
    with _errors(url, "read") as system:
        system.invalidate_cache()
        return system.isfile(url)


def read(url: str) -> bytes:
    """Returns the content of an object. Raises FileNotFoundError where there is none."""
    with _errors(url, "read") as system:
        return system.cat_file(url)


def write(url: str, data: bytes) -> None:
    """Writes an object whole."""
    with _errors(url, "write") as system:
        system.pipe_file(url, data)


def put(path: Path, url: str) -> None:
    """Copies a file to an object."""
    with _errors(url, "write") as system:
        system.put_file(str(path), url)


def fetch(url: str, path: Path) -> None:
    """Copies an object to a file, which has its name when it is complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.fetched")
    with _errors(url, "read") as system:
        system.get_file(url, str(draft))
    draft.rename(path)


def copy_below(source: str, target: str) -> None:
    """Copies all objects below a URL inside the store, a `record.json` last."""
    for name in sorted(listed(source), key=lambda name: (name == "record.json", name)):
        with _errors(target, "write") as system:
            system.cp_file(joined(source, name), joined(target, name))


def delete(urls: Iterable[str]) -> None:
    """Deletes objects. One that is gone already is no error."""
    for url in urls:
        with _errors(url, "write") as system, contextlib.suppress(FileNotFoundError):
            system.rm_file(url)


def delete_below(url: str) -> None:
    """Deletes all objects below a URL."""
    delete([joined(url, name) for name in listed(url)])


def check(url: str) -> None:
    """Raises UserError unless the bucket of a URL answers and its package is installed."""
    bucket = "/".join(url.split("/")[:3])
    with _errors(bucket, "read") as system:
        try:
            system.ls(bucket, False)
        except FileNotFoundError:
            raise UserError(f"{url}: there is no bucket {bucket}; check its name") from None


@contextlib.contextmanager
def _errors(url: str, verb: str) -> Iterator[AbstractFileSystem]:
    """Yields the file system of a URL. Raises UserError for its exceptions."""
    try:
        yield _system(url)
    except (UserError, FileNotFoundError):
        raise
    except Exception as error:  # the libraries raise those of aiohttp, botocore, google.auth
        raise UserError(f"cannot {verb} {url}: {_reason(error)}") from error


def _reason(error: BaseException) -> str:
    """Returns one line of what went wrong, and what to do."""
    text = " ".join(_HTML.sub(" ", str(error)).split()) or type(error).__name__
    line = text if len(text) <= 160 else f"{text[:157]}..."
    if isinstance(error, PermissionError) or _REFUSED.search(text):
        return f"the store refuses it ({line}); check the rights of your account on the bucket"
    if "redential" in text:
        return f"{line}; log in as for the store's own tools"
    return f"{line}; check the network and the bucket, and run the same command again"


def _system(url: str) -> AbstractFileSystem:
    """Returns the file system of a URL, of which fsspec keeps one for each scheme and thread."""
    scheme = url.partition("://")[0]
    try:
        import fsspec

        return fsspec.filesystem(scheme, use_listings_cache=False)
    except ImportError:
        package = PACKAGES[scheme]
        raise UserError(
            f"{url} needs the package {package}, which is not installed; pip install "
            "'ptm_jax[store]'"
        ) from None


def _checksum(facts: dict[str, str]) -> int:
    """Returns 32 bits of an object's CRC-32C, or of its ETag."""
    if crc := facts.get("crc32c"):
        return int.from_bytes(base64.b64decode(crc), "big")
    tag = (facts.get("ETag") or facts.get("etag") or "").strip('"')
    return int(tag[:8], 16) if re.match(r"[0-9a-fA-F]{8}", tag) else 0
