"""Argument types and printing that the commands share."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import tyro

from ptm_jax.core.errors import UserError

Flag = Annotated[bool, tyro.conf.FlagCreatePairsOff]
"""A switch without its negation: `--json`."""

Text = Annotated[str | None, tyro.conf.arg(metavar="TEXT")]
Number = Annotated[int | None, tyro.conf.arg(metavar="N")]
Path = Annotated[str | None, tyro.conf.arg(metavar="PATH")]

Target = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="SYSTEM_OR_CONFIG")]
"""What `cli.target.resolve` takes."""

Names = Annotated[tuple[str, ...], tyro.conf.arg(metavar="MODEL ...")]

Sets = Annotated[
    tuple[tuple[str, ...], ...], tyro.conf.UseAppendAction, tyro.conf.arg(name="set", metavar="PATH=VALUE ...")
]
"""`--set a=1 b=2 --set c=3`; `pairs` makes one list of it."""


def pairs(sets: Iterable[Sequence[str]]) -> list[str]:
    """All path=value words of a `Sets` argument, in order."""
    return [word for words in sets for word in words]


def print_json(document: Any) -> None:
    """One document on stdout."""
    print(json.dumps(document, indent=2, ensure_ascii=False))


def say(message: str) -> None:
    """Progress and remarks go to stderr."""
    print(message, file=sys.stderr, flush=True)


def table(header: Sequence[str], rows: Iterable[Sequence[str]], width: int = 120) -> str:
    """Aligned columns in at most `width` characters; the widest are cut, with an ellipsis."""
    cells = [list(header), *(list(row) for row in rows)]
    sizes = [max(len(row[i]) for row in cells) for i in range(len(header))]
    while sum(sizes) + 2 * (len(sizes) - 1) > width:
        sizes[sizes.index(max(sizes))] -= 1
    lines = []
    for row in cells:
        cut = (c if len(c) <= size else c[: size - 1] + "…" for c, size in zip(row, sizes, strict=True))
        lines.append("  ".join(c.ljust(size) for c, size in zip(cut, sizes, strict=True)).rstrip())
    return "\n".join(lines)


def axis(part: str) -> str:
    """`data=2` of a mesh as `--set` takes it. Raises UserError."""
    name, _, size = part.partition("=")
    if not size.strip().isdecimal():
        raise UserError(f"--mesh takes axis=size, as in data=2,model=4; given {part!r}")
    return f"({name.strip()!r}, {size.strip()})"
