"""Output without control characters: a name in a file may hold a terminal's commands."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Iterator
from typing import TextIO

from ptm_jax.data.stores import working

LINE = "\r\x1b[K"
"""How a line of progress begins: the one command of ours."""
_ESCAPES = {
    code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\t\n"
}


def printable(text: str) -> str:
    """Returns a text whose control characters, but tabs and line breaks, are written as \\x1b."""
    return text.translate(_ESCAPES)


class Printable(io.TextIOWrapper):
    """Writes to the bytes of another stream what is printable, and our lines of progress.
    Folders that stand for an object store's have its URL."""

    def write(self, text: str) -> int:
        prefix = LINE if text.startswith(LINE) else ""
        return super().write(prefix + printable(working.named(text.removeprefix(LINE))))


@contextlib.contextmanager
def only_printable() -> Iterator[None]:
    """Context manager in which stdout and stderr are `Printable`, if they have bytes below."""
    with contextlib.ExitStack() as stack:
        for stream, redirect in (
            (sys.stdout, contextlib.redirect_stdout),
            (sys.stderr, contextlib.redirect_stderr),
        ):
            if isinstance(stream, io.TextIOWrapper):
                stack.enter_context(redirect(stack.enter_context(_over(stream))))
        yield


@contextlib.contextmanager
def _over(stream: TextIO) -> Iterator[Printable]:
    stream.flush()
    wrapper = Printable(
        stream.buffer, stream.encoding, stream.errors, line_buffering=stream.line_buffering
    )
    try:
        yield wrapper
    finally:
        try:
            wrapper.flush()
        finally:
            wrapper.detach()
