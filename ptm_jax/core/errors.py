"""Errors for the user: one line with what was given, what was expected, and what to do.

`Ranged` values raise them for numbers outside `RANGES`.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
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


def unknown(kind: str, word: str, choices: Iterable[str], meant: str | None = None) -> UserError:
    """The error for an unknown name: the known names (or the nearest ones), and `meant` or the best
    match."""
    choices = sorted(choices)
    if len(choices) > MANY:
        return unknown_of_many(kind, word, choices)
    hint = closest(word, choices) if meant is None else f" Did you mean {meant!r}?"
    return UserError(f"unknown {kind} {word!r}; there are: {', '.join(choices)}.{hint}")


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


WHOLE = 2**31 - 1
LARGE = 1e30
"""The largest whole number, and the largest other one, of a recipe: float32 holds them."""
BELOW_1 = 0.0, math.nextafter(1.0, 0.0)
POSITIVE = math.ulp(0.0), LARGE
NOT_NEGATIVE = 0.0, LARGE
RANGES: dict[str, tuple[float, float]] = {
    **dict.fromkeys(("b1", "b2", "rho", "momentum", "memory"), BELOW_1),
    **dict.fromkeys(("eps", "clip_threshold", "row_limit", "clip", "divisor"), POSITIVE),
    **dict.fromkeys(("rms", "other_rate"), POSITIVE),
    **dict.fromkeys(("iterations", "largest"), (1, WHOLE)),
    **dict.fromkeys(
        ("weight_decay", "initial", "lr", "end", "decay_rules", "lr_rules"), NOT_NEGATIVE
    ),
    **dict.fromkeys(("warmup", "full", "decay", "after"), (0, WHOLE)),
    **dict.fromkeys(("steps", "batch", "length", "every", "accumulate", "updates"), (1, WHOLE)),
    "patience": (1, WHOLE),
    "experiment.seed": (0, WHOLE),
    "adagrad.eps": NOT_NEGATIVE,  # GloVe's sum of squares begins at 1
    "decay_rate": (math.ulp(0.0), 1.0),
    "cut": (math.ulp(0.0), 1.0),
    "ratio": (1.0, LARGE),
    "start": (1.0, LARGE),
}
"""{field, or class.field: (least, largest)} of every number of a recipe; of rules, of their
factors."""


class Ranged:
    """Base of the values of a recipe: their numbers lie in `RANGES`."""

    def __post_init__(self):
        for field in dataclasses.fields(self):
            value = vars(self)[field.name]
            rules = isinstance(value, tuple) and field.name.endswith("_rules")
            numbers = [factor for _, factor in value] if rules else [value]
            for number in numbers:
                if isinstance(number, int | float) and not isinstance(number, bool):
                    check_range(f"{type(self).__name__.lower()}.{field.name}", number)


def range_of(path: str) -> tuple[float, float]:
    """Returns the (least, largest) number of "class.field"."""
    return RANGES[path] if path in RANGES else RANGES[path.partition(".")[2]]


def check_range(path: str, number: float) -> None:
    """Raises ValueError for a number outside the range of its "class.field"."""
    least, largest = range_of(path)
    if least <= number <= largest:
        return
    if isinstance(least, int):
        expected = f"at least {least}" if number < least else f"at most {largest:,}"
    elif largest == LARGE:
        finite = "a finite number "
        expected = finite + ("above 0" if 0 < least < 1 else f"of at least {least:g}")
    else:
        expected = (
            f"{'above' if least else 'at least'} 0 and {'below' if largest < 1 else 'at most'} 1"
        )
    raise ValueError(f"{path} is {number}; it must be {expected}")
