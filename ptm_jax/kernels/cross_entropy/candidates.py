"""The implementations of cross-entropy over a vocabulary that a device may take, and the classes
for which it decides.

A candidate's module has `refusal(platform, width, soft)` and what `scored.Plan` describes. They
take turns above `cross_entropy.HELD` scores; below it the scores are in memory."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ptm_jax.core.precision import Precision
from ptm_jax.kernels import deciding
from ptm_jax.kernels.cross_entropy import blocked, plain, tpu
from ptm_jax.kernels.cross_entropy.scored import Linear, scored
from ptm_jax.kernels.deciding import Candidate, Case

TOKENS, WORDS = 1024, 1 << 15  # most tokens and words of a class

CANDIDATES = (
    Candidate("xla", lambda: blocked),
    Candidate("pallas", lambda: tpu, ("tpu",), "TPUs"),
)


@dataclasses.dataclass(frozen=True)
class Class(deciding.Question):
    """A class of cross-entropies, for which one answer holds.

    It has the type of the products, the width of the features, and tokens and words up to a power
    of two.
    """

    kind = "cross-entropy"
    definition = "xla"

    compute: str
    width: int
    tokens: int
    words: int

    @property
    def key(self) -> str:
        """The class in words."""
        return (
            f"cross-entropy of {self.tokens} tokens, {self.words} words, width {self.width}, "
            f"{self.compute}"
        )

    def cases(self) -> list[Case]:
        """Returns a case of odd sizes, and a larger one."""
        return [self._case(37, 391), self._case(self.tokens, self.words)]

    def _case(self, tokens: int, words: int) -> Case:
        draw = np.random.default_rng(tokens)

        def normal(*shape):
            return draw.normal(size=shape).astype(np.float32)

        features = jnp.asarray(normal(tokens, self.width), self.compute)
        student = Linear(features, normal(words, self.width) * self.width**-0.5, normal(words))
        labels, precision = (
            draw.integers(0, words, tokens).astype(np.int32),
            Precision(self.compute),
        )

        def right(inputs):
            exact = jax.tree.map(lambda x: x.astype(jnp.float32), inputs[0])
            return _outputs(
                lambda *one: plain.scored(*one, precision=Precision()), exact, *inputs[1:]
            )

        return Case(
            inputs=(student, labels, normal(2, tokens)),
            call=lambda module, inputs: _outputs(
                lambda *one: scored(module, *one, precision=precision), *inputs
            ),
            right=right,
            refusal=lambda module: module.refusal("tpu", self.width, False),
        )


def _outputs(function, student: Linear, labels, slopes) -> dict[str, Any]:
    def total(student):
        scored = function(student, labels)
        both = jnp.stack([scored.log_sum, scored.label])
        return (slopes * both).sum(), both

    grads, both = jax.grad(total, has_aux=True)(student)
    parts = ("features", "table", "bias")
    return {"result": both} | {f"gradient of {name}": vars(grads)[name] for name in parts}


def best(platform: str, tokens: int, words: int, width: int, *, soft: bool, compute: str) -> Any:
    """Returns the fastest module that is right on the attached device and computes this."""

    def size(number, limit):
        return min(1 << (number - 1).bit_length(), limit)

    answer = deciding.ask(
        Class(compute, width, size(tokens, TOKENS), size(words, WORDS)), CANDIDATES, platform
    )
    modules = [deciding.module_of(CANDIDATES, name, platform) for name in answer.seconds]
    return next(
        (module for module in modules if module.refusal(platform, width, soft) is None), blocked
    )
