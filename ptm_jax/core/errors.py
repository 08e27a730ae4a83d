"""Errors for the user: one line with what was given, what was expected, and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """Bad input of a user.

    The command line prints its one line and exits with status 1, without a traceback.
    """


class Advised(ValueError):
    """A value that does not fit the system, with what to do about it: `advice`, a clause."""

    def __init__(self, reason: str, advice: str):
        super().__init__(reason)
        self.advice = advice


def closest(word: str, choices: Iterable[str]) -> str:
    """' Did you mean ...?' for the nearest of `choices`, or '' when none is near."""
    matches = difflib.get_close_matches(word, list(choices), n=1, cutoff=0.5)
    return f" Did you mean {matches[0]!r}?" if matches else ""


LISTED = {"system": "ptm list", "task": "ptm list --tasks"}
"""{kind of name: the command that lists the names there are}."""
MANY = 60
"""Names beyond this number are not listed; the nearest are."""


def unknown(kind: str, word: str, choices: Iterable[str]) -> UserError:
    """The error for an unknown name: the known names (or the nearest ones) and the best match."""
    choices = sorted(choices)
    if len(choices) > MANY:
        return unknown_of_many(kind, word, choices)
    return UserError(
        f"unknown {kind} {word!r}; there are: {', '.join(choices)}.{closest(word, choices)}"
    )


def unknown_of_many(kind: str, word: str, choices: Iterable[str]) -> UserError:
    """`unknown` with the four nearest names, their number, and the command that lists them."""
    choices = list(choices)
    near = ", ".join(difflib.get_close_matches(word, choices, n=4, cutoff=0.4))
    hint = (
        f"`{LISTED[kind]}` shows the {len(choices)} there are"
        if kind in LISTED
        else f"there are {len(choices)}"
    )
    return UserError(
        f"unknown {kind} {word!r}; {hint}{', as ' if near else ''}{near}.{closest(word, choices)}"
    )
