"""Curvature of a loss in each matrix, and a score of each layer.

The greatest eigenvalues of the Hessian are computed by power iteration (HAWQ: Dong et al. 2019,
arXiv 1905.03696, Algorithm 1). A layer's score is computed from their mean and deviation over parts
of the data (Q-BERT: Shen et al. 2020, arXiv 1909.05840, section 3.1).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ptm_jax.core.paths import flatten, unflatten
from ptm_jax.core.streams import stream
from ptm_jax.core.types import Batch, Params


@dataclasses.dataclass(frozen=True)
class Sensitivity:
    """Eigenvalues [parts of the data] of each block, by name."""

    eigenvalues: dict[str, np.ndarray]

    def scores(self) -> dict[str, float]:
        """Returns |mean| + std of the eigenvalues over the parts, by block (Shen et al., Eq. 3)."""
        return {
            name: float(abs(values.mean()) + values.std())
            for name, values in self.eigenvalues.items()
        }

    def bits(self, choices: Mapping[int, float]) -> dict[str, int]:
        """Returns the bits of each block: {bits: share of the blocks}, the most bits for the
        highest scores. Raises ValueError if the shares do not add up to 1."""
        if abs(sum(choices.values()) - 1) > 1e-6:
            raise ValueError(
                f"the shares of the blocks add up to {sum(choices.values()):g}; they must be 1"
            )
        order = sorted(self.scores().items(), key=lambda item: (-item[1], item[0]))
        bits_of, start, edge = {}, 0, 0.0
        for bits, share in sorted(choices.items(), reverse=True):
            edge += share * len(order)
            for name, _ in order[start : round(edge)]:
                bits_of[name] = bits
            start = round(edge)
        return bits_of


def top_eigenvalues(
    loss: Callable[[Params, Batch], Any],
    params: Params,
    groups: Mapping[str, Callable[[str], Any]],
    batch: Batch,
    *,
    steps: int = 10,
    tolerance: float = 1e-2,
    seed: int = 0,
) -> dict[str, float]:
    """Returns the eigenvalue of greatest magnitude for each group of parameters.

    It is that of the Hessian's diagonal block of the group.

    loss        (parameters, batch) -> scalar
    groups      {name: mask}, mask(path) is 0, 1, or zeros and ones that broadcast against the
                parameter, as [N, 1, ..]
    steps       of power iteration, at most; it ends where an eigenvalue moves by less than
                `tolerance` of itself

    A Hessian-vector product is the gradient of <gradient, v>: the products of this package have a
    backward pass of their own, which a forward pass of derivatives (`jax.jvp` of the gradient)
    cannot enter; the numbers are the same.
    """
    product = jax.jit(lambda p, v, b: jax.grad(lambda q: _dot(jax.grad(loss)(q, b), v))(p))
    values = {}
    for name, mask in groups.items():

        def masked(tree, mask=mask):
            return {path: leaf * mask(path) for path, leaf in flatten(tree).items()}

        draw = {
            path: jax.random.normal(stream(seed, path), leaf.shape)
            for path, leaf in flatten(params).items()
        }
        v, value = _unit({path: leaf * mask(path) for path, leaf in draw.items()}), None
        for _ in range(steps):
            hv = masked(product(params, unflatten(v), batch))
            new = float(_dot(hv, v))
            v = _unit(hv)
            if value is not None and abs(new - value) <= tolerance * max(abs(value), 1e-12):
                break
            value = new
        values[name] = new
    return values


def measure(
    loss: Callable[[Params, Batch], Any],
    params: Params,
    groups: Mapping[str, Callable[[str], Any]],
    batches: Iterable[Batch],
    **options: Any,
) -> Sensitivity:
    """Returns the sensitivity of groups of parameters on several parts of the data (Shen et al.
    take 10% of it in all).

    Raises ValueError if there is no part."""
    values_of: dict[str, list[float]] = {name: [] for name in groups}
    for batch in batches:
        for name, value in top_eigenvalues(loss, params, groups, batch, **options).items():
            values_of[name].append(value)
    if not all(values_of.values()) or not values_of:
        raise ValueError(
            "the sensitivity of layers is measured on examples, and there is none; give "
            "--task and --data"
        )
    return Sensitivity({name: np.asarray(values) for name, values in values_of.items()})


def _dot(a: Params, b: Params) -> Any:
    return sum(jnp.vdot(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


def _unit(v: Params) -> Any:
    norm = jnp.sqrt(_dot(v, v))
    return jax.tree.map(lambda leaf: leaf / jnp.maximum(norm, 1e-30), v)
