"""Adapter files: safetensors with an adapter's trained parameters and its base model's hash.

The base is every other parameter of the adapted system. The file stores the paths of the base
parameters and the SHA-256 of their bytes. Loading it on another model, or on another checkpoint of
the same model, raises an error.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ptm_jax.convert.formats.safetensors_files import layout, open_safetensors
from ptm_jax.core.errors import UserError
from ptm_jax.core.reading import broken, parse_json

FORMAT = "ptm_jax adapter 1"


@dataclasses.dataclass(frozen=True)
class AdapterFile:
    """The contents of an adapter file.

    params  {path: array} of the adapter
    system  the record of the adapted system
    base    hash of the base parameters
    paths   paths of the base parameters
    name    name of the model
    """

    params: Mapping[str, np.ndarray]
    system: Mapping[str, Any]
    base: str
    paths: tuple[str, ...]
    name: str


def digest(flat: Mapping[str, Any]) -> str:
    """Returns the SHA-256 of parameters {path: array}, sorted by path.
    It covers paths, shapes and float32 bytes."""
    state = hashlib.sha256()
    for path in sorted(flat):
        array = np.ascontiguousarray(np.asarray(flat[path], "<f4"))
        state.update(f"{path} {array.shape}\n".encode())
        state.update(array.tobytes())
    return state.hexdigest()


def write(path: str | os.PathLike, file: AdapterFile) -> int:
    """Writes the file atomically and returns its size in bytes. Raises UserError."""
    path = Path(path)
    arrays = {
        name: np.ascontiguousarray(np.asarray(array, "<f4")) for name, array in file.params.items()
    }
    metadata = {"format": FORMAT, "base": file.base, "name": file.name}
    metadata |= {"rest": json.dumps(list(file.paths)), "system": json.dumps(file.system)}
    head, order = layout([(name, "F32", array.shape) for name, array in arrays.items()], metadata)
    draft = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        path.absolute().parent.mkdir(parents=True, exist_ok=True)
        draft.write_bytes(head + b"".join(arrays[name].tobytes() for name in order))
        draft.replace(path)
    except OSError as error:
        raise UserError(
            f"cannot write {path}: {error.strerror or error}; choose another --out"
        ) from error
    finally:
        draft.unlink(missing_ok=True)
    return path.stat().st_size


def read(path: str | os.PathLike) -> AdapterFile:
    """Reads an adapter file. Raises UserError if the file is damaged or holds no adapter."""
    path = Path(path)
    table = open_safetensors(path)
    metadata = table.metadata
    if metadata.get("format") != FORMAT:
        raise UserError(
            f"{path} is not an adapter of ptm_jax; `ptm export WORKDIR --adapter --out FILE` "
            "writes one"
        )
    lists = {
        name: parse_json(path, metadata.get(name, "").encode(), f"its {name}")
        for name in ("rest", "system")
    }
    if (
        not isinstance(lists["system"], dict)
        or not isinstance(lists["rest"], list)
        or len(metadata.get("base", "")) != 64
    ):
        raise broken(path, "does not name the model that it belongs to")

    def whole(shape):
        return tuple(slice(0, size) for size in shape)

    params = {
        name: np.array(table.read(name, whole(entry.shape), False))
        for name, entry in table.entries.items()
    }
    if wrong := [name for name, array in params.items() if not np.isfinite(array).all()]:
        raise UserError(
            f"{path}: {wrong[0]} has numbers that are NaN or infinite; take another adapter"
        )
    return AdapterFile(
        params, lists["system"], metadata["base"], tuple(lists["rest"]), metadata.get("name", "")
    )


def joined(file: AdapterFile, base: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Returns {path: array} of the adapted system: base parameters and adapter.
    Raises UserError for another base."""
    absent = [path for path in file.paths if path not in base]
    if absent or digest({path: base[path] for path in file.paths}) != file.base:
        other = f"; it has no parameter {absent[0]}" if absent else ""
        raise UserError(
            f"the adapter was trained on {file.name or 'another model'} ({file.base[:12]}), "
            f"and {where} is not that "
            f"model{other}; load it on the one it was trained on"
        )
    return {**{path: base[path] for path in file.paths}, **file.params}
