"""Write a short complete Python file that you then change: an objective, a corruption, a head, a
source of text, or a task of your own.

Example:
  ptm new objective mine.py
    then: ptm train mine.py --data TEXT --workdir runs/mine
  ptm new task mine.py
    then: ptm train --init MODEL --task mine.py:mine --data TABLE --workdir runs/mine

The file trains as it is. Its docstring has the command, and what to change.
"""

from __future__ import annotations

import dataclasses
import os
from importlib import resources
from pathlib import Path
from typing import Annotated, Literal

import tyro

from ptm_jax.core.errors import UserError

TEMPLATES = "templates/{}.py.txt"
NAMED = "mine.py"
"""The file that the docstrings of the templates name."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Args:
    kind: Annotated[
        Literal["objective", "corruption", "head", "reader", "task"],
        tyro.conf.Positional,
        tyro.conf.arg(metavar="KIND"),
    ]
    """objective, corruption, head, reader (a source of text) or task."""
    file: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="FILE.py")]
    """The file to write; it must not exist."""


def run(args: Args) -> int:
    """Writes the file and prints the command that trains it."""
    path = Path(args.file).expanduser()
    if path.suffix != ".py":
        raise UserError(f"{args.file} is no Python file; give a name that ends in .py")
    text = resources.files("ptm_jax.cli").joinpath(TEMPLATES.format(args.kind)).read_text("utf8")
    text = text.replace(NAMED, os.fspath(path))
    try:
        with path.open("x", encoding="utf8") as stream:
            stream.write(text)
    except FileExistsError:
        raise UserError(f"{path} exists; give another name, or delete it") from None
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from error
    command = next(line.strip() for line in text.splitlines() if line.startswith("    ptm "))
    print(f"{path}: train it as it is, then change it\n  {command}")
    return 0
