"""Encoders over trees and graphs of words.

Tree-LSTM, recursive networks, graph convolutions, S-LSTM, Star-Transformer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import flax.linen as nn

from ptm_jax.core import slots
from ptm_jax.core.types import Batch, Encoded
from ptm_jax.encoders.context import Embedded, context_of
from ptm_jax.nn.layers import Dropout
from ptm_jax.nn.tree.forest import forest_of
from ptm_jax.objectives.text.language import LM

if TYPE_CHECKING:
    from ptm_jax.core.system import System


class TreeEncoder(Embedded):
    """Embeddings, recurrent layers `below`, then layers over trees or graphs of words.

    `layers` are of `nn.tree` and `nn.graph`: layer(x, forest, context) -> (x, s).

    Reads `heads` and `relations` [B, L] (`nn.tree.forest.forest_of`); a row without them is a
    chain. `extra["sentence"]` [B, L, D] is s of the last layer, the state of a token's document,
    where it has one. `dropout` applies to the embeddings and to the states of each layer.
    """

    embed: nn.Module
    layers: tuple[nn.Module, ...]
    below: tuple[nn.Module, ...] = ()
    dropout: float = 0.0

    @property
    def direction(self) -> slots.Direction:
        """The direction on a chain. In a tree, a "causal" layer sees the nodes below a node."""
        if self.below or any(layer.reach == "bidirectional" for layer in self.layers):
            return "bidirectional"
        return "causal"

    def refusal(self, system: System) -> str | None:
        if isinstance(system.objective, LM):
            return "the state of a head holds words that follow it, which LM predicts; take MLM"
        return None

    def level_of(self, path: str) -> int:
        part = path.split("/")[1]
        for name, before in (("below_", 1), ("layers_", 1 + len(self.below))):
            if part.startswith(name):
                return before + int(part.removeprefix(name))
        return 0

    @nn.compact
    def __call__(self, batch: Batch, train: bool = False) -> Encoded:
        context, forest, drop = (
            context_of(batch, "bidirectional", train),
            forest_of(batch),
            Dropout(self.dropout),
        )
        x, sentence = drop(self.embed(batch, context), context), None
        for layer in self.below:
            x = drop(layer(x, forest.segments, None, context)[0], context)
        for layer in self.layers:
            x, sentence = layer(x, forest, context)
            x = drop(x, context)
        return Encoded(x, extra=None if sentence is None else {"sentence": sentence})
