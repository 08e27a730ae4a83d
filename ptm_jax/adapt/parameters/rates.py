"""Learning rates by layer or by parameter path."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from ptm_jax.adapt.parameters.levels import ParameterPath
from ptm_jax.core import slots
from ptm_jax.core.paths import first_match


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerDecay(slots.Wrapper):
    """Lowers the learning rate of each layer by a factor from the top down.

    Discriminative learning rates: lr_l = lr * decay^(L - l) for layer l of L, with l = 0 for
    embeddings. Heads learn at lr.

    decay  0.95 for BERT (Sun et al. 2019, arXiv 1905.05583, section 5.4.3); 1 / 2.6 in ULMFiT
           (Howard and Ruder 2018, section 3.2), 0.8 and 0.9 in ELECTRA
    gap    number of layers from the top layer to the heads; the rate of the top layer is lr *
           decay^gap. 0 in Sun et al., 1 in ULMFiT (the head counts as a layer), 2 in ELECTRA
           (google-research/electra, model/optimization.py)
    """

    decay: float = 0.95
    gap: int = 0

    def __post_init__(self):
        if not 0 < self.decay <= 1:
            raise ValueError(f"decay is {self.decay}; it must lie above 0 and at most at 1")
        if self.gap < 0:
            raise ValueError(f"gap is {self.gap}; it must not be negative")

    def rate(self, path: ParameterPath) -> Any:
        level = np.asarray(path.level)
        below = np.where(level >= path.top, 0, self.gap + path.top - 1 - level)
        rates = np.float32(self.decay) ** below.astype(np.float32)
        return rates if level.ndim else float(rates)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PathRates(slots.Wrapper):
    """Multiplies the learning rate by a factor for each path pattern.

    The first match wins: (("/embed/", 0.1), ("/heads_", 10.0)).
    """

    table: tuple[tuple[str, float], ...]

    def __post_init__(self):
        for pattern, rate in self.table:
            if rate < 0:
                raise ValueError(f"the rate of {pattern!r} is {rate}; it must not be negative")

    def rate(self, path: ParameterPath) -> float:
        return first_match(self.table, path, 1.0)
