"""What the tests of checkpoint files share."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from ptm_jax.convert.files import open_tensors
from ptm_jax.core.errors import UserError


def bits(array: np.ndarray) -> tuple:
    return array.shape, array.dtype.name, np.ascontiguousarray(array).tobytes()


def refused(path: Path, *words: str, **options) -> str:
    """The line for a checkpoint that is refused: one line, with the words in it."""
    with pytest.raises(UserError) as caught:
        open_tensors(path, **options)
    line = str(caught.value)
    assert "\n" not in line and len(line) < 700
    for word in words:
        assert word in line, line
    return line


def flax_tree(seed: int = 0) -> dict:
    draw = np.random.default_rng(seed)

    def f(*shape):
        return draw.standard_normal(shape).astype("f4")

    layer = {
        "dense": {"kernel": f(4, 6), "bias": f(6)},
        "LayerNorm": {"scale": f(4).astype(ml_dtypes.bfloat16), "bias": f(4)},
    }
    patches = {"kernel": f(2, 3, 4, 5)}
    return {
        "model": {"wte": {"embedding": f(9, 4)}, "layer": {"0": layer}, "conv": patches},
        "final_logits_bias": f(1, 9),
        "x": f(3),
    }
