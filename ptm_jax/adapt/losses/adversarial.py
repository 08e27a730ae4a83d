"""Adversarial and virtual adversarial training of any task."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from ptm_jax.core import slots, spec
from ptm_jax.nn.embeddings.moved import movable
from ptm_jax.nn.embeddings.summed import word_width
from ptm_jax.objectives.regularisation.adversarial import AdversarialLoss

if TYPE_CHECKING:
    from ptm_jax.core.networks import Network
    from ptm_jax.core.system import System


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdversarialTraining(slots.Wrapper):
    """Adds the loss at word vectors moved by `eps` along its gradient.

    FGM: Miyato et al. 2017, Eq. 3. With `virtual` above 0 it also adds the divergence of the
    predictions at vectors moved in the direction of its fastest growth (VAT, Eq. 6). Ju et al. 2019
    train CoQA readers with both.

    Vectors are moved before positions are added. A step takes three passes, and four more with
    `virtual`.
    """

    eps: float = 1.0
    scale: float = 1.0
    virtual: float = 0.0
    xi: float = 0.1
    tower: str = "main"

    def __post_init__(self):
        if min(self.eps, self.xi) <= 0 or min(self.scale, self.virtual) < 0:
            raise ValueError(
                f"eps is {self.eps} and xi {self.xi}; both must be above 0, scale and "
                "virtual not below it"
            )

    @property
    def towers(self) -> tuple[str, ...]:
        """The tower with the word vectors to move."""
        return (self.tower,)

    def rewrite(self, system: System) -> Any:
        encoder = slots.encoder_of(system, self.tower)
        embed = None if encoder is None else encoder.embeddings
        width = word_width(embed)
        if width is None:
            raise ValueError(
                f"the words of {type(embed).__name__} are no vectors of a table that could be moved"
            )
        loss = AdversarialLoss(task=system.objective, width=width, **spec.values_of(self))
        return dataclasses.replace(system, objective=loss)

    def wrap(self, module: Network) -> Any:
        return movable(module)
