"""Which of an encoder's layers the heads read (survey section 5.2.2)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from ptm_jax.adapt.base import is_head, tower_of
from ptm_jax.encoders.reading import reading
from ptm_jax.nn.alignment import AlignedReader, PairHead
from ptm_jax.nn.biattention import BiattentiveHead, BiattentiveReader
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Aligned:
    """ESIM over the encoder's states, for tasks on pairs: both texts read by a bidirectional LSTM, aligned word by word,
    read again and pooled (Chen et al. 2017, arXiv 1609.06038). With `FeatureExtraction` and a mixture of the layers, given
    before it, it is the feature extraction of Peters et al. 2019 on pairs, as `Recurrent` is on sentences."""

    hidden: int = 200
    dropout: float = 0.1
    towers: tuple[str, ...] = ("main",)

    owns = r"/readers_aligned/|/heads_classify/"

    def __post_init__(self):
        if self.hidden < 1:
            raise ValueError(f"hidden is {self.hidden}; a layer has at least one unit")

    def refusal(self, system: Any) -> str | None:
        """A row tells its texts apart by token types, or not at all."""
        encoder = getattr(system.towers.get(self.towers[0]), "encoder", None)
        if not _tells_texts(encoder):
            return "aligned reads pairs, whose texts this encoder does not tell apart; take one with two token types"
        if not getattr(system.examples, "second", True):
            return "aligned reads pairs, and this task has one text a row; take bilstm or bcn"
        return None

    def wrap(self, module: Any) -> Any:
        reader = AlignedReader(self.hidden, self.dropout)
        own = lambda classes: PairHead(classes, self.hidden, self.dropout)
        return _classifying(module, "pairs of texts", {"aligned": reader}, own)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Biattentive:
    """The biattentive classification network over the encoder's states, on one text or on pairs: both texts read by a
    bidirectional LSTM, each conditioned on the other (one text on itself), read again, pooled four ways and classified by
    maxout layers (BCN: McCann et al. 2017, arXiv 1708.00107, section 5). With `FeatureExtraction` and a mixture of the
    layers, given before it, it is what CoVe and Peters et al. 2019 put on frozen encoders.

    An encoder without two token types does not tell the texts of a pair apart: the row is then one text.

    reductions   what the maxout layers before the last divide the width by, one after the other
    pieces       linear functions of which a maxout unit takes the largest
    """

    hidden: int = 200
    reductions: tuple[int, ...] = (4, 2)
    pieces: int = 4
    dropout: float = 0.1
    towers: tuple[str, ...] = ("main",)

    owns = r"/readers_biattentive/|/heads_classify/"

    def __post_init__(self):
        if min(self.hidden, self.pieces, *self.reductions) < 1:
            sizes = f"hidden is {self.hidden}, pieces {self.pieces} and reductions {self.reductions}"
            raise ValueError(f"{sizes}; none may be below 1")

    def wrap(self, module: Any) -> Any:
        pairs = _tells_texts(module.encoder)
        reader = BiattentiveReader(self.hidden, pairs, self.dropout)
        own = lambda classes: BiattentiveHead(classes, pairs, tuple(self.reductions), self.pieces, self.dropout)
        return _classifying(module, "whole texts", {"biattentive": reader}, own)


def _tells_texts(encoder: Any) -> bool:
    """Whether the texts of a pair differ in the token types that an encoder is given."""
    return (getattr(encoder, "types", 0) or getattr(getattr(encoder, "embed", None), "types", 0)) > 1


def _classifying(module: Any, what: str, readers: dict[str, Any], head: Callable[[int], Any]) -> Any:
    """The model with more readers, and another head for its classes. Raises ValueError where it has no classes."""
    there = module.heads.get("classify")
    if there is None:
        raise ValueError(f"it is for tasks on {what}; this one has {', '.join(module.heads) or 'no head'}")
    found = reading(module, readers)
    return dataclasses.replace(found, heads={**found.heads, "classify": head(there.classes)})
