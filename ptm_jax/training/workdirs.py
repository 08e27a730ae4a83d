"""The folder of a run: its paths, its record and its tokenizer.

config.json    {"config": the experiment, "corpus": {"digest", "tokenizer", "vocab", "path"}}; for
               an imported or averaged model {"config": {"system"}}, with the "published" config or
               the models "averaged" "command", optional: the words of `ptm train` that began the
               run "own", optional: where the user's own classes and functions are defined
               (`core.spec.own_code`)
config.txt     the experiment, or the system, as text
tokenizer/     the tokenizer that made the token ids
sentence/      optional: pooling, layers and prompts of a sentence-transformers folder that the run
               began with
other_tokenizer/   optional: the tokenizer of a model inside the network, as BERT's in `bert_fused`
data/          the corpus, unless it was prepared elsewhere
decayed_N/     optional: a workdir with the checkpoint of step N, the end of a decay, from before
               the run got more steps
checkpoints/   see `training.checkpoints`; metrics.jsonl, tensorboard/, loss.png, report.md: see
               `training.logs.logs`
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ptm_jax.core import cache, spec
from ptm_jax.core.errors import UserError
from ptm_jax.core.reading import check_fields, read_bytes, shown
from ptm_jax.core.spec.legacy import renewed
from ptm_jax.core.types import Vocab
from ptm_jax.data.stores import objects, working
from ptm_jax.data.stores.lease import Lease
from ptm_jax.data.tokenizers import saved

SENTENCE = "sentence"
OTHER_TOKENIZER = "other_tokenizer"
SYSTEM = {
    "name?": str,
    "towers": dict,
    "objective?": (str, dict),
    "corruption?": (str, dict),
    "examples?": (str, dict),
    "recipe?": dict,
    "tokenizer?": dict,
}
RECORD = {"config": {"system": SYSTEM}, "corpus?": dict, "command?": str, "own?": dict}
CORPUS = {"corpus": {"digest": str, "tokenizer": str, "vocab": {"size": int}, "path?": str}}
"""Fields of config.json, and of a run that was trained on a corpus."""
LOCK = ".lock"
"""The file in a workdir that the run which writes there holds locked."""

_STEP = re.compile(r"step_(\d+)")


def place_of(path: str | os.PathLike) -> tuple[Path, int | None]:
    """Returns (workdir, step) of a path.
    The path is a workdir, its `checkpoints`, or one of its checkpoints (else step None)."""
    path, step = Path(path).absolute(), None
    if match := _STEP.fullmatch(path.name):
        path, step = path.parent, int(match[1])
    return path.parent if path.name == "checkpoints" else path, step


def checkpoint_of(workdir: Path, step: int) -> Path:
    """Returns the folder of the checkpoint of a step."""
    return workdir / "checkpoints" / step_name(step)


def step_name(step: int) -> str:
    """Returns the name of the checkpoint of a step."""
    return f"step_{step:08d}"


def steps_of(workdir: Path) -> list[int]:
    """Returns the steps of all checkpoints, ascending, including damaged ones.
    In an object store, those that have a record."""
    names = [path.name for path in (workdir / "checkpoints").glob("step_*")]
    if (url := working.url_of(workdir)) is not None:
        root = objects.joined(url, "checkpoints")
        names = [
            name
            for name in objects.names(root)
            if _STEP.fullmatch(name) and objects.exists(objects.joined(root, name, "record.json"))
        ]
    return sorted(int(match[1]) for match in map(_STEP.fullmatch, names) if match)


def set_aside(workdir: Path) -> Path:
    """Copies the last checkpoint of a run, with its record, into a workdir of its own inside.
    Returns that folder."""
    last = max(steps_of(workdir))
    folder, draft = workdir / f"decayed_{last:08d}", workdir / f"draft_decayed_{last:08d}"
    if not folder.is_dir():
        shutil.rmtree(draft, ignore_errors=True)
        if (url := working.url_of(workdir)) is None:
            shutil.copytree(checkpoint_of(workdir, last), checkpoint_of(draft, last))
        else:
            name = f"checkpoints/{step_name(last)}"
            objects.copy_below(objects.joined(url, name), objects.joined(url, folder.name, name))
            draft.mkdir()
        for name in ("config.json", "config.txt"):
            shutil.copyfile(workdir / name, draft / name)
        for name in ("tokenizer", OTHER_TOKENIZER, SENTENCE):
            if (workdir / name).is_dir():
                copy_folder(workdir / name, draft / name)
        os.rename(draft, folder)
    return folder


def read(workdir: Path, *, corpus: bool = False) -> dict[str, Any]:
    """Returns the record of a run.
    Raises UserError; with `corpus`, also if the run was not trained on a corpus."""
    file = workdir / "config.json"
    if not file.is_file():
        raise UserError(
            f"{workdir} is no workdir of a run (it has no config.json); name one that `ptm "
            "train` or `ptm import` wrote"
        )
    try:
        record = renewed(json.loads(read_bytes(file)))
        check_fields(file, record, RECORD | (CORPUS if corpus else {}))
    except (UserError, ValueError, TypeError, AttributeError, LookupError, RecursionError) as error:
        reason = str(error).partition(": ")[2] if isinstance(error, UserError) else shown(error)
        raise UserError(
            f"{file} is no record of a run ({reason}); restore it, or choose another workdir"
        ) from error
    return record


def write(workdir: Path, record: Mapping[str, Any], value: Any) -> None:
    """Writes config.json and, from the spec `value`, config.txt, each atomically.
    Raises OSError."""
    workdir.mkdir(parents=True, exist_ok=True)
    for name, text in (
        ("config.json", working.named(json.dumps(record, indent=1))),
        ("config.txt", spec.to_text(value) + "\n"),
    ):
        path, data = workdir / name, text.encode()
        if not path.is_file() or path.read_bytes() != data:
            replace(path, data)


def command(record: Mapping[str, Any] | None) -> str | None:
    """Returns the command of a run's record.
    For a new run (None) it is this process's command line if it is `ptm`."""
    if record is not None:
        return record.get("command")
    return shlex.join(["ptm", *sys.argv[1:]]) if Path(sys.argv[0]).name == "ptm" else None


