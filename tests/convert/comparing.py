"""What the tests of checkpoint files share."""

from __future__ import annotations

from pathlib import Path

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
