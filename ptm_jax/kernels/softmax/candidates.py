"""The implementations of the masked softmax that a device may take, and the classes for which it
decides.

A candidate's module has `refusal(platform, length, dtype)` and `softmax(logits, seen, scale)`.
"""

from __future__ import annotations

import dataclasses
import importlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ptm_jax.core.types import Array
from ptm_jax.kernels import deciding
from ptm_jax.kernels.deciding import Candidate, Case
from ptm_jax.kernels.softmax import plain

LONGEST = 8192  # longer rows are of the class of this length
HEADS, TIMED = 8, 1 << 24  # heads and scores of what is timed
SCALE = 0.3  # of the drawn cases

CANDIDATES = (
    Candidate("reference", lambda: plain),
    Candidate("pallas", lambda: importlib.import_module(f"{__package__}.tpu"), ("tpu",), "TPUs"),
)


@dataclasses.dataclass(frozen=True)
class Class(deciding.Question):
    """A class of softmaxes: type of the scores, and keys of a query up to a power of two."""

    kind = "softmax"
    definition = "reference"

    compute: str
    keys: int

    @property
    def key(self) -> str:
        """The class in words."""
        return f"softmax over {self.keys} keys, {self.compute}"

    def cases(self) -> list[Case]:
        """Returns a case of odd lengths, and a larger one of the lengths of the class."""
        queries = max(1, min(self.keys, TIMED // (HEADS * self.keys)))
        rows = max(1, TIMED // (HEADS * self.keys * queries))
        odd = self.keys // 2 + self.keys // 8 + 1
        return [self._case((2, 3, 7, odd)), self._case((rows, HEADS, queries, self.keys))]

    def _case(self, shape: tuple[int, int, int, int]) -> Case:
        draw = np.random.default_rng(self.keys)
        logits = draw.normal(size=shape).astype(np.float32)
        seen = draw.random((shape[0], 1, *shape[2:])) < 0.8
        seen[0, :, -1] = False
        slopes = draw.normal(size=shape).astype(np.float32)

        def right(inputs):
            return _outputs(plain, (inputs[0].astype(jnp.float32), *inputs[1:]))

        return Case(
            inputs=(jnp.asarray(logits, self.compute), seen, slopes),
            call=_outputs,
            right=right,
            refusal=lambda module: module.refusal("tpu", shape[-1], self.compute),
        )


def _outputs(module, inputs) -> dict[str, Any]:
    logits, seen, slopes = inputs

    def total(logits):
        probabilities = module.softmax(logits, seen, SCALE)
        return (probabilities.astype(jnp.float32) * slopes).sum(), probabilities

    gradient, probabilities = jax.grad(total, has_aux=True)(logits)
    return {"result": probabilities, "gradient of logits": gradient}


def best(platform: str, logits: Array) -> str:
    """Returns the name of the implementation that the attached device takes.

    It is the fastest one that is right there and computes this. A device without a choice is not
    asked.
    """
    length = logits.shape[-1]
    able = {
        one.name
        for one in CANDIDATES
        if one.runs_on(platform) and one.load().refusal(platform, length, logits.dtype) is None
    }
    if able == {"reference"}:
        return "reference"
    size = min(1 << (length - 1).bit_length(), LONGEST)
    answer = deciding.ask(Class(str(logits.dtype), size), CANDIDATES, platform)
    return next(name for name in (*answer.seconds, "reference") if name in able)
