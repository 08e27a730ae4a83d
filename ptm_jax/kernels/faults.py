"""Remembers kernels that made the device unusable.

After an illegal or misaligned address every later call of a process fails, so a check cannot leave
the kernel out and go on. A mark in the cache names the kernel while it runs for the first time. It
stays if the device is lost or the process ends, and the next process leaves the kernel out.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp

from ptm_jax.core.errors import UserError
from ptm_jax.kernels import program_cache

REASON = "the device failed while an earlier process ran it"


def broken(file: str, key: str) -> set[str]:
    """Returns the kernels that took the device with them, for a class of shapes."""
    return {name for name, by in _marks(file).get(key, {}).items() if by is None or _ended(by)}


@contextlib.contextmanager
def watched(file: str, key: str, name: str) -> Iterator[None]:
    """Marks a kernel while it runs. Raises UserError if the device does not answer afterwards."""
    _mark(file, key, name, [socket.gethostname(), os.getpid()])
    try:
        yield
    except Exception as error:
        if not alive():
            _mark(file, key, name, None)
            again = "Run the command again: it is left out then"
            if program_cache.folder() is None:
                again = f"PTM_CACHE=off forgets this: name another impl than {name!r}"
            raise UserError(
                f"the kernel {name!r} broke the device while it was checked for {key}. {again}. "
                f"({' '.join(str(error).split())[:160]})"
            ) from error
        _mark(file, key, name)
        raise
    except BaseException:  # interrupted
        _mark(file, key, name)
        raise
    _mark(file, key, name)


def forget(file: str) -> None:
    """Removes all marks."""
    program_cache.remove(f"{file}-running")


def alive() -> bool:
    """Returns whether the device still computes."""
    try:
        return float(jnp.ones(()) + 1) == 2
    except jax.errors.JaxRuntimeError:
        return False


def _marks(file: str) -> dict[str, dict[str, Any]]:
    """Returns {class: {kernel: (host, process) that runs it, or None: it lost the device}}."""
    document = program_cache.read(f"{file}-running")
    return document if isinstance(document, dict) else {}


def _mark(file: str, key: str, name: str, *by: Any) -> None:
    """Writes a mark; without `by`, removes it."""
    marks = _marks(file)
    names = {other: x for other, x in marks.get(key, {}).items() if other != name}
    names |= dict.fromkeys([name], by[0]) if by else {}
    marks = {**marks, key: names}
    if any(marks.values()):
        program_cache.write(f"{file}-running", marks)
    else:
        forget(file)


def _ended(by: list[Any]) -> bool:
    """Returns whether a process of this machine has ended. Of another machine it is not known."""
    host, process = by
    if host != socket.gethostname():
        return False
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    except PermissionError:  # another user's
        pass
    return False
