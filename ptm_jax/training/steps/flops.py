"""Counts the floating-point operations of a function from its jaxpr: only products, 2 m n k each.

A scan's body counts times its length; the compiler's own count takes it once. `utilisation` divides
this count by the device's peak, for the share of the batch's places that hold real tokens.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr


@dataclasses.dataclass(frozen=True)
class Product:
    """One `dot_general`: number of runs, operations per run, and its arrays.

    `arrays` are (shape, bytes of a number) of both operands and of the result. `shared` are the
    sizes of the dimensions that both operands have.
    """

    times: float
    arrays: tuple[tuple[tuple[int, ...], int], ...]
    shared: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the result."""
        return self.arrays[-1][0]

    @property
    def flops(self) -> float:
        """Operations of one run."""
        (left, _), (right, _), _ = self.arrays
        return 2.0 * math.prod(left) * math.prod(right) / math.prod(self.shared)

    def resized(self, size: Callable[[int], int]) -> Product:
        """Returns the product of arrays with `size` of each dimension."""
        arrays = [(tuple(map(size, shape)), width) for shape, width in self.arrays]
        return Product(self.times, tuple(arrays), tuple(map(size, self.shared)))


def flops(function: Callable[..., Any], *args: Any) -> float:
    """Returns the operations of one call, for arrays or abstract shapes, with recomputation."""
    return sum(product.times * product.flops for product in products(function, *args))


def places(batch: Mapping[str, Any]) -> int:
    """Returns the number of tokens that a batch has room for, real ones and padding.

    The operations of a step by this number are those of a token; by the metric `tokens` of the step
    they are what its real tokens need. Attention over a short row counts at its padded length."""
    return batch["segment_ids"].size if "segment_ids" in batch else batch["rows"].size


def products(function: Callable[..., Any], *args: Any) -> list[Product]:
    """Returns the products of one call, in program order.
    Of several branches, the one with the most operations counts."""
    return _count(jax.make_jaxpr(function)(*args).jaxpr)


def _count(jaxpr) -> list[Product]:
    total = []
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "dot_general":
            (contract, _), (batch, _) = eqn.params["dimension_numbers"]
            avals = [v.aval for v in (*eqn.invars, *eqn.outvars)]
            arrays = tuple((tuple(aval.shape), aval.dtype.itemsize) for aval in avals)
            shared = tuple(avals[0].shape[i] for i in (*contract, *batch))
            total.append(Product(1.0, arrays, shared))
            continue
        times = eqn.params.get("length", 1) if eqn.primitive.name == "scan" else 1
        inner = [_count(sub) for sub in _subjaxprs(eqn.params)]
        if eqn.primitive.name == "cond":
            inner = [
                max(inner, key=lambda branch: sum(p.times * p.flops for p in branch), default=[])
            ]
        total += [
            dataclasses.replace(product, times=times * product.times)
            for branch in inner
            for product in branch
        ]
    return total


def _subjaxprs(params):
    for value in params.values():
        for item in value if isinstance(value, list | tuple) else (value,):
            item = item.jaxpr if isinstance(item, ClosedJaxpr) else item
            if isinstance(item, Jaxpr):
                yield item
