"""The variational information bottleneck (VIB) between an encoder and the heads."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, get_args

from ptm_jax.core import slots
from ptm_jax.encoders.readers import reading
from ptm_jax.nn.heads.information import BottleneckReader, Code
from ptm_jax.objectives.regularisation.information import Compressed

if TYPE_CHECKING:
    from ptm_jax.core.networks import Network
    from ptm_jax.core.system import System


@dataclasses.dataclass(frozen=True, kw_only=True)
class InformationBottleneck(slots.Wrapper):
    """Compresses the states to the information that the task needs.

    Li and Eisner 2019, arXiv 1910.00163. The heads read a compressed state: a draw from a Gaussian
    of `width` features, or one of `tags` learned tags. The loss adds `beta` * I(state; text) +
    `gamma` * I(state; text | word), both upper bounds.

    With `feature` and `mix` before it, it specialises a frozen ELMo or BERT, as in the paper. The
    paper tunes beta and gamma = beta between 5e-6 and 0.1.
    """

    code: Code = "gaussian"
    width: int = 256
    tags: int = 64
    temperature: float = 1.0
    beta: float = 1e-3
    gamma: float = 1e-3
    towers: tuple[str, ...] = ("main",)

    owns = r"/readers_bottleneck/|/heads_classify/"

    def __post_init__(self):
        if self.code not in get_args(Code):
            raise ValueError(
                f"code is {self.code!r}; it must be one of {', '.join(get_args(Code))}"
            )
        if min(self.width, self.tags) < 1 or self.temperature <= 0:
            raise ValueError(
                f"width is {self.width}, tags {self.tags}, temperature {self.temperature}; "
                "all are above 0"
            )
        if min(self.beta, self.gamma) < 0:
            raise ValueError(f"beta is {self.beta} and gamma {self.gamma}; neither may be below 0")

    def rewrite(self, system: System) -> Any:
        return dataclasses.replace(
            system, objective=Compressed(task=system.objective, beta=self.beta, gamma=self.gamma)
        )

    def wrap(self, module: Network) -> Any:
        reader = BottleneckReader(self.code, self.width, self.tags, self.temperature)
        return reading(module, {"bottleneck": reader})
