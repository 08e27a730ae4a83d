"""How high a parameter stands in its network: what rates by layer, unfreezing and representations by layer go by.

A network's parts are counted from its input: 0 is what lies below the layers (embeddings), 1 ... N are the layers, N + 1,
the `top`, are the heads. The parameters of a scanned stack hold all its layers, one after the other along axis 0, so that
their level is a vector [N]; layers that share one set of parameters (ALBERT) are one level, and what all layers of a stack
share is of the level of the first. The layers of a decoder stand above those of its encoder.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from ptm_jax.core.describe import field_names, is_spec
from ptm_jax.core.paths import flatten


class Place(str):
    """A parameter's path 'tower/a/b/c' that also knows its `level`, an int or [N] int array, and the `top` of its network.

    It is the path wherever a path is asked for.
    """

    level: Any
    top: int

    def __new__(cls, path: str, level: Any = 0, top: int = 1) -> Place:
        place = super().__new__(cls, path)
        place.level, place.top = level, top
        return place


def layers_stacked(params: Any, shared: Iterable[str] = ()) -> dict[str, bool]:
    """Whether axis 0 of each parameter counts layers: {path: bool}.

    A scanned stack holds its layers under `.../block/...`, all leaves with the number of layers in front. A block that
    layers share (ALBERT) has the same paths without that axis; its leaves then start with different sizes. `shared` are
    patterns of the parameters of a block that its layers share while others are their own (`nn.blocks.Stack.shared`).
    """
    flat = flatten(params)
    layered = dict.fromkeys(flat, False)
    for prefix, group in _stacks(flat).items():
        inside = len(prefix) + len("block/")
        own = [path for path in group if not any(re.search(pattern, path[inside:]) for pattern in shared)]
        if len({flat[path].shape[:1] for path in own}) == 1 and len(own) > 1:
            layered.update({path: flat[path].ndim > 0 for path in own})
    return layered


def shared_in(value: Any) -> tuple[str, ...]:
    """The patterns of what layers share in the stacks of a spec: of the towers of a system."""
    if isinstance(value, Mapping):
        parts = list(value.values())
    elif isinstance(value, tuple | list):
        parts = list(value)
    else:
        parts = [getattr(value, name) for name in field_names(value)] if is_spec(value) else []
    own = getattr(value, "shared", None) if hasattr(value, "block") else None
    return tuple(dict.fromkeys(([own] if isinstance(own, str) else []) + [p for part in parts for p in shared_in(part)]))


def places(params: Any, shared: Iterable[str] = ()) -> dict[str, Place]:
    """{path: Place} of a nested dict of parameters, or of their shapes; `shared` as in `layers_stacked`."""
    flat, layered = flatten(params), layers_stacked(params, shared)
    networks: dict[str, list[str]] = defaultdict(list)
    for path in flat:
        networks[_network(path)].append(path)
    found: dict[str, Place] = {}
    for paths in networks.values():
        below, starts = 0, {}
        stacks = _stacks(dict.fromkeys(paths))
        for prefix in sorted(stacks, key=lambda name: ("/decoder" in name, name)):
            if _is_head(stacks[prefix][0]):
                continue
            starts[prefix] = below + 1
            below += next((flat[path].shape[0] for path in stacks[prefix] if layered[path]), 1)
        for path in paths:
            found[path] = Place(path, _level(path, flat[path], layered[path], starts, below), below + 1)
    return {path: found[path] for path in flat}


def _level(path: str, leaf: Any, layered: bool, starts: dict[str, int], last: int) -> Any:
    if _is_head(path):
        return last + 1
    prefix = _stack(path)
    if prefix is not None:
        return starts[prefix] + np.arange(leaf.shape[0]) if layered else starts[prefix]
    return last if re.search(r"/stack/|/final_norm/", path) else 0


def _is_head(path: str) -> bool:
    """Whether a parameter lies above the encoder: in a head, or in what reads its layers."""
    return re.search(r"/(heads|readers)_\w+/", f"{path}/") is not None


def _network(path: str) -> str:
    """What stands before the parts of a network in a path: its tower."""
    return re.split(r"/(?=encoder/|heads_|readers_)", path, maxsplit=1)[0].split("/encoder/")[0]


def _stack(path: str) -> str | None:
    prefix, found, _ = f"/{path}".rpartition("/block/")
    return prefix if found and not _is_head(path) else None


def _stacks(flat: Any) -> dict[str, list[str]]:
    """{prefix of a stack: paths of its blocks' parameters}."""
    groups: dict[str, list[str]] = defaultdict(list)
    for path in flat:
        prefix, found, _ = f"/{path}".rpartition("/block/")
        if found:
            groups[prefix].append(path)
    return groups
