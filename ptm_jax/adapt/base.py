"""Helpers of the adaptations: which tower and which part of a network a parameter belongs to."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ptm_jax.adapt.parameters.levels import ParameterPath
from ptm_jax.core import slots, spec
from ptm_jax.core.precision import Precision
from ptm_jax.core.types import Array, Params

if TYPE_CHECKING:
    from ptm_jax.core.networks import Network
    from ptm_jax.core.system import System
    from ptm_jax.core.types import Step


HEADS = r"/(heads|readers)_\w+/"
"""Matches paths of parameters above the encoder: heads and readers."""

NORMS = r"(^|/|_)norm/(scale|bias)$"
"""Matches paths of normalisation parameters."""


def tower_of(path: str) -> str:
    """Returns the tower of a parameter.

    A `ParameterPath` outside of the towers, such as 'lora/main/...', belongs to the tower that it
    names. Another path begins with its tower.
    """
    known = path.tower if isinstance(path, ParameterPath) else None
    return known or path.partition("/")[0]


def is_head(path: str) -> bool:
    """Whether a parameter lies above the encoder."""
    return re.search(HEADS, path) is not None


def precision_of(module: Network) -> Precision:
    """The `precision` of a module; float32 where it has no such field."""
    return spec.values_of(module).get("precision", Precision())


class ReadsEvaluations(slots.Wrapper):
    """Trait: an adaptation that changes the parameters after an evaluation during the run."""

    def on_heldout(self, params: Params, loss: Array | float) -> Params:
        """Returns the parameters after an evaluation with this mean loss of a token."""
        raise NotImplementedError


class KeepsWords(slots.Wrapper):
    """Trait: an adaptation with another network, whose words are not those of the run."""

    def with_words(self, system: System) -> KeepsWords:
        """Returns a copy with the size of that network's vocabulary. A run gives its own to all
        networks."""
        raise NotImplementedError


def keeping_words(system: System) -> System:
    """Returns the system with the sizes of other vocabularies in its adaptations."""
    adapt = tuple(
        wrapper.with_words(system) if isinstance(wrapper, KeepsWords) else wrapper
        for wrapper in system.adapt
    )
    return dataclasses.replace(system, adapt=adapt)


def listeners(wrappers: Iterable[slots.Wrapper]) -> list[ReadsEvaluations]:
    """Returns the adaptations that read the loss of each evaluation."""
    return [wrapper for wrapper in wrappers if isinstance(wrapper, ReadsEvaluations)]


class OnFrozen(slots.Wrapper):
    """Freezes the encoders of `towers`, except parameters whose path matches one of `trained`."""

    trained: tuple[str, ...] = ()

    def trainable(self, path: str, step: Step) -> bool:
        return (
            tower_of(path) not in self.towers
            or is_head(path)
            or any(re.search(pattern, path) for pattern in self.trained)
        )
