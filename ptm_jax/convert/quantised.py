"""Quantised parameters in the tensors of a published checkpoint.

Beside an int8 tensor NAME stand NAME_scale, NAME_offset where its grid has one, and
NAME_input_range of a kernel: arrays that broadcast against it. config.json has a
`quantization_config` with the method "ptm_jax" and the bits of the inputs. Transformers cannot read
this method, but the tensors have the names and shapes of its layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from ptm_jax.compress.quantisation.quantisation import levels_of, sides_of
from ptm_jax.convert import engine
from ptm_jax.core.errors import UserError
from ptm_jax.core.paths import flatten, matrix_of, unflatten

METHOD = "ptm_jax"
PARTS = ("scale", "offset", "input_range")
Write = Callable[[Mapping[str, Any]], Iterator[tuple[str, np.ndarray]]]


def is_quantised(params: Mapping[str, Any]) -> bool:
    """Whether a tower's parameters hold whole numbers."""
    return any(np.dtype(leaf.dtype) == np.int8 for leaf in flatten(params).values())


def write(params: Mapping[str, Any], write: Write) -> Iterator[tuple[str, np.ndarray]]:
    """Yields (published name, tensor) of a tower's parameters.
    `write` does so for parameters without companions."""
    flat = {path: np.asarray(leaf) for path, leaf in flatten(params).items()}
    integers = {
        path: _companions(flat, path) for path, leaf in flat.items() if leaf.dtype == np.int8
    }
    beside = {name for path, parts in integers.items() for name in parts.values()}
    places = {f"{path}_inputs" for path in integers if path.endswith("/kernel")}
    yield from write(
        unflatten({path: leaf for path, leaf in flat.items() if path not in beside | places})
    )
    for part in PARTS:
        full = {
            path: _spread(flat, path, parts[part], part)
            for path, parts in integers.items()
            if part in parts
        }
        yield from ((f"{name}_{part}", _least(tensor)) for name, tensor in write(unflatten(full)))


def _companions(flat: Mapping[str, Any], path: str) -> dict[str, str]:
    """Returns {part: path} of the scale, offset and input range of an int8 parameter."""
    names = {"scale": f"{path}_scale", "offset": f"{path}_offset"}
    if path.endswith("/kernel"):
        names["input_range"] = f"{path}_inputs"
    return {part: name for part, name in names.items() if name in flat}


def _spread(flat: Mapping[str, np.ndarray], path: str, name: str, part: str) -> np.ndarray:
    """Returns a companion in the shape of its parameter."""
    leaf, shape = flat[name], flat[path].shape
    if not path.endswith("/kernel"):
        return np.broadcast_to(leaf, shape)
    matrix = matrix_of(path, shape)
    leaf = leaf[..., :1] if part == "input_range" else leaf.reshape(*matrix[:-2], matrix[-1])
    return np.broadcast_to(leaf[..., None, :], matrix).reshape(shape)


def _least(tensor: np.ndarray) -> np.ndarray:
    """Returns the smallest array that broadcasts to a tensor."""
    for axis in range(tensor.ndim):
        first = tensor[(slice(None),) * axis + (slice(0, 1),)]
        tensor = first if (tensor == first).all() else tensor
    return np.ascontiguousarray(tensor)


def config(params: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of config.json of quantised parameters."""
    levels = {
        float(np.max(leaf[..., 1]))
        for path, leaf in flatten(params).items()
        if path.endswith("/kernel_inputs")
    }
    return {
        "quantization_config": {
            "quant_method": METHOD,
            "input_bits": [int(np.log2(one + 1)) + 1 for one in levels],
        }
    }


def read(
    params: Mapping[str, Any],
    tensors: Any,
    leaves: Mapping[str, engine.Leaf],
    fields: Mapping[str, Any],
) -> Any:
    """Returns the parameters of a tower whose checkpoint has whole numbers.

    `params` are read as numbers; whole numbers and companions come from the tensors of a checkpoint
    whose config has the `quantization_config` in `fields`. Raises UserError for another method.
    """
    if fields.get("quant_method") != METHOD:
        raise UserError(
            f"{tensors.folder} is quantised by {fields.get('quant_method')!r}, which is not "
            "read; take the checkpoint in "
            "float32 and compress it here (ptm compress int8)"
        )
    stored, flat = set(tensors.names()), flatten(params)
    for path, leaf in leaves.items():
        for part in PARTS:
            names = [
                next(
                    (n for n in (f"{name}_{part}", _bare(name, part, stored)) if n in stored), None
                )
                for name in leaf.names
            ]
            if None in names:
                continue
            shape = leaf.line.theirs_of(leaf.part, leaf.inner) or leaf.inner

            def one(name, leaf=leaf, shape=shape):
                return leaf.line.read(
                    np.broadcast_to(tensors.read(name), shape), leaf.part, leaf.inner
                )

            full = np.stack([one(name) for name in names]).reshape(leaf.shape)
            _place(
                flat,
                path,
                part,
                full,
                levels_of(fields["input_bits"][0]) if fields.get("input_bits") else 127.0,
            )
    return unflatten(flat)


def others(names: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the names of tensors that are no companions."""
    return tuple(name for name in names if not name.endswith(tuple(f"_{part}" for part in PARTS)))


def _bare(name: str, part: str, names: set[str]) -> str | None:
    """Returns the name of a companion in a file whose names lack, or have, the bare model's
    root."""
    return next(
        (
            candidate
            for candidate in names
            if candidate.endswith(f"_{part}") and f"{name}_{part}".endswith(f".{candidate}")
        ),
        None,
    )


def _place(flat: dict[str, Any], path: str, part: str, full: np.ndarray, levels: float) -> None:
    if part == "scale":
        flat[path] = np.asarray(flat[path]).astype(np.int8)
    if not path.endswith("/kernel"):
        flat[f"{path}_{part}"] = np.float32(full.flat[0])
        return
    matrix = matrix_of(path, full.shape)
    rows = full.reshape(matrix)[..., 0, :]
    layers = matrix[:-2]
    if part == "input_range":
        flat[f"{path}_inputs"] = np.stack([rows[..., 0], np.full(layers, levels, np.float32)], -1)
        return
    width = full.shape[len(layers) :][sides_of(matrix, full.shape) :]
    flat[f"{path}_{part}"] = np.ascontiguousarray(rows.reshape(*layers, *width), np.float32)
