"""Checks of a system before compilation. Errors are one line that names the place to correct."""

from __future__ import annotations

import contextlib
import os
import sysconfig
import traceback
from collections.abc import Iterator
from pathlib import Path

from ptm_jax.core.errors import Advised, UserError
from ptm_jax.core.system import System
from ptm_jax.nn.embeddings.summed import length_limits


@contextlib.contextmanager
def building(system: System) -> Iterator[None]:
    """Converts an exception during tracing into a UserError that names the user's line, if any."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        ours = (
            str(Path(__file__).parents[1]) + os.sep,
            *(sysconfig.get_path(k) + os.sep for k in ("purelib", "stdlib")),
        )
        frames = [
            f
            for f in traceback.extract_tb(error.__traceback__)
            if not f.filename.startswith((*ours, "<"))
        ]
        where = f"{frames[-1].filename}:{frames[-1].lineno}: " if frames and _own(system) else ""
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        if isinstance(error, Advised):
            advice = error.advice
        else:
            reason, advice = (
                f"{type(error).__name__}: {reason}",
                "correct it there" if where else "change that slot",
            )
        raise UserError(f"{system.name} cannot be trained: {where}{reason}; {advice}") from error


def _own(system: System) -> bool:
    """Whether a slot has a value from outside the package."""
    slots = (system.objective, system.corruption, system.examples, *system.towers.values())
    modules = (slot.__module__ for slot in slots if slot is not None)
    return any(not str(module).startswith("ptm_jax.") for module in modules)


def check_lengths(system: System) -> None:
    """Raises UserError for rows longer than a position table."""
    for path, limit in length_limits(system.towers, "towers").items():
        for number, phase in enumerate(system.recipe.phases):
            if phase.length > limit:
                raise UserError(
                    f"rows of {phase.length} tokens are longer than the position table of "
                    f"{limit} ({path}); "
                    f"set recipe.phases.{number}.length to at most {limit}"
                )
