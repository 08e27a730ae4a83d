"""A larger model that begins with a smaller one: the parameters are tiled.

As in AnswerDotAI/ModernBERT (`init_model_from_pretrained`; ModernBERT-large from base, Warner et
al. 2024): layer i of N begins with layer round(i n / N) of n (Rae et al. 2021, appendix G.3.3), and
each other axis is tiled by itself (Phi).
"""

from __future__ import annotations

import numpy as np

from ptm_jax.core.system import Tiling
from ptm_jax.core.types import Array


def fits(small: tuple[int, ...], large: tuple[int, ...]) -> bool:
    """Whether a parameter of the shape `small` can be tiled to the shape `large`."""
    return len(small) == len(large) and all(
        few <= many for few, many in zip(small, large, strict=True)
    )


def tiled(small: Array, drawn: Array, mode: Tiling, stacked: bool) -> np.ndarray:
    """Returns the parameter `small` in the shape of `drawn`, the larger one as it is drawn.

    `stacked`: whether axis 0 is the layers. "middle": the small one in the middle, with copies of
    it on both sides; "cyclic": copies from the first element on; "centre": the small one in the
    middle of the drawn one.
    """
    out = np.asarray(small)
    if stacked:
        count = len(out)
        layers = [round(n * count / drawn.shape[0]) for n in range(drawn.shape[0])]
        out = out[np.minimum(layers, count - 1)]
    starts = [(many - few) // 2 for few, many in zip(out.shape, drawn.shape, strict=True)]
    if mode == "centre":
        inside = tuple(
            slice(start, start + size) for start, size in zip(starts, out.shape, strict=True)
        )
        large = np.array(drawn)
        large[inside] = out
        return large
    for axis, size in enumerate(drawn.shape):
        first = starts[axis] if mode == "middle" else 0
        out = np.take(out, (np.arange(size) - first) % out.shape[axis], axis)
    return out
