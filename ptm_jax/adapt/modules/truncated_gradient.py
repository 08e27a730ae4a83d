"""The gradient of a recurrent encoder, cut into pieces of a text."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from ptm_jax.core import slots
from ptm_jax.encoders.recurrent.recurrent import LSTMEncoder

if TYPE_CHECKING:
    from ptm_jax.core.networks import Network


@dataclasses.dataclass(frozen=True, kw_only=True)
class TruncatedGradient(slots.Wrapper):
    """Stops the gradient of a recurrent encoder's states every `tokens` tokens of a text.

    BPT3C: Howard and Ruder 2018, section 3.3. The encoder reads the whole text, and the head pools
    all states. A state has a gradient only through its own piece. An encoder without recurrent
    states is unchanged. The masks of the recurrent kernels are drawn for each piece, as in fastai.
    Deviation: fastai draws all other dropout masks for each piece too; here each text has one draw.
    """

    tokens: int = 70
    towers: tuple[str, ...] = ("main",)

    def __post_init__(self):
        if self.tokens < 1:
            raise ValueError(f"tokens is {self.tokens}; a piece has at least one token")

    def wrap(self, module: Network) -> Any:
        encoder = module.encoder
        if not isinstance(encoder, LSTMEncoder):
            return module
        if encoder.direction == "bidirectional":
            raise ValueError(
                "the gradient is cut where a text is read in one direction, and this encoder "
                "reads both"
            )
        return dataclasses.replace(module, encoder=dataclasses.replace(encoder, bptt=self.tokens))
