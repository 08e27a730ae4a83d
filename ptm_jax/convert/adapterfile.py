"""A saved adapter: one small safetensors file with what was trained beside a model, and the name of that model by hash.

The base is every other parameter of the adapted system. The file keeps the paths and the SHA-256 of their bytes, so that it
cannot be put on another model, nor on another checkpoint of the same one.
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

from ptm_jax.convert.formats import broken, parse_json
from ptm_jax.convert.formats_safetensors import layout, open_safetensors
from ptm_jax.core.errors import UserError

FORMAT = "ptm_jax adapter 1"


@dataclasses.dataclass(frozen=True)
class AdapterFile:
    """params {path: array} of the adapter · system: the record of the adapted system · base: hash of the other parameters,
    whose paths are `rest` · name: what the model was called"""

    params: Mapping[str, np.ndarray]
    system: Mapping[str, Any]
    base: str
    rest: tuple[str, ...]
    name: str


def digest(flat: Mapping[str, Any]) -> str:
    """The SHA-256 of parameters {path: array}: of paths, shapes and float32 bytes, in the order of the paths."""
    found = hashlib.sha256()
    for path in sorted(flat):
        array = np.ascontiguousarray(np.asarray(flat[path], "<f4"))
        found.update(f"{path} {array.shape}\n".encode())
        found.update(array.tobytes())
    return found.hexdigest()


def write(path: str | os.PathLike, file: AdapterFile) -> int:
    """Write the file, whole or not at all; its size in bytes. Raises UserError."""
    path = Path(path)
    arrays = {name: np.ascontiguousarray(np.asarray(array, "<f4")) for name, array in file.params.items()}
    said = {"format": FORMAT, "base": file.base, "name": file.name}
    said |= {"rest": json.dumps(list(file.rest)), "system": json.dumps(file.system)}
    head, order = layout([(name, "F32", array.shape) for name, array in arrays.items()], said)
    draft = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        path.absolute().parent.mkdir(parents=True, exist_ok=True)
        draft.write_bytes(head + b"".join(arrays[name].tobytes() for name in order))
        draft.replace(path)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}; choose another --out") from error
    finally:
        draft.unlink(missing_ok=True)
    return path.stat().st_size


def read(path: str | os.PathLike) -> AdapterFile:
    """The adapter in a file. Raises UserError for one that is damaged, or none."""
    path = Path(path)
    table = open_safetensors(path)
    said = table.metadata
    if said.get("format") != FORMAT:
        raise UserError(f"{path} is no adapter of ptm_jax; `ptm export WORKDIR --adapter --out FILE` writes one")
    lists = {name: parse_json(path, said.get(name, "").encode(), f"its {name}") for name in ("rest", "system")}
    if not isinstance(lists["system"], dict) or not isinstance(lists["rest"], list) or len(said.get("base", "")) != 64:
        raise broken(path, "does not say what model it belongs to")
    whole = lambda shape: tuple(slice(0, size) for size in shape)
    params = {name: np.array(table.read(name, whole(entry.shape), False)) for name, entry in table.entries.items()}
    return AdapterFile(params, lists["system"], said["base"], tuple(lists["rest"]), said.get("name", ""))


def joined(file: AdapterFile, base: Mapping[str, Any], where: str) -> dict[str, Any]:
    """{path: array} of the adapted system from the parameters of its base. Raises UserError for another model."""
    absent = [path for path in file.rest if path not in base]
    if absent or digest({path: base[path] for path in file.rest}) != file.base:
        other = f"; it has no parameter {absent[0]}" if absent else ""
        raise UserError(
            f"the adapter was trained on {file.name or 'another model'} ({file.base[:12]}), and {where} is not that "
            f"model{other}; load it on the one it was trained on"
        )
    return {**{path: base[path] for path in file.rest}, **file.params}
