"""Floating-point operations of a function, counted from its jaxpr: products only, loops times their length.

The compiler's own count takes a loop body once. Here 2 m n k for each product (a scan's body times its length) gives
the model's arithmetic, which `utilisation` divides by the device's peak.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax


def flops(function: Callable[..., Any], *args: Any) -> float:
    """Operations of one call, for arrays or abstract shapes; recomputation inside the function counts."""
    return _count(jax.make_jaxpr(function)(*args).jaxpr)


def _count(jaxpr) -> float:
    total = 0.0
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "dot_general":
            (contract, _), (batch, _) = eqn.params["dimension_numbers"]
            left, right = eqn.invars[0].aval.shape, eqn.invars[1].aval.shape
            shared = math.prod(left[i] for i in (*contract, *batch))
            total += 2.0 * math.prod(left) * math.prod(right) / shared
            continue
        times = eqn.params.get("length", 1) if eqn.primitive.name == "scan" else 1
        inner = [_count(sub) for sub in _subjaxprs(eqn.params)]
        if eqn.primitive.name == "cond":
            inner = [max(inner, default=0.0)]
        total += times * sum(inner)
    return total


def _subjaxprs(params):
    for value in params.values():
        for item in value if isinstance(value, list | tuple) else (value,):
            item = getattr(item, "jaxpr", item)
            if hasattr(item, "eqns"):
                yield item
