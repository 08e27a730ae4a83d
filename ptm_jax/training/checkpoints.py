"""Checkpoints with atomic, asynchronous saves and checksums.

    WORKDIR/checkpoints/step_00000200/    the arrays (orbax, one zarr array per leaf) and
                                          record.json
    WORKDIR/checkpoints/draft_..., old_.. being written, being deleted; the next run deletes
                                          leftovers

A save copies the arrays off the device, and orbax writes them to draft_*. Then a background thread
flushes every file to disk, writes the record (the caller's meta, the shape of every leaf, the size
and CRC-32 of every file, and a CRC-32 of the record itself), and renames the draft to step_*. A
folder step_* is therefore complete. Files are verified before they are restored: a damaged
checkpoint is skipped with a line on stderr, and the previous one is used. Old checkpoints are
deleted after the rename, so the disk holds up to keep + 1.

Compression is off: it saves a few percent of weights. On a local disk OCDBT writes a third as fast,
and is off; in an object store it writes a few objects in place of two for each leaf.
With several processes the workdir must be on a shared file system or in an object store. Each
process writes its parts of the arrays; process 0 writes the records and chooses the step to
restore. `training.shelves` has the files of both.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from ptm_jax.core import paths
from ptm_jax.core.errors import UserError
from ptm_jax.core.reading import shown
from ptm_jax.training import shelves, workdirs
from ptm_jax.training.hosts import group
from ptm_jax.training.sealing import Damaged

if TYPE_CHECKING:
    from etils import epath

Shapes = Mapping[str, Sequence[int]]
AS_STORED: Shapes = MappingProxyType({})


@functools.cache
def _hush() -> None:
    """Silences the logs of a failed write: orbax raises the error, and also logs a traceback from
    each of its threads.

    Also silences the warning that there is no OCDBT to merge, and errors of tensorstore and asyncio
    that the garbage collector prints about a second failed write that was not awaited.
    """
    logging.getLogger("absl").addFilter(lambda record: "orbax" not in record.pathname)

    def second(text):
        return "never retrieved" in text and "orbax" in text

    logging.getLogger("asyncio").addFilter(lambda record: not second(record.getMessage()))
    before = sys.unraisablehook

    def late(event):
        return isinstance(event.exc_value, RuntimeError) and "Event loop is closed" in str(
            event.exc_value
        )

    sys.unraisablehook = lambda event: None if late(event) else before(event)


class Checkpoints:
    """The checkpoints of a run.

    workdir   the run's directory; its subfolder is `checkpoints`
    keep      number of newest checkpoints to keep, beside that of the step `pinned` (or None)
    writable  False for readers, which may read while a run writes
    """

    def __init__(self, workdir: str | os.PathLike, keep: int = 2, *, writable: bool = True):
        if keep < 1:
            raise UserError(f"keep is {keep}; at least 1 checkpoint must stay")
        self.shelf = shelves.shelf_of(Path(workdir).absolute())
        self.root = self.shelf.root
        self.keep, self.pinned = keep, None
        self._copies: dict[str, jax.Array] = {}
        self._thread: threading.Thread | None = None
        self._error: UserError | None = None
        self._written: int | None = None
        self._intact: set[int] = set()
        self._bad: set[int] = set()
        ocdbt = self.shelf.stored
        self._orbax = _orbax().AsyncCheckpointer(_handler(ocdbt)) if writable else None
        if writable:
            _hush()
            with self.shelf.writing():
                self.shelf.probe()
                self._sweep()

    def steps(self) -> list[int]:
        """Returns the steps of all checkpoints, ascending, including damaged ones."""
        return self.shelf.steps()

    def latest(self) -> int | None:
        """Returns the newest step with an intact checkpoint, or None.
        Prints a line on stderr for each damaged one."""
        return group.current().chosen(self._newest_intact)

    def save(
        self, step: int, state: Any, meta: Mapping[str, Any], *, true: Shapes = AS_STORED,
        last: bool = False,
    ) -> None:  # fmt: skip
        """Starts saving a tree of arrays and a JSON object.
        The arrays may be donated as soon as this returns; after the `last` save, never.

        `true` has the unpadded shapes of padded leaves (`mesh.padding`). The record stores these
        shapes, and a run restores the leaves with the padding of its own mesh.

        Waits for an unfinished previous save. Deletes older checkpoints, and those of later steps,
        which exist if the run was restored from an earlier step. Raises UserError if the previous
        save failed.
        """
        self.wait()
        if step == self._written:
            return
        flat = paths.flatten(state)
        body = {"step": step, "meta": meta, "tree": _described(flat, true)}
        json.dumps(body)
        with self.shelf.writing(self._last_intact()):
            if self.shelf.stored:  # orbax refuses a place that is taken, in every process
                group.current().chosen(lambda: self._make_free(step))
            self._sweep()
            self._orbax.save(
                self.shelf.draft(step),
                args=_orbax().args.PyTreeSave(
                    paths.unflatten(flat if last else self._copied(flat))
                ),
            )
        self._thread = threading.Thread(
            target=self._finish, args=(step, body), name=f"checkpoint-{step}"
        )
        self._thread.start()

    def wait(self) -> None:
        """Waits until the current save is on disk. Raises UserError if it failed."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def restore(
        self, step: int | None = None, *, like: Any, true: Shapes = AS_STORED
    ) -> tuple[Any, dict[str, Any], int]:
        """Returns (state, meta, step) of a step, or of the newest intact one.

        `like` is a tree of arrays or `jax.ShapeDtypeStruct`s. Each leaf is restored to its
        `sharding` in `like`, which may differ from the saved one. Raises UserError for the first
        leaf that differs, or if there is no checkpoint.
        """
        self.wait()
        step = self._choose(step)
        body = group.current().chosen(lambda: self._verified(step))
        wanted = paths.flatten(like)
        _compare(body["tree"], wanted, true, self._path(step))
        arrays = _read(self.shelf.readable(step), wanted)
        state = jax.tree.unflatten(jax.tree.structure(like), [arrays[path] for path in wanted])
        return state, body["meta"], step

    def _copied(self, flat: dict[str, Any]) -> dict[str, Any]:
        """Copies the arrays into a buffer reused by all saves on a CPU.
        Elsewhere orbax copies them to the host.

        On a CPU, orbax writes from the arrays themselves, so the next step cannot overwrite them
        and allocates new memory while the disk is busy: seconds for BERT-base, compared to 0.1 s
        for this copy.
        """
        if jax.default_backend() != "cpu":
            return flat
        old, self._copies = self._copies, {}

        def kind(leaf):
            return isinstance(leaf, jax.Array) and (leaf.shape, leaf.dtype, leaf.sharding)

        if {path: kind(leaf) for path, leaf in flat.items()} == {
            path: kind(leaf) for path, leaf in old.items()
        }:
            self._copies = _copy_into(flat, old)
        else:
            self._copies = jax.tree.map(jnp.copy, flat)
        return self._copies

    def _path(self, step: int) -> Path | epath.Path:
        return self.shelf.path(step)

    def _last_intact(self) -> int | None:
        return max((step for step in self.steps() if step not in self._bad), default=None)

    def _choose(self, step: int | None) -> int:
        chosen = self.latest() if step is None else step
        if chosen is None:
            raise UserError(
                f"there is no usable checkpoint in {self.root}; train first or name another workdir"
            )
        if step is not None and step not in self.steps():
            steps = ", ".join(map(str, self.steps())) or "none"
            raise UserError(
                f"there is no checkpoint of step {step} in {self.root}; there are: {steps}"
            )
        return chosen

    def _verified(self, step: int) -> dict[str, Any]:
        path = self._path(step)
        try:
            return self.shelf.record(step) if step in self._intact else self.shelf.verify(step)
        except (Damaged, OSError) as error:
            raise UserError(
                f"the checkpoint {path} is damaged: {error}; restore another step"
            ) from error

    def _newest_intact(self) -> int | None:
        newest, skipped = None, []
        for step in reversed(self.steps()):
            try:
                if step not in self._bad and (step in self._intact or self.shelf.verify(step)):
                    self._intact.add(newest := step)
                    break
            except (Damaged, OSError) as error:
                self._bad.add(step)
                skipped.append(f"skipped the damaged checkpoint {self._path(step)}: {error}")
        instead = (
            "there is no whole one before it" if newest is None else f"using that of step {newest}"
        )
        for line in skipped:
            print(f"{line}; {instead}", file=sys.stderr)
        return newest

    def _finish(self, step: int, body: dict[str, Any]) -> None:
        """Background part of a save: waits for the arrays, completes the checkpoint, deletes old
        ones."""
        try:
            with self.shelf.writing(self._last_intact()):
                self._orbax.wait_until_finished()
                if jax.process_index() == 0:
                    self.shelf.complete(step, body)
                    self._intact.add(step)
                    self._bad.discard(step)
                    self._retire(step)
            self._written = step
        except UserError as error:
            self._error = error
            with contextlib.suppress(UserError):
                self._sweep()

    def _retire(self, newest: int) -> None:
        past = [step for step in self.steps() if step <= newest and step not in self._bad]
        for step in set(self.steps()) - {*past[-self.keep :], self.pinned}:
            self._drop(step)

    def _drop(self, step: int) -> None:
        """Deletes a checkpoint."""
        self.shelf.drop(step)
        self._intact.discard(step)
        self._bad.discard(step)

    def _make_free(self, step: int) -> None:
        """Deletes a damaged checkpoint of a step that is saved again."""
        self._sweep()
        if step in self.steps():
            self._drop(step)

    def _sweep(self) -> None:
        if jax.process_index() == 0:
            self.shelf.sweep()


