"""Low-rank updates of a frozen network's weights."""

from __future__ import annotations

import dataclasses
import re

import jax
import jax.numpy as jnp

from ptm_jax.adapt.base import OnFrozen, tower_of
from ptm_jax.core.paths import flatten, matrix_of, unflatten
from ptm_jax.core.streams import stream
from ptm_jax.core.types import Params


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoRA(OnFrozen):
    """Adds a product of two low-rank matrices to each weight that `targets` matches.

    W becomes W + (alpha / rank) A B, with A [in, rank] random and B [rank, out] initially zero. A,
    B and the heads are trained (Hu et al. 2022, arXiv 2106.09685, Eq. 3; their targets: queries and
    values).

    The sum is computed before the weights are used, so that it works for every layer and encoder.
    There is no dropout on the input of A. A and B are stored outside of the towers, as
    `lora/main/.../kernel/a`. Each layer of a stack has its own A and B.
    """

    rank: int = 8
    alpha: float = 16.0
    targets: str = r"/(query|value)/kernel$"
    seed: int = 0
    towers: tuple[str, ...] = ("main",)

    owns = r"^lora/"
    trained = (owns,)
    logical_axes = {"*/a": (None, None), "*/b": (None, None)}

    def __post_init__(self):
        if self.rank < 1:
            raise ValueError(f"rank is {self.rank}; it must be at least 1")

    def init(self, params: Params, source: Params | None) -> Params:
        if "lora" in params:
            return params
        made = {}
        for path, leaf in flatten(params).items():
            if tower_of(path) in self.towers and re.search(self.targets, path):
                *layers, inner, outer = matrix_of(path, leaf.shape)
                a = (
                    jax.random.normal(stream(self.seed, path), (*layers, inner, self.rank))
                    * inner**-0.5
                )
                made[f"{path}/a"], made[f"{path}/b"] = a, jnp.zeros((*layers, self.rank, outer))
        if not made:
            raise ValueError(
                f"LoRA's targets {self.targets!r} find no weight; name some of the model's, "
                "as '/up/kernel$'"
            )
        return {**params, "lora": unflatten(made)}

    def effective(self, params: Params, train: bool) -> Params:
        flat, updates = (
            flatten({k: v for k, v in params.items() if k != "lora"}),
            flatten(params["lora"]),
        )
        for path in {name.rpartition("/")[0] for name in updates}:
            change = jnp.matmul(updates[f"{path}/a"], updates[f"{path}/b"], precision="highest")
            flat[path] = flat[path] + (self.alpha / self.rank) * change.reshape(flat[path].shape)
        return unflatten(flat)

    def finish(self, params: Params) -> Params:
        """Returns the parameters with the updates added: the model has its original size and
        paths."""
        return self.effective(params, False)
