"""What is never trained: it has no gradient, no moments and no weight decay, and keeps every bit."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from ptm_jax.adapt.base import is_head, tower_of
from ptm_jax.encoders.reading import reading


@dataclasses.dataclass(frozen=True, kw_only=True)
class Frozen:
    """Parameters whose path the pattern finds stay as they are; `except_` names some of them that do not."""

    pattern: str
    except_: str | None = None

    def trainable(self, path: str, step: Any) -> bool:
        del step
        spared = self.except_ is not None and re.search(self.except_, path) is not None
        return spared or not re.search(self.pattern, path)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Restart:
    """Parameters whose path `fresh` finds are drawn anew in a run that begins with another: the heads, where the task before
    was another one (Phang et al. 2018, arXiv 1811.01088: STILTs; without it a run goes on with them: TANDA, TransBERT)."""

    fresh: str = r"/heads_\w+/"


@dataclasses.dataclass(frozen=True, kw_only=True)
class FeatureExtraction:
    """The encoder as it is, without dropout: its states are features, and the heads alone are trained (survey 5.2.3).

    The same text has the same features at every step: with `cache` they are computed once and kept in the run's workdir
    (`train.features`), for which a text of l tokens takes 4 l D bytes, or N + 1 times that where layers are mixed.
    """

    cache: bool = False
    towers: tuple[str, ...] = ("main",)

    def wrap(self, module: Any) -> Any:
        return reading(module, quiet=True)

    def trainable(self, path: str, step: Any) -> bool:
        del step
        return tower_of(path) not in self.towers or is_head(path)


@dataclasses.dataclass(frozen=True, kw_only=True)
class BitFit:
    """Biases and heads alone (Ben Zaken et al. 2022, arXiv 2106.10199), those of normalisation too."""

    towers: tuple[str, ...] = ("main",)

    def trainable(self, path: str, step: Any) -> bool:
        del step
        return tower_of(path) not in self.towers or is_head(path) or path.endswith("/bias")