def vocab_of(record: Mapping[str, Any]) -> Vocab:
    """Returns the vocabulary of the corpus in a run's record."""
    return Vocab(
        **{k: tuple(v) if k == "extra" else v for k, v in record["corpus"]["vocab"].items()}
    )


def check_tokenizer(workdir: Path, expected: str) -> Any:
    """Returns the tokenizer of a workdir.
    Raises UserError if it is missing or its hash is not `expected`."""
    tokenizer = saved.load(workdir / "tokenizer")
    if tokenizer.hash != expected:
        raise UserError(
            f"the tokenizer in {workdir / 'tokenizer'} ({tokenizer.hash[:12]}) is not the one "
            "that the run was trained with "
            f"({expected[:12]}); put that one back, or choose another workdir"
        )
    return tokenizer


class Hold:
    """The folder that a run writes in.

    handle  descriptor of its locked file; None in a process that holds none, which checks nothing
    lease   of the folder of an object store for which the workdir stands
    """

    def __init__(self, workdir: Path, handle: int | None = None, lease: Lease | None = None):
        self.workdir, self.handle, self.lease = workdir, handle, lease

    def check(self) -> None:
        """Raises UserError if the workdir was removed, renamed or replaced."""
        if self.lease is not None:
            self.lease.check()
        if self.handle is not None and not cache.same_file(self.workdir / LOCK, self.handle):
            raise UserError(
                f"{self.workdir} was removed, renamed or replaced while the run wrote there; put "
                "it back and run the same command again, or start again in another workdir"
            )

    def check_complete(self, step: int) -> None:
        """Raises UserError unless the workdir has all that loads the model of a step."""
        self.check()
        if self.handle is not None:
            expected = read(self.workdir, corpus=True)["corpus"]["tokenizer"]
            check_tokenizer(self.workdir, expected)
            if step not in steps_of(self.workdir):
                raise UserError(
                    f"the checkpoint {checkpoint_of(self.workdir, step)} was removed while the "
                    "run wrote there; run the same command again"
                )


@contextlib.contextmanager
def alone(workdir: Path, writes: bool) -> Iterator[Hold]:
    """Locks a workdir, which is made if it is absent. Yields its hold.
    Two runs there would delete each other's checkpoints.

    The locked file lies in the folder that links lead to, so that every name of the folder has the
    same lock, and a folder above it need not be writable. The operating system ends the lock with
    the process. A folder that was made here and stays empty is removed. A folder that cannot be
    written is not locked."""
    folder, made = workdir.absolute(), False
    if not writes or (workdir.is_dir() and not os.access(workdir, os.W_OK)):
        yield Hold(folder)
        return
    with contextlib.ExitStack() as stack:
        with writing(workdir):
            actual = folder.resolve()
            actual.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileExistsError):
                actual.mkdir()
                made = True
            handle = stack.enter_context(cache.locked(actual / LOCK, wait=False))
        if handle is None:
            raise UserError(
                f"another process is training in {workdir}; wait for it, or choose "
                "another --workdir"
            )
        url = working.url_of(workdir)
        lease = None if url is None else Lease(url)
        try:
            yield Hold(folder, handle, lease)
            if lease is not None:
                lease.release()
        finally:
            if cache.same_file(actual / LOCK, handle):
                (actual / LOCK).unlink(missing_ok=True)
            if made:
                with contextlib.suppress(OSError):
                    actual.rmdir()


@contextlib.contextmanager
def writing(
    path: str | os.PathLike, advice: str = "free space there or name a workdir that can be written"
):
    """Context manager that converts an OSError into a UserError with the path and the advice."""
    try:
        yield
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise UserError(f"cannot write {path}: {reason}; {advice}") from error


def replace(path: Path, data: bytes) -> None:
    """Writes a file atomically. Raises OSError."""
    draft = path.with_name(f".{path.name}.draft")
    try:
        draft.write_bytes(data)
        draft.replace(path)
    except OSError:
        draft.unlink(missing_ok=True)
        raise


def copy_folder(source: Path, target: Path) -> None:
    """Copies a directory of files atomically. Raises OSError."""
    draft = target.with_suffix(".draft")
    shutil.rmtree(draft, ignore_errors=True)
    try:
        draft.mkdir()
        for file in source.iterdir():
            shutil.copyfile(file, draft / file.name)
        draft.replace(target)
    except OSError:
        shutil.rmtree(draft, ignore_errors=True)
        raise
