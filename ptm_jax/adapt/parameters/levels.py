"""The level of a parameter in its network: for learning rates, unfreezing and representations.

Levels count from the input: 0 is the embeddings, 1 ... N are the layers, and N + 1, the `top`, is
the heads and readers. `slots.Encoder.level_of` returns the level of an encoder parameter. A
parameter that stacks all layers along axis 0 has a vector of levels [N]. Layers that share one set
of parameters (ALBERT) are one level. A parameter shared by all layers of a stack has the level of
the first.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ptm_jax.core import slots
from ptm_jax.core.errors import UserError
from ptm_jax.core.paths import flatten
from ptm_jax.core.spec.describe import is_spec
from ptm_jax.core.spec.walk import children

if TYPE_CHECKING:
    from ptm_jax.core.types import Params


HEADS = r"^(heads|readers)_\w+(/|$)"
"""Parameters above the encoder, by their path inside a tower."""


class ParameterPath(str):
    """A parameter path 'tower/a/b/c' (a str) with its `level` and the `top` of its network.

    `known` is the level, or None if the encoder class named `encoder` declares no levels. `tower`
    is the tower that the parameter belongs to, or None.
    """

    known: int | range | None
    encoder: str
    tower: str | None

    def __new__(
        cls,
        path: str,
        known: int | range | None = 0,
        top: int | None = 1,
        *,
        encoder: str = "",
        tower: str | None = None,
    ) -> ParameterPath:
        place = super().__new__(cls, path)
        place.known, place._top, place.encoder, place.tower = known, top, encoder, tower
        return place

    @property
    def level(self) -> Any:
        """An int, or an int array [N] for a stack of layers.

        Raises UserError if the encoder declares no levels.
        """
        if self.known is None:
            raise self._undeclared()
        return (
            np.arange(self.known.start, self.known.stop)
            if isinstance(self.known, range)
            else self.known
        )

    @property
    def top(self) -> int:
        """The level of the heads. Raises UserError if the encoder declares no levels."""
        if self._top is None:
            raise self._undeclared()
        return self._top

    def _undeclared(self) -> UserError:
        return UserError(
            f"{self} has no level, because {self.encoder} does not declare the levels of its "
            "parameters; define level_of "
            "of the encoder (core.slots.Encoder), or leave out what goes by layers"
        )


def known_level(path: str) -> int | range | None:
    """Returns the level of a `ParameterPath`; None for a plain path, or without levels."""
    return path.known if isinstance(path, ParameterPath) else None


def parameter_paths(params: Params, towers: Mapping[str, Any]) -> dict[str, ParameterPath]:
    """Returns {path: ParameterPath} of a nested dict of parameters or shapes.

    `towers` is {name: network}. A parameter that an adaptation keeps outside the towers
    ('lora/main/...') has the tower and the level of the parameter it adapts. Other parameters
    outside the towers have level 0.
    """
    places_of, split = {}, {path: _split(path, towers) for path in flatten(params)}
    levels = {
        path: _level(towers[name], inner_path)
        for path, (name, inner_path) in split.items()
        if name is not None
    }
    highest: dict[str, int] = defaultdict(int)
    for path, level in levels.items():
        if level is not None and level != "top":
            highest[split[path][0]] = max(
                highest[split[path][0]], level[-1] if isinstance(level, range) else level
            )
    undeclared = {split[path][0] for path, level in levels.items() if level is None}
    for path, (name, _) in split.items():
        if name is None:
            places_of[path] = ParameterPath(path)
        elif name in undeclared:
            encoder = type(slots.encoder_in(towers[name]) or towers[name]).__name__
            places_of[path] = ParameterPath(path, None, None, encoder=encoder, tower=name)
        else:
            top = highest[name] + 1
            level = top if levels[path] == "top" else levels[path]
            places_of[path] = ParameterPath(path, level, top, tower=name)
    return places_of


def stacked(params: Params, towers: Mapping[str, Any]) -> dict[str, bool]:
    """Returns whether axis 0 of each parameter is the layers of a stack, by path.

    The stacks are `slots.Layered`.
    """
    stacks = {
        f"{place}/": stack
        for name, tower in towers.items()
        for place, stack in _stacks(tower, name)
    }
    is_stacked = {}
    for path in flatten(params):
        full_path = "/".join(filter(None, _split(path, towers)))
        place = next((place for place in stacks if full_path.startswith(place)), None)
        is_stacked[path] = place is not None and isinstance(
            stacks[place].level_of(full_path.removeprefix(place)), range
        )
    return is_stacked


def _stacks(part: Any, path: str) -> Iterator[tuple[str, slots.Layered]]:
    """Yields (parameter path, stack) of every stack in a network. Flax joins a tuple index to its
    field name by "_"."""
    if isinstance(part, slots.Layered):
        yield path, part
    else:
        for name, inner in children(part).items():
            yield from _stacks(inner, f"{path}{'/' if is_spec(part) else '_'}{name}")


def _split(path: str, towers: Mapping[str, Any]) -> tuple[str | None, str]:
    """Returns (tower, path inside it) of a parameter or its adaptation; (None, path) if it belongs
    to no tower."""
    for _ in range(2):
        name, _, inner_path = path.partition("/")
        if name in towers:
            return name, inner_path
        path = inner_path
    return None, path


def _level(tower: Any, path: str) -> int | range | str | None:
    """Returns the level of a path inside a tower; "top" above the encoder, None if it is not
    declared."""
    if re.search(HEADS, path):
        return "top"
    encoder = slots.encoder_in(tower)
    if encoder is None:
        return None
    return encoder.level_of(path if encoder is not tower else f"encoder/{path}")
