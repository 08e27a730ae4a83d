"""Parameters of a plain Transformer in encoders that hold its layers in several stacks."""

from __future__ import annotations

import collections
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from ptm_jax.core.errors import UserError


def spread(params: Mapping[str, Any], stacks: Mapping[str, int]) -> dict[str, Any]:
    """Returns the layers of `stack/...` [N, ...] as layers of several stacks.

    `stacks` is {path: layers}, from the input up; other paths stay.

    Parameters that have the paths of `stacks` already stay as they are. Raises UserError for
    another number of layers.
    """
    if any(name.startswith(f"{place}/") for name in params for place in stacks if place != "stack"):
        return dict(params)
    leaves: dict[str, Any] = {}
    for name, leaf in params.items():
        if not name.startswith("stack/"):
            leaves[name] = leaf
            continue
        if len(leaf) != (layers := sum(stacks.values())):
            raise UserError(
                f"the model has {len(leaf)} layers, and this encoder {layers}; take one of its size"
            )
        start = 0
        for place, count in stacks.items():
            leaves[name.replace("stack", place, 1)] = leaf[start : start + count]
            start += count
    return leaves


def gathered(params: Mapping[str, Any], parts: str) -> dict[str, Any]:
    """Joins the layers of `parts`_0/..., `parts`_1/..., each [N, ...], into one `stack/...`.

    Other paths stay.
    """
    leaves: dict[str, Any] = {}
    several: dict[str, dict[int, Any]] = collections.defaultdict(dict)
    for name, leaf in params.items():
        if place := re.fullmatch(rf"{parts}_(\d+)/(.+)", name):
            several[f"stack/{place[2]}"][int(place[1])] = leaf
        else:
            leaves[name] = leaf
    return leaves | {
        name: np.concatenate([some[n] for n in sorted(some)]) for name, some in several.items()
    }
