"""The encoder layers that the heads read, and an LSTM on them (survey section 5.2.2)."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ptm_jax.adapt.base import is_head, tower_of
from ptm_jax.adapt.parameters.levels import ParameterPath
from ptm_jax.core import slots
from ptm_jax.encoders.readers import reading
from ptm_jax.nn.heads.layer_mix import EmbeddingReader, LayerMix, VectorsReader
from ptm_jax.nn.recurrent.lstm import BiLSTMReader

if TYPE_CHECKING:
    from ptm_jax.core.networks import Network
    from ptm_jax.core.types import Step


READERS = {
    "embedding": lambda rules: EmbeddingReader(),
    "mix": lambda rules: LayerMix(rules.top, rules.normalise, rules.embeddings),
    "vectors": lambda rules: VectorsReader(),
}
"""{kind of a `Representation`: function of it that returns the reader}."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Representation(slots.Wrapper):
    """Selects the representation that the heads read.

    "embedding"   the embeddings alone; no layer is trained
    "mix"         a learned mixture of the layers (Eq. 6). `top` limits it to the last layers.
                  `normalise` normalises each layer first. `embeddings` adds the embeddings as a
                  layer, as in ELMo (Peters et al. 2018, Eq. 1)
    "vectors"     word vectors and top layer, concatenated; from an encoder-decoder both are the
                  encoder's (CoVe)

    A head that reads only the first token sees the same embedding in every row: put `Recurrent`
    after "embedding".

    Without this adaptation the heads read the top layer. With `FeatureExtraction` only the mixture
    and the heads are trained.
    """

    kind: Literal["embedding", "mix", "vectors"] = "mix"
    top: int | None = None
    normalise: bool = False
    embeddings: bool = False
    towers: tuple[str, ...] = ("main",)

    owns = r"/readers_mix/"

    def __post_init__(self):
        if self.kind not in READERS:
            raise ValueError(f"kind is {self.kind!r}; it must be 'embedding', 'mix' or 'vectors'")
        if self.top is not None and self.top < 1:
            raise ValueError(f"top is {self.top}; at least one layer must be read")

    def wrap(self, module: Network) -> Any:
        return reading(module, {self.kind: READERS[self.kind](self)})

    def trainable(self, path: ParameterPath, step: Step) -> bool:
        if self.kind != "embedding" or tower_of(path) not in self.towers or is_head(path):
            return True
        return bool(np.all(np.asarray(path.level) == 0))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recurrent(slots.Wrapper):
    """Puts a bidirectional LSTM between the encoder and the heads.

    After `FeatureExtraction` and a mixture of the layers, this is the feature extraction of Peters
    et al. 2019 (arXiv 1903.05987, section 2: 200 units).
    """

    hidden: int = 200
    layers: int = 1
    dropout: float = 0.1
    towers: tuple[str, ...] = ("main",)

    owns = r"/readers_bilstm/"

    def __post_init__(self):
        if min(self.hidden, self.layers) < 1:
            raise ValueError(
                f"hidden is {self.hidden} and layers {self.layers}; both must be at least 1"
            )

    def wrap(self, module: Network) -> Any:
        return reading(module, {"bilstm": BiLSTMReader(self.hidden, self.layers, self.dropout)})
