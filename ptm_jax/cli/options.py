"""Argument types and printing that the commands share."""

from __future__ import annotations

import dataclasses
import json
import signal
import sys
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import tyro

from ptm_jax.core.errors import UserError
from ptm_jax.training.logs.figures import figure as figure
from ptm_jax.training.logs.figures import metric as metric

PROGRAM = (sys.executable, "-m", f"{__package__}.main")
"""The words that start `ptm` in another process."""

Flag = Annotated[bool, tyro.conf.FlagCreatePairsOff]
"""A switch without its negation: `--json`."""

Text = Annotated[str | None, tyro.conf.arg(metavar="TEXT")]
Number = Annotated[int | None, tyro.conf.arg(metavar="N")]
Path = Annotated[str | None, tyro.conf.arg(metavar="PATH")]

Target = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="SYSTEM_OR_CONFIG")]
"""Input of `cli.target.resolve`."""

Names = Annotated[tuple[str, ...], tyro.conf.arg(metavar="MODEL ...")]

Sets = Annotated[
    tuple[tuple[str, ...], ...],
    tyro.conf.UseAppendAction,
    tyro.conf.arg(name="set", metavar="PATH=VALUE ..."),
]
"""`--set a=1 b=2 --set c=3`; see `pairs`."""


def pairs(sets: Iterable[Sequence[str]]) -> list[str]:
    """All path=value words of a `Sets` argument, in order."""
    return [word for words in sets for word in words]


def report(document: Any, text: str, as_json: bool) -> int:
    """Prints the document of --json, or the text, on stdout. Returns the exit status 0."""
    print(json.dumps(document, indent=2, ensure_ascii=False) if as_json else text)
    return 0


def say(message: str) -> None:
    """Prints progress or a remark on stderr."""
    print(message, file=sys.stderr, flush=True)


def table(header: Sequence[str], rows: Iterable[Sequence[str]], width: int = 120) -> str:
    """Aligned columns in at most `width` characters; the widest are cut, with an ellipsis."""
    cells = [list(header), *(list(row) for row in rows)]
    sizes = [max(len(row[i]) for row in cells) for i in range(len(header))]
    while sum(sizes) + 2 * (len(sizes) - 1) > width:
        sizes[sizes.index(max(sizes))] -= 1
    lines = []
    for row in cells:
        cut = (
            c if len(c) <= size else c[: size - 1] + "…" for c, size in zip(row, sizes, strict=True)
        )
        lines.append("  ".join(c.ljust(size) for c, size in zip(cut, sizes, strict=True)).rstrip())
    return "\n".join(lines)


def axes_of(mesh: str) -> tuple[tuple[str, int], ...]:
    """The (axis, size) pairs of --mesh. Raises UserError."""
    axes = []
    for part in mesh.split(","):
        name, _, size = map(str.strip, part.partition("="))
        if not (name and size.isdecimal()):
            raise UserError(f"--mesh takes axis=size, as in data=2,model=4; given {part!r}")
        axes.append((name, int(size)))
    return tuple(axes)


def layout(mesh: str | None, rules: str | None, slices: int | None = None) -> list[str]:
    """--mesh, --rules and --slices as words of --set. Raises UserError."""
    words = [] if mesh is None else [f"mesh={axes_of(mesh)}"]
    words += [] if rules is None else [f"rules={rules}"]
    return words if slices is None else [*words, f"slices={slices}"]


def given(args: Any, names: Iterable[str]) -> list[str]:
    """The flags of those fields of a command's arguments that differ from their defaults."""
    defaults = {field.name: field.default for field in dataclasses.fields(args)}
    return [f"--{name.replace('_', '-')}" for name in names if vars(args)[name] != defaults[name]]


def stopped(result: Any) -> str:
    """The text for a run that a signal ended."""
    return (
        f"stopped by {signal.Signals(result.signal).name} after step {result.step} of "
        f"{result.steps}; the checkpoint is "
        "complete\nrun the same command again to go on"
    )


def status(result: Any) -> int:
    """Exit status of a run: 0, 143 after SIGTERM, and 130 after Ctrl-C, as shells report."""
    return 128 + result.signal if result.stopped else 0