def restore_params(
    path: str | os.PathLike,
    *,
    step: int | None = None,
    like: Any = None,
    name: str = "params",
    true: Shapes = AS_STORED,
):
    """Returns (params, meta, step) for inference: the subtree `name`.
    The optimizer's state is not read.

    path  a workdir, its `checkpoints`, or one of its checkpoints
    like  the tree of shapes and shardings; by default as saved, on the first local device
    true  unpadded shapes of the leaves that are padded in `like`, as in `Checkpoints.save`
    """
    workdir, named = workdirs.place_of(path)
    store = Checkpoints(workdir, writable=False)
    step = store._choose(step if named is None else named)
    body = store._verified(step)
    tree = {key: value for key, value in body["tree"].items() if key.startswith(f"{name}/")}
    if not tree:
        names = ", ".join(sorted({key.split("/")[0] for key in body["tree"]}))
        raise UserError(f"the checkpoint {store._path(step)} has no {name!r}; it has: {names}")
    if like is None:
        wanted = {
            key: jax.ShapeDtypeStruct(tuple(shape), dtype) for key, (shape, dtype) in tree.items()
        }
    else:
        wanted = {f"{name}/{key}": leaf for key, leaf in paths.flatten(like).items()}
        _compare(tree, wanted, true, store._path(step))
    arrays = _read(store.shelf.readable(step), wanted)
    for key, leaf in arrays.items():
        if not all(np.isfinite(np.asarray(shard.data)).all() for shard in leaf.addressable_shards):
            raise UserError(
                f"{store._path(step)}: {key} has numbers that are NaN or infinite; take "
                "another checkpoint"
            )
    params = paths.unflatten({key.removeprefix(f"{name}/"): arrays[key] for key in wanted})
    return params, body["meta"], step


