"""tokamax as a peer where it is installed: a library of kernels for JAX, measured in our own process. No dependency."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import jax

Program = tuple[Callable[[], Any], int]
"""(a call, bytes of its temporaries)."""

SIDE = "tokamax"


def missing() -> str | None:
    """Why it is not measured, or None."""
    if importlib.util.find_spec(SIDE) is None:
        return "tokamax not installed"
    try:
        import tokamax  # noqa: F401
        from absl import flags

        if not flags.FLAGS.is_parsed():
            flags.FLAGS.mark_as_parsed()  # otherwise it reads its options from our command line, and stumbles over ours
    except Exception as error:  # it has dependencies of its own, of versions of their own
        return f"tokamax cannot be imported: {_line(error)}"
    return None


def implementation() -> str | None:
    """What its functions are asked for: XLA on a CPU, where its kernels do not run, else its own choice."""
    return "xla" if jax.default_backend() == "cpu" else None


def programs(make: Callable[[str], Program]) -> tuple[dict[str, Program], list[str]]:
    """({name: make(precision)} of what runs, one line for each thing that does not)."""
    if reason := missing():
        return {}, [reason]
    found, failures = {}, []
    for precision in ("float32", "bfloat16"):
        name = f"{SIDE}, {precision}, {implementation() or 'its choice'}"
        try:
            program = make(precision)
            jax.block_until_ready(program[0]())
        except Exception as error:
            failures.append(f"{name}: {_line(error)}")
        else:
            found[name] = program
    return found, failures


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
