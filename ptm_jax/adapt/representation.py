"""Which of an encoder's layers the heads read (survey section 5.2.2)."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import numpy as np

from ptm_jax.adapt.base import is_head, tower_of
from ptm_jax.encoders.reading import reading
from ptm_jax.nn.recurrent import BiLSTMReader
from ptm_jax.nn.representation import EmbeddingReader, LayerMix


@dataclasses.dataclass(frozen=True, kw_only=True)
class Representation:
    """The embeddings alone ("embedding"; no layer is trained), or a learned mixture of the layers ("mix", Eq. 6), of the
    last `top` of them where that is given, each layer normalised first on demand. The top layer is what is read anyway.

    Frozen or tuned is another matter: beside `FeatureExtraction` the mixture and the heads alone are trained.
    """

    kind: Literal["embedding", "mix"] = "mix"
    top: int | None = None
    normalise: bool = False
    towers: tuple[str, ...] = ("main",)

    owns = r"/readers_mix/"

    def __post_init__(self):
        if self.kind not in ("embedding", "mix"):
            raise ValueError(f"kind is {self.kind!r}; it must be 'embedding' or 'mix'")
        if self.top is not None and self.top < 1:
            raise ValueError(f"top is {self.top}; at least one layer must be read")

    def wrap(self, module: Any) -> Any:
        reader = EmbeddingReader() if self.kind == "embedding" else LayerMix(self.top, self.normalise)
        return reading(module, {self.kind: reader})

    def trainable(self, path: Any, step: Any) -> bool:
        del step
        if self.kind == "mix" or tower_of(path) not in self.towers or is_head(path):
            return True
        return bool(np.all(np.asarray(path.level) == 0))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recurrent:
    """A bidirectional LSTM between the encoder and the heads: with `FeatureExtraction` and a mixture of the layers, given
    before it, what Peters et al. 2019 (arXiv 1903.05987, section 2: 200 units) call feature extraction."""

    hidden: int = 200
    layers: int = 1
    dropout: float = 0.1
    towers: tuple[str, ...] = ("main",)

    owns = r"/readers_bilstm/"

    def __post_init__(self):
        if min(self.hidden, self.layers) < 1:
            raise ValueError(f"hidden is {self.hidden} and layers {self.layers}; both must be at least 1")

    def wrap(self, module: Any) -> Any:
        return reading(module, {"bilstm": BiLSTMReader(self.hidden, self.layers, self.dropout)})