@functools.partial(jax.jit, donate_argnums=1, keep_unused=True)
def _copy_into(new, old):
    """Copies the arrays `new` into the memory of `old`."""
    return jax.tree.map(jnp.copy, new)


def _orbax():
    """Orbax, whose import takes longer than reading a finished run."""
    import orbax.checkpoint as ocp

    return ocp


def _handler(ocdbt: bool = False):
    return _orbax().PyTreeCheckpointHandler(use_ocdbt=ocdbt, use_compression=False)


def _read(path: Path | epath.Path, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Reads only the leaves at the wanted paths, each to its sharding."""
    home = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    item = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), paths.unflatten(wanted)
    )

    # Not strict: the padding of the saved mesh is removed, the padding of this mesh added. True
    # shapes were compared.
    def target(leaf):
        return _orbax().ArrayRestoreArgs(
            sharding=leaf.sharding or home,
            global_shape=tuple(leaf.shape),
            dtype=leaf.dtype,
            strict=False,
        )

    targets = jax.tree.map(target, paths.unflatten(wanted))
    args = _orbax().args.PyTreeRestore(item=item, restore_args=targets, partial_restore=True)
    try:
        return paths.flatten(_orbax().Checkpointer(_handler()).restore(path, args=args))
    except Exception as error:  # the record fits, and the arrays do not: any error of the libraries
        reason = shown(str(error))
        raise UserError(f"the checkpoint {path} cannot be read ({reason}); take another") from error


def _described(flat: Mapping[str, Any], true: Shapes) -> dict[str, Any]:
    """Returns {path: [shape, type]} as in the record."""
    return {
        path: [list(true.get(path, leaf.shape)), str(leaf.dtype)] for path, leaf in flat.items()
    }


def _compare(
    saved: Mapping[str, Any], leaves: Mapping[str, Any], true: Shapes, path: Path | epath.Path
) -> None:
    wanted = _described(leaves, true)
    for key in sorted({*saved, *wanted}):
        if saved.get(key) != wanted.get(key):

            def describe(leaf):
                return f"{leaf[1]}{leaf[0]}" if leaf else "nothing"

            raise UserError(
                f"the checkpoint {path} does not fit: at {key!r} it has "
                f"{describe(saved.get(key))} and this run "
                f"expects {describe(wanted.get(key))}; resume with the config it was written "
                "with, or use a new workdir"
            )
