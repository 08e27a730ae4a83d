"""Parameters of a plain Transformer in encoders that hold its layers in several stacks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ptm_jax.core.errors import UserError


def spread(params: Mapping[str, Any], stacks: Mapping[str, int]) -> dict[str, Any]:
    """Returns the layers of `stack/...` [N, ...] as those of `stacks` {path: layers}, from the input up; other paths stay.

    Parameters that have the paths of `stacks` already stay as they are. Raises UserError for another number of layers."""
    if any(name.startswith(f"{place}/") for name in params for place in stacks if place != "stack"):
        return dict(params)
    found: dict[str, Any] = {}
    for name, leaf in params.items():
        if not name.startswith("stack/"):
            found[name] = leaf
            continue
        if len(leaf) != (own := sum(stacks.values())):
            raise UserError(f"the model has {len(leaf)} layers, and this encoder {own}; take one of its size")
        start = 0
        for place, count in stacks.items():
            found[name.replace("stack", place, 1)] = leaf[start : start + count]
            start += count
    return found
