"""The last layer of a regression in the units of its labels."""

from __future__ import annotations

import dataclasses
import re

from ptm_jax.core import slots
from ptm_jax.core.paths import flatten, unflatten
from ptm_jax.core.types import Params


@dataclasses.dataclass(frozen=True, kw_only=True)
class OutputScale(slots.Wrapper):
    """Multiplies the last layer of a head by `scale` and adds `center` to its bias.

    The trained layer then predicts (label - center) / scale. Without it labels such as 1999 are
    out of reach, since Adam's steps have one size. The scores, the loss and the finished model are
    in the units of the labels. A layer without a bias is multiplied only.
    """

    center: float = 0.0
    scale: float = 1.0
    pattern: str = r"/heads_\w+/classes/"

    def __post_init__(self):
        if not self.scale > 0:
            raise ValueError(f"scale is {self.scale}; it must be above 0")

    def effective(self, params: Params, train: bool) -> Params:
        flat = flatten(params)
        for path, leaf in flat.items():
            if re.search(f"{self.pattern}kernel$", path):
                flat[path] = leaf * self.scale
            elif re.search(f"{self.pattern}bias$", path):
                flat[path] = leaf * self.scale + self.center
        return unflatten(flat)

    def finish(self, params: Params) -> Params:
        return self.effective(params, False)
