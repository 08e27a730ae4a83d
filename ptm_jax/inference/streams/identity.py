"""Hashes of models: whether an output, or an index, was made by this one."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Mapping

import jax
import numpy as np

from ptm_jax.core import spec
from ptm_jax.core.system import System
from ptm_jax.data.tokenizers.tokenizing import Tokenizer


def of_model(*models: object) -> str:
    """Returns a sha256 of loaded models.

    Of their systems, parameters, tokenizers, tables of words, and published settings.
    """
    state = hashlib.sha256()
    for model in models:
        _feed(model, state)
    return state.hexdigest()


@functools.singledispatch
def _feed(value: object, state: hashlib._Hash) -> None:
    """Adds a value, and the values in it, to a hash. Of an object of another kind its class."""
    state.update(f"{type(value).__name__} ".encode())
    if dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            if field.name in vars(value):  # a layer has no parent outside of a call
                _feed(vars(value)[field.name], state)


@_feed.register(np.ndarray)
@_feed.register(np.generic)
@_feed.register(jax.Array)
def _array(value: object, state: hashlib._Hash) -> None:
    array = np.asarray(value)
    state.update(f"{array.dtype} {array.shape}".encode())
    state.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8))


@_feed.register(str)
@_feed.register(bytes)
@_feed.register(int)
@_feed.register(float)
def _scalar(value: object, state: hashlib._Hash) -> None:
    state.update(f"{value!r} ".encode())


@_feed.register(Tokenizer)
def _tokenizer(value: Tokenizer, state: hashlib._Hash) -> None:
    state.update(value.hash.encode())


@_feed.register(System)
def _system(value: System, state: hashlib._Hash) -> None:
    state.update(spec.fingerprint(value).encode())


@_feed.register(Mapping)
def _mapping(value: Mapping, state: hashlib._Hash) -> None:
    for key in sorted(value, key=str):
        state.update(f"{key} ".encode())
        _feed(value[key], state)


@_feed.register(list)
@_feed.register(tuple)
def _sequence(value: list | tuple, state: hashlib._Hash) -> None:
    state.update(f"{len(value)} ".encode())
    if all(isinstance(part, str) for part in value):
        state.update("\0".join(value).encode("utf-8", "surrogateescape"))
        return
    for part in value:
        _feed(part, state)
