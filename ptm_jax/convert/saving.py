"""Writes checkpoint files: safetensors in the layout of `save_pretrained`.
One tensor is in memory at a time.

Files are renamed to their final names only after all are written. Files of an earlier export are
deleted last. If the process is interrupted, the directory holds the old checkpoint, the new one, or
(while shards of the same names are being replaced) none.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ptm_jax.convert.formats.safetensors_files import layout
from ptm_jax.convert.formats.tensors import DTYPES, FLOATS, TYPES, bytes_of
from ptm_jax.core.errors import UserError
from ptm_jax.core.reading import shown

_INDEX = "model.safetensors.index.json"
_WEIGHTS = re.compile(r"model(-\d{5}-of-\d{5})?\.safetensors|model\.safetensors\.index\.json")
_TYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}


@dataclasses.dataclass(frozen=True)
class Lazy:
    """A tensor that is computed by `make()` when it is written, with its shape and element type."""

    shape: tuple[int, ...]
    make: Callable[[], Any]
    dtype: Any = np.float32


@dataclasses.dataclass(frozen=True)
class _Plan:
    name: str
    dtype: str
    shape: tuple[int, ...]
    source: Any

    @property
    def size(self) -> int:
        size = bytes_of(self.dtype, self.shape)
        if size is None:
            raise ValueError(f"{self.name} has the shape {self.shape}")
        return size


def write_tensors(
    folder: str | os.PathLike,
    tensors: Iterable[tuple[str, Any]],
    *,
    dtype: Literal["float32", "float16", "bfloat16"] | None = "float32",
    max_shard_bytes: int = 5_000_000_000,
) -> list[Path]:
    """Writes named tensors to `folder` and returns the paths of the files, the index last.

    tensors          (name, value): a numpy or JAX array, a `Lazy`, or a function that returns an
                     array. A function is called twice, for the shape and for the data
    dtype            the type of floating point in the file; None: unchanged
    max_shard_bytes  the maximum size of a file; only a single larger tensor exceeds it
    """
    folder = Path(folder)
    plans = [_planned(name, source, dtype) for name, source in tensors]
    if len({plan.name for plan in plans}) < len(plans):
        raise ValueError("two tensors have the same name")
    shards = _split(plans, max_shard_bytes)
    many = len(shards)
    files = [
        f"model-{i + 1:05d}-of-{many:05d}.safetensors" if many > 1 else "model.safetensors"
        for i in range(many)
    ]
    contents = {
        name: functools.partial(_write, plans=shard)
        for name, shard in zip(files, shards, strict=True)
    }
    if many > 1:
        places = {
            plan.name: name for name, shard in zip(files, shards, strict=True) for plan in shard
        }
        text = _index(plans, places)
        contents[_INDEX] = lambda path: path.write_text(text, encoding="utf8")
    drafts = {name: folder / f".{name}.{os.getpid()}.partial" for name in contents}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, write in contents.items():
            write(drafts[name])
        if many > 1:
            (folder / _INDEX).unlink(missing_ok=True)
        for name, draft in drafts.items():
            os.replace(draft, folder / name)
        for path in folder.iterdir():
            if _WEIGHTS.fullmatch(path.name) and path.name not in drafts:
                path.unlink()
    except OSError as error:
        raise UserError(
            f"{folder}: the checkpoint could not be written ({error.strerror or error})"
        ) from None
    finally:
        for draft in drafts.values():
            with contextlib.suppress(OSError):
                draft.unlink(missing_ok=True)
    return [folder / name for name in drafts]


def _planned(name: str, source: Any, dtype: str | None) -> _Plan:
    made = (
        source if hasattr(source, "shape") else source() if callable(source) else np.asarray(source)
    )
    source, kind = source if callable(source) else made, np.dtype(made.dtype)
    code = TYPES.get(kind.name)
    if code is None:
        raise UserError(
            f"tensor {shown(name)} is of type {kind}; these are written: {', '.join(DTYPES)}"
        )
    if code in FLOATS and dtype is not None:
        code = _TYPES[dtype]
    return _Plan(name, code, tuple(int(size) for size in made.shape), source)


def _split(plans: list[_Plan], limit: int) -> list[list[_Plan]]:
    """Returns the tensors of each file, in order; a new file starts where the limit would be
    exceeded.

    As in huggingface_hub, a tensor larger than the limit gets its own file, placed before the file
    being filled.
    """
    done: list[list[_Plan]] = []
    current: list[_Plan] = []
    room = limit
    for plan in plans:
        if plan.size > limit:
            done.append([plan])
            continue
        if plan.size > room:
            done.append(current)
            current, room = [], limit
        current.append(plan)
        room -= plan.size
    return [*done, current] if current or not done else done


def _index(plans: list[_Plan], places: Mapping[str, str]) -> str:
    """Returns the text of the index file."""
    parameters = sum(int(np.prod(plan.shape, dtype=object)) for plan in plans)
    sizes = {"total_parameters": parameters, "total_size": sum(plan.size for plan in plans)}
    return (
        json.dumps({"metadata": sizes, "weight_map": dict(places)}, indent=2, sort_keys=True) + "\n"
    )


def _write(path: Path, plans: list[_Plan]) -> None:
    """Writes one safetensors file and syncs it to disk."""
    head, order = layout([(plan.name, plan.dtype, plan.shape) for plan in plans], {"format": "pt"})
    by_name = {plan.name: plan for plan in plans}
    with path.open("wb") as file:
        file.write(head)
        for name in order:
            file.write(_data(by_name[name]))
        file.flush()
        os.fsync(file.fileno())


def _data(plan: _Plan) -> memoryview:
    """Returns the bytes of a tensor in its file."""
    source = plan.source
    value = np.asarray(
        source.make() if isinstance(source, Lazy) else source() if callable(source) else source
    )
    if value.shape != plan.shape:
        raise ValueError(f"{plan.name} was announced as {plan.shape}, and is {value.shape}")
    kind = DTYPES[plan.dtype]
    if value.dtype != kind:
        with np.errstate(over="ignore", invalid="ignore"):
            narrow = value.astype(kind)
        if plan.dtype in FLOATS and kind.itemsize < value.dtype.itemsize:
            lost = np.isinf(narrow) & np.isfinite(value)
            if lost.any():
                raise UserError(
                    f"tensor {shown(plan.name)} holds {value[lost][0]}, too large for "
                    f"{kind.name}; choose another dtype"
                )
        value = narrow
    return memoryview(np.ascontiguousarray(value).reshape(-1).view(np.uint8))
