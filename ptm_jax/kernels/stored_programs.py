"""Compiled programs of a model, stored so that a command does not trace them.

JAX's cache spares a command the compilation of a program, which it finds by the program's text; to
write the text, the model is traced, for one to three seconds a program. Here the key is what the
text follows from: the files of the package (the folder that `use` is given), the record of the
network and the shapes of the arrays. A program of code that is not the package's has no key.

Programs are code: the folder is one that no other user may write (`core.cache.trusted`). An entry
begins with the hash of what follows it; one that is damaged, or that this machine cannot run, is
made again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
from jax.experimental import serialize_executable
from jax.experimental.compilation_cache import compilation_cache

from ptm_jax.core import spec
from ptm_jax.core.constraint import current
from ptm_jax.core.spec.own_code import sources_of
from ptm_jax.kernels import native, program_cache

if TYPE_CHECKING:
    from jax.stages import Lowered, Wrapped

_state: dict[str, Path] = {}
_programs: dict[str, Callable[..., Any]] = {}
_HASH = hashlib.sha256().digest_size


def use(folder: Path | None) -> None:
    """Stores programs from now on in a folder of this state of the package; None: nowhere."""
    _state.clear()
    if folder is not None:
        _state["folder"] = folder


def call(function: Wrapped, plan: Sequence[Any], *arguments: Any) -> Any:
    """Returns `function(*plan, *arguments)` of a jitted function; `plan` are its static arguments.

    Its program is read if a process with this state of the package compiled it."""
    key = _key(function, plan, arguments)
    if key is None:
        return function(*plan, *arguments)
    path = _state["folder"] / f"{key}.program"
    if key not in _programs and (program := _read(path)) is not None:
        with contextlib.suppress(jax.errors.JaxRuntimeError):  # it cannot run here after all
            result = jax.block_until_ready(program(*arguments))
            _programs[key] = program
            return result
    if key not in _programs:
        _programs[key] = _compiled(function.lower(*plan, *arguments))
        _write(path, _programs[key])
    return _programs[key](*arguments)


def _compiled(lowered: Lowered) -> Callable[..., Any]:
    """Returns the program, compiled here: one that was read from JAX's cache lacks functions when
    it is stored again."""
    enabled = jax.config.jax_enable_compilation_cache
    _cache_in_jax(False)
    try:
        return lowered.compile()
    finally:
        _cache_in_jax(enabled)


def _cache_in_jax(enabled: bool) -> None:
    """JAX looks once a process whether its cache is enabled, and again after a reset."""
    jax.config.update("jax_enable_compilation_cache", enabled)
    compilation_cache.reset_cache()


def _key(function: Wrapped, plan: Sequence[Any], arguments: Sequence[Any]) -> str | None:
    """Returns the key of a program; None where it follows from more than the package."""
    if not _state or jax.default_backend() != "cpu" or current() is not None:
        return None
    if sources_of(tuple(plan), _state["folder"]):
        return None
    settings = {name: str(value) for name, value in jax.config.values.items()}
    settings = {name: text for name, text in settings.items() if "cache" not in name}
    leaves, tree = jax.tree.flatten(arguments)
    facts = [
        f"{function.__module__}.{function.__qualname__}", spec.to_json(tuple(plan)), str(tree),
        [f"{jax.typeof(leaf)} {jax.typeof(leaf).weak_type}" for leaf in leaves], settings,
        [jax.device_count(), _cores(), os.environ.get("XLA_FLAGS"), str(program_cache.folder())],
    ]  # fmt: skip
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]


def _cores() -> int | None:
    """Returns the number of cores that this process may use: programs divide their work by it."""
    with contextlib.suppress(AttributeError):  # a system without affinity
        return len(os.sched_getaffinity(0))
    return os.cpu_count()


def _read(path: Path) -> Callable[..., Any] | None:
    """Returns the program of an entry, with the kernels that it calls; None where it cannot run."""
    try:
        raw = path.read_bytes()
        if hashlib.sha256(raw[_HASH:]).digest() != raw[:_HASH]:
            return None
        kernels, program = pickle.loads(raw[_HASH:])
        if any(native.refusal(native.ROOM / source, target) for source, target in kernels):
            return None
        return serialize_executable.deserialize_and_load(*program)
    except Exception:  # of a pickle, or of a compiler that is not the same
        return None


def _write(path: Path, program: Any) -> None:
    """Writes an entry atomically. Does nothing for a program or folder that cannot be written."""
    draft = path.with_suffix(f".{os.getpid()}")
    try:
        content = pickle.dumps((native.registered(), serialize_executable.serialize(program)))
        draft.write_bytes(hashlib.sha256(content).digest() + content)
        draft.replace(path)
    except (OSError, ValueError, TypeError, NotImplementedError, pickle.PickleError):
        with contextlib.suppress(OSError):
            draft.unlink()
