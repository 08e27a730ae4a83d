"""Where checkpoints lie: a folder of a disk, or an object store.

A shelf names the path that orbax writes to, makes the written checkpoint complete, lists complete
checkpoints, verifies and deletes them.

On a disk the arrays are written into draft_*, flushed, and renamed. A store has no rename: the
arrays are written to their place, and the record, written last, makes a checkpoint complete. One
without a record is never listed, and the next run deletes it. The record of a store has the size
and the checksum that the store made of each object, so that nothing is read again to verify it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax

from ptm_jax.core.errors import UserError
from ptm_jax.data.stores import objects, working
from ptm_jax.training import sealing, workdirs
from ptm_jax.training.sealing import Damaged

if TYPE_CHECKING:
    from etils import epath


class Shelf:
    """The checkpoints in a folder of a disk, WORKDIR/checkpoints."""

    advice = "free space there or name a workdir that can be written."
    stored = False
    """Whether it is in an object store."""

    def __init__(self, workdir: Path):
        self.workdir, self.root = workdir, workdir / "checkpoints"

    def steps(self) -> list[int]:
        """Returns the steps of all checkpoints, ascending, including damaged ones."""
        return workdirs.steps_of(self.workdir)

    def path(self, step: int) -> Path | epath.Path:
        """Returns the folder of a checkpoint."""
        return workdirs.checkpoint_of(self.workdir, step)

    def readable(self, step: int) -> Path | epath.Path:
        """Returns the folder from which orbax reads a checkpoint."""
        return self.path(step)

    def probe(self) -> None:
        """Writes and deletes a file. Raises an error where nothing can be written."""
        self.root.mkdir(parents=True, exist_ok=True)
        probe = self.root / f"draft_probe_{jax.process_index()}_{os.getpid()}"
        probe.write_bytes(b"")
        probe.unlink()

    def draft(self, step: int) -> Path | epath.Path:
        """Returns the folder that orbax writes a checkpoint to."""
        return self.root / f"draft_{step:08d}"

    def complete(self, step: int, body: dict[str, Any]) -> None:
        """Makes a written draft the checkpoint of a step, in place of an earlier one."""
        sealing.seal(self.draft(step), body)
        if self.path(step).exists():
            self.drop(step)
        os.rename(self.draft(step), self.path(step))
        sealing.flush(self.root)

    def record(self, step: int) -> dict[str, Any]:
        """Returns the record of a checkpoint. Raises Damaged."""
        return sealing.record(self.path(step))

    def verify(self, step: int) -> dict[str, Any]:
        """Returns the record of a checkpoint after verifying all files. Raises Damaged."""
        return sealing.verify(self.path(step))

    def drop(self, step: int) -> None:
        """Deletes a checkpoint.
        It is renamed first, so that a kill does not leave an incomplete step_* folder."""
        old = self.root / f"old_{step:08d}"
        os.rename(self.path(step), old)
        shutil.rmtree(old, ignore_errors=True)

    def sweep(self) -> None:
        """Deletes what is left of saves and deletions that were interrupted."""
        for pattern in ("draft_*", "old_*"):
            for path in self.root.glob(pattern):
                shutil.rmtree(path, ignore_errors=True)

    @contextlib.contextmanager
    def writing(self, last: int | None = None) -> Iterator[None]:
        """Converts an error into a UserError with an advice. `last` is the last intact step."""
        remark = "" if last is None else f" The checkpoint of step {last} is intact."
        try:
            yield
        except Exception as error:
            reason = self.reason(error)
            raise UserError(
                f"cannot write checkpoints to {self.root}: {reason}; {self.advice}{remark}"
            ) from error

    def reason(self, error: Exception) -> str:
        """Returns the reason of an error of the libraries, in one line."""
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        match = re.search(r"os_error_code='(\d+)'|OS error (\d+)|Errno (\d+)", reason)
        return os.strerror(int(next(filter(None, match.groups())))) if match else reason


class StoreShelf(Shelf):
    """The checkpoints of a workdir in an object store, of which `workdir` is the working copy."""

    advice = "check the store, the bucket and your rights there, and run the same command again."
    stored = True

    def __init__(self, workdir: Path, url: str):
        super().__init__(workdir)
        self.url = objects.joined(url, "checkpoints")
        self.root = _path(self.url)

    def path(self, step: int) -> epath.Path:
        return self.root / workdirs.step_name(step)

    def draft(self, step: int) -> Path | epath.Path:
        return self.path(step)

    def probe(self) -> None:
        probe = objects.joined(self.url, f"draft_probe_{jax.process_index()}_{os.getpid()}")
        objects.write(probe, b"-")
        objects.delete([probe])

    def complete(self, step: int, body: dict[str, Any]) -> None:
        """Writes the files of the run, then the record."""
        self.upload(step)
        working.push(self.workdir)
        files = {name: list(entry) for name, entry in self._files(step).items()}
        data = sealing.sealed({**body, "files": files, "sums": "store"})
        objects.write(self._of(step, sealing.RECORD), data)

    def upload(self, step: int) -> None:
        """Writes the arrays of a draft into the store, if orbax has not."""

    def record(self, step: int) -> dict[str, Any]:
        try:
            content = json.loads(objects.read(self._of(step, sealing.RECORD)))
        except FileNotFoundError:
            raise Damaged(f"{sealing.RECORD} is missing") from None
        except ValueError:
            raise Damaged(f"{sealing.RECORD} is not readable") from None
        return sealing.checked(content, Path(workdirs.step_name(step)))

    def verify(self, step: int) -> dict[str, Any]:
        body, files = self.record(step), self._files(step)
        for name, (size, checksum) in body["files"].items():
            if name not in files:
                raise Damaged(f"{name} is missing")
            if files[name].size != size:
                raise Damaged(f"{name} has {files[name].size} bytes instead of {size}")
            if body.get("sums") == "store" and files[name].checksum != checksum:
                raise Damaged(f"{name} does not have its checksum")
        return body

    def drop(self, step: int) -> None:
        """Deletes a checkpoint, its record first."""
        objects.delete([self._of(step, sealing.RECORD)])
        objects.delete_below(self._of(step))

    def sweep(self) -> None:
        complete = {workdirs.step_name(step) for step in self.steps()}
        for name in objects.names(self.url):
            if name not in complete:
                objects.delete_below(objects.joined(self.url, name))

    def reason(self, error: Exception) -> str:
        reason = str(error) if isinstance(error, UserError) else super().reason(error)
        return reason if len(reason) <= 600 else f"{reason[:597]}..."

    def _of(self, step: int, *names: str) -> str:
        return objects.joined(self.url, workdirs.step_name(step), *names)

    def _files(self, step: int) -> dict[str, objects.Entry]:
        files = objects.listed(self._of(step))
        return {name: files[name] for name in files if name != sealing.RECORD}


class CarriedShelf(StoreShelf):
    """The checkpoints in a store that orbax does not write to (S3), of a run of one process.
    It writes and reads a folder of this machine, whose files are carried to and from the store."""

    def __init__(self, workdir: Path, url: str):
        super().__init__(workdir, url)
        if jax.process_count() > 1:
            raise UserError(
                f"{url} is of a store to which orbax does not write from several processes; name "
                "a gs:// URL or a shared folder"
            )
        self._local = working.scratch("carried") / hashlib.sha256(url.encode()).hexdigest()[:16]

    def draft(self, step: int) -> Path:
        return self._local / f"draft_{step:08d}"

    def upload(self, step: int) -> None:
        for file in sealing.files(self.draft(step)):
            objects.put(file, self._of(step, file.relative_to(self.draft(step)).as_posix()))
        shutil.rmtree(self.draft(step))

    def readable(self, step: int) -> Path:
        folder = self._local / workdirs.step_name(step)
        for name in self._files(step):
            objects.fetch(self._of(step, name), folder / name)
        return folder

    def sweep(self) -> None:
        super().sweep()
        shutil.rmtree(self._local, ignore_errors=True)


def shelf_of(workdir: Path) -> Shelf:
    """Returns the shelf of a workdir, which may be the working copy of a store's."""
    url = working.url_of(workdir)
    if url is None:
        return Shelf(workdir)
    return (StoreShelf if url.startswith("gs://") else CarriedShelf)(workdir, url)


def verified(workdir: Path, step: int) -> dict[str, Any] | None:
    """Returns the record of an intact checkpoint of a workdir; None for a damaged one."""
    try:
        return shelf_of(workdir).verify(step)
    except (Damaged, OSError):
        return None


def _path(url: str) -> epath.Path:
    from etils import epath

    return epath.Path(url)
