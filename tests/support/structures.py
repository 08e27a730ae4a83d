"""Systems whose records differ in numbers alone: their programs have the same operations."""

from __future__ import annotations

import functools
import re

from ptm_jax import systems
from ptm_jax.core import spec
from ptm_jax.core.system import System

TITLES = re.compile(r"^  (name|paper|section|rows|group): .*$", re.M)
TOKENIZER = re.compile(r"^  tokenizer: .*?(?=^  \w)", re.M | re.S)
NUMBER = re.compile(r"(?<=[ (])(?![01](?:\.0)?[,)\n])-?\d+(?:\.\d+)?(?:e-?\d+)?(?=[,)\n])")
LENGTH = re.compile(r"(length: \d+)")


def structure(system: System) -> str:
    """Returns the text of a record in which each number is N, without its titles and tokenizer.

    0, 1 and the lengths of rows remain: they choose operations (no dropout, one layer, attention
    by blocks).
    """
    text = TOKENIZER.sub("", TITLES.sub("", spec.to_text(system) + "\n"))
    parts = LENGTH.split(text)  # odd ones are lengths
    return "".join(part if n % 2 else NUMBER.sub("N", part) for n, part in enumerate(parts))


@functools.cache
def structures() -> dict[str, list[str]]:
    """Returns {first system of a structure: every system of it}, in the order of the catalogue."""
    alike: dict[str, list[str]] = {}
    for name in systems.names():
        alike.setdefault(structure(systems.get(name)), []).append(name)
    return {names[0]: names for names in alike.values()}
