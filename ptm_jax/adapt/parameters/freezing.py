"""Parameters that are never trained and stay bit-identical.

They have no gradient, no moments and no weight decay.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ptm_jax.adapt.base import OnFrozen
from ptm_jax.core import slots
from ptm_jax.encoders.readers import reading

if TYPE_CHECKING:
    from ptm_jax.core.networks import Network
    from ptm_jax.core.types import Step


@dataclasses.dataclass(frozen=True, kw_only=True)
class Frozen(slots.Wrapper):
    """Freezes the parameters that match `pattern`, except parameters that match `except_`."""

    pattern: str
    except_: str | None = None

    def trainable(self, path: str, step: Step) -> bool:
        spared = self.except_ is not None and re.search(self.except_, path) is not None
        return spared or not re.search(self.pattern, path)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Restart(slots.Wrapper):
    """Initialises parameters that match `fresh` in a run that begins with another run's model.

    By default these are the heads, for a model trained on another task (Phang et al. 2018, arXiv
    1811.01088: STILTs). Without this adaptation the run continues with these parameters (TANDA,
    TransBERT).
    """

    fresh: str = r"/heads_\w+/"


def renewed(wrappers: Iterable[slots.Wrapper]) -> list[str]:
    """Returns the patterns of the parameters that a run draws anew."""
    return [wrapper.fresh for wrapper in wrappers if isinstance(wrapper, Restart)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class FeatureExtraction(OnFrozen):
    """Freezes the encoder and turns its dropout off.

    Its states are features, and only the heads are trained (survey 5.2.3).

    The features of a text are the same at every step. With `cache` they are computed once and kept
    in the run's workdir (`training.start.features`): a text of l tokens takes 4 l D bytes, or N + 1
    times that if layers are mixed.
    """

    cache: bool = False
    towers: tuple[str, ...] = ("main",)

    def wrap(self, module: Network) -> Any:
        return reading(module, quiet=True)


def keeps_features(wrappers: Iterable[slots.Wrapper]) -> bool:
    """Returns whether a run computes the features of each text once."""
    return any(isinstance(wrapper, FeatureExtraction) and wrapper.cache for wrapper in wrappers)


@dataclasses.dataclass(frozen=True, kw_only=True)
class BitFit(OnFrozen):
    """Trains only the biases, including those of norms, and the heads.

    Ben Zaken et al. 2022, arXiv 2106.10199.
    """

    towers: tuple[str, ...] = ("main",)

    trained = (r"/bias$",)
