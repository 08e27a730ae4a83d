"""The outputs of a forward pass of a loaded model."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from ptm_jax.inference import html_tables


@dataclasses.dataclass(frozen=True)
class Output:
    """The outputs of a forward pass as NumPy arrays without padding.
    None where not requested, or not present.

    hidden            [B, L, D]
    layers            [N+1, B, L, D]: the embeddings first, `hidden` last
    attention         [N, B, H, L, L]
    pooled            [B, D]
    vectors           [B, D] of an encoder that has a vector for a text (skip-thought)
    logits            [B, L, V] of the vocabulary head; without one, the scores of the only task
                      head, as [B, C] of classes
    scores            {task head: array, or the pair of a span's ends}
    source, source_layers, source_attention, cross_attention [N, B, H, T, L]
                      only with a decoder. The other outputs are then the decoder's, and L
                      is the length T of its inputs
    """

    hidden: np.ndarray
    layers: np.ndarray | None = None
    attention: np.ndarray | None = None
    pooled: np.ndarray | None = None
    vectors: np.ndarray | None = None
    logits: np.ndarray | None = None
    source: np.ndarray | None = None
    source_layers: np.ndarray | None = None
    source_attention: np.ndarray | None = None
    cross_attention: np.ndarray | None = None
    scores: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def _repr_html_(self) -> str:
        """The name, shape and type of each output, for notebooks."""
        arrays = {
            name: value for name, value in vars(self).items() if isinstance(value, np.ndarray)
        }
        for name, value in self.scores.items():
            parts = value if isinstance(value, tuple) else (value,)
            arrays |= {f"scores/{name}": part for part in parts}
        rows = [(name, list(array.shape), array.dtype) for name, array in arrays.items()]
        return html_tables.table(("output", "shape", "type"), rows, "Output")
