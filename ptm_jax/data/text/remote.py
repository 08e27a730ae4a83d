"""Files that several machines see: a shared folder, or URLs (gs://, s3://, hdfs://) by Beam."""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from ptm_jax.core.errors import UserError


def is_remote(name: str) -> bool:
    """Whether a name is a URL."""
    return "://" in name


def _systems():
    try:
        from apache_beam.io.filesystems import FileSystems
    except ImportError:
        raise UserError(
            "a URL that is no prepared corpus is read as text by Apache Beam, which is not "
            "installed; prepare a corpus there (ptm prepare --out URL), or run pip install "
            "'ptm_jax[beam]'"
        ) from None
    return FileSystems


@contextlib.contextmanager
def _errors(name: str) -> Iterator[None]:
    """Raises UserError for the exceptions of any file system."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        what = (
            "check it and its rights; gs:// needs pip install 'apache-beam[gcp]', s3:// "
            "'apache-beam[aws]'"
        )
        raise UserError(f"{name} cannot be reached ({reason}); {what}") from None


def match(pattern: str) -> list[str]:
    """Returns the URLs that a pattern matches, sorted.
    A pattern that ends in `/` means all files in that folder."""
    pattern = pattern + "*" if pattern.endswith("/") else pattern
    with _errors(pattern):
        return sorted(file.path for file in _systems().match([pattern])[0].metadata_list)


@contextlib.contextmanager
def _opened(name: str) -> Iterator[BinaryIO]:
    from apache_beam.io.filesystem import CompressionTypes

    with (
        _errors(name),
        _systems().open(name, compression_type=CompressionTypes.UNCOMPRESSED) as stream,
    ):
        yield stream


@contextlib.contextmanager
def local(name: str) -> Iterator[Path]:
    """Copies the file at a URL to this machine, under its own name, for the time of the context."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name.rpartition("/")[2]
        with _opened(name) as stream, path.open("wb") as target:
            shutil.copyfileobj(stream, target, 1 << 20)
        yield path


def sha256(name: str) -> str:
    """Returns the hash of the file at a URL."""
    digest = hashlib.sha256()
    with _opened(name) as stream:
        while chunk := stream.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def exists(target: str) -> bool:
    """Whether there is a file at a path or URL."""
    if not is_remote(target):
        return Path(target).exists()
    with _errors(target):
        return _systems().exists(target)


def put(path: Path, target: str) -> None:
    """Copies a file to a path or URL, where it appears only when complete."""
    folder, _, name = target.rpartition("/")
    temporary = f"{folder}/.{name}.{uuid.uuid4().hex}"
    if not is_remote(target):
        shutil.copyfile(path, temporary)
        Path(temporary).rename(target)
        return
    from apache_beam.io.filesystem import CompressionTypes

    with _errors(target):
        with (
            _systems().create(temporary, compression_type=CompressionTypes.UNCOMPRESSED) as stream,
            path.open("rb") as source,
        ):
            shutil.copyfileobj(source, stream, 1 << 20)
        _systems().rename([temporary], [target])


def fetch(folder: str, target: Path) -> None:
    """Copies the complete files in a folder at a URL."""
    for name in match(f"{folder}/"):
        if not name.rpartition("/")[2].startswith("."):
            with local(name) as path:
                shutil.copyfile(path, target / path.name)


def delete(folder: str) -> None:
    """Deletes a folder at a URL and its contents."""
    with _errors(folder):
        _systems().delete([folder])


def make(folder: str) -> None:
    """Makes a folder at a URL; does nothing on file systems without folders."""
    with _errors(folder), contextlib.suppress(OSError):
        _systems().mkdirs(folder)
