"""Folders and files among the arguments of a command, which may lie in an object store."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

from ptm_jax.core.errors import UserError
from ptm_jax.core.reading import check_local
from ptm_jax.data.stores import objects, working

PLACES = (
    "workdir",
    "out",
    "output",
    "table",
    "plot",
    "predictions",
    "input",
    "index",
    "adapter",
    "config",
    "grow",
    "expand",
    "corpus",
)
"""Options of all commands that name a file or folder."""
MODELS = ("model", "models", "ensemble", "beside", "first", "second", "dictionary")
"""Arguments that name a model or a file to read, which may be a name of the Hub."""
REMOTE = ("launch", "workdir")
"""A place that the hosts open, and not this command."""
LOCAL = {
    "study": "its processes share locks of a disk",
    "reproduce": "its processes share locks of a disk",
}
"""{command that takes no object store: the reason}."""


def opened(command: str, args: Any) -> Any:
    """Returns the arguments with working copies in place of URLs.
    Raises UserError for a place that the command cannot use, before it does anything."""
    changes = {}
    for option, value in vars(args).items():
        if option in PLACES and isinstance(value, str):
            _check(command, option, value)
        if option not in (*PLACES, *MODELS) or (command, option) == REMOTE:
            continue
        if isinstance(value, str) and objects.is_store(value):
            changes[option] = os.fspath(working.opened(value))
        elif isinstance(value, tuple) and any(map(objects.is_store, value)):
            changes[option] = tuple(os.fspath(working.opened(one)) for one in value)
    return dataclasses.replace(args, **changes) if changes else args


def _check(command: str, option: str, place: str) -> None:
    if not place.strip():
        raise UserError(f"--{option} is empty; give a path, or . for the folder you are in")
    if not objects.is_store(place):
        check_local(place, f"--{option}")
    elif command in LOCAL:
        raise UserError(
            f"--{option} is {place}; ptm {command} takes no object store, because "
            f"{LOCAL[command]}: give a local folder, such as one on a disk that the machines "
            "share, or mount the bucket (gcsfuse)"
        )


def written() -> None:
    """Writes what the command has changed into the stores. Raises UserError."""
    if working.is_any():
        import jax

        if not jax.process_index():
            working.push_all()
