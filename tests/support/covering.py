"""Selections of cases in which each trait, and each pair of traits, stands at least once.

`make test` runs the selected cases of a law and `make test-full` the others. A selection is written
down, one case a line, in tests/laws/covering/NAME.txt. A new case whose traits no listed case has
is selected too, so that a new class runs in `make test` from its first day. This command writes the
lists anew, with the fewest cases that a greedy search finds:

    python tests/support/covering.py
"""

from __future__ import annotations

import importlib
import itertools
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[1] / "laws" / "covering"
Goal = tuple[str, ...]
"""A trait, or a pair of traits in the order of the alphabet."""


def goals(traits: Iterable[str], pairs: bool = True) -> set[Goal]:
    """Returns the traits of a case as 1-tuples, and their pairs."""
    names = sorted(set(traits))
    return {(name,) for name in names} | set(itertools.combinations(names, 2) if pairs else ())


def greedy(
    traits: Mapping[str, Iterable[str]], chosen: Iterable[str] = (), pairs: bool = True
) -> list[str]:
    """Returns `chosen` and the cases that cover every goal which `chosen` does not cover.

    The search takes the case with the most uncovered goals, the first of several.
    """
    wanted = {name: goals(values, pairs) for name, values in traits.items()}
    selection = list(chosen)
    left = set().union(*wanted.values()) - set().union(*(wanted[name] for name in selection))
    while left:
        best = max(wanted, key=lambda name: len(wanted[name] & left))
        selection.append(best)
        left -= wanted[best]
    return selection


def listed(name: str) -> list[str]:
    """Returns the cases of the list NAME."""
    file = FOLDER / f"{name}.txt"
    return file.read_text(encoding="utf8").splitlines() if file.exists() else []


def covering(name: str, traits: Mapping[str, Iterable[str]], pairs: bool = True) -> list[str]:
    """Returns the cases of the list NAME that exist, and cases for the goals that it leaves out."""
    return greedy(traits, [case for case in listed(name) if case in traits], pairs)


def params(
    name: str, traits: Mapping[str, Iterable[str]], marks: Mapping[str, list[Any]] | None = None
) -> list[Any]:
    """Returns the cases as pytest parameters; those outside the selection have the marker
    `full`."""
    selection = set(covering(name, traits))
    return [
        pytest.param(
            case,
            marks=[
                *(marks or {}).get(case, ()),
                *([] if case in selection else [pytest.mark.full]),
            ],
        )
        for case in traits
    ]


def main() -> None:
    """Write the lists of every suite of laws: the suite's COVERED is {list: {case: traits}}."""
    sys.path[:0] = [str(FOLDER.parent), str(FOLDER.parents[1])]
    for suite in sorted(FOLDER.parent.glob("test_laws_of_*.py")):
        lists = getattr(importlib.import_module(suite.stem), "COVERED", {})
        for name, traits in lists.items():
            selection = greedy(traits)
            lines = "".join(f"{case}\n" for case in selection)
            (FOLDER / f"{name}.txt").write_text(lines, encoding="utf8")
            print(f"{name}.txt: {len(selection)} of {len(traits)} cases")


if __name__ == "__main__":
    main()
