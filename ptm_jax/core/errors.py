"""Errors for the user: one line with what was given, what was expected, and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """Bad input. The command line prints its one line and exits with status 1, without a traceback."""


def closest(word: str, choices: Iterable[str]) -> str:
    """' Did you mean ...?' for the nearest of `choices`, or '' when none is near."""
    found = difflib.get_close_matches(word, list(choices), n=1, cutoff=0.5)
    return f" Did you mean {found[0]!r}?" if found else ""


def unknown(kind: str, word: str, choices: Iterable[str]) -> UserError:
    """The error for a name that does not exist: it lists the names there are and the closest match."""
    choices = sorted(choices)
    return UserError(f"unknown {kind} {word!r}; there are: {', '.join(choices)}.{closest(word, choices)}")
