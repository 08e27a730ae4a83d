"""Attention with several implementations; `kernels.choice` selects one by `impl`.

`reference` defines the result and returns probabilities. The others do not hold all scores of a row: `blocked`
(impl="xla") runs on every platform, `tpu` and `gpu` (impl="pallas") and `cudnn` only on their devices. Their modules are
imported when selected.

Under a layout (`core.constraint`) a kernel runs inside `jax.shard_map`. Rows and heads stay split. If positions are split,
`blocked` keeps the queries split; the other kernels gather them. Keys and values are gathered. Dropout numbers heads and
queries globally, so its bits equal those of one device.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from ptm_jax.core.constraint import current
from ptm_jax.core.precision import Precision
from ptm_jax.core.types import Array, Visibility
from ptm_jax.kernels import reference
from ptm_jax.kernels.attention import blocked
from ptm_jax.kernels.choice import Impl, choose
from ptm_jax.kernels.scores import Relative, Scores, Types


def attention(q: Array, k: Array, v: Array, **given: Any) -> Array:
    """Returns the result of `attend` without the probabilities."""
    return attend(q, k, v, **given)[0]


def attend(
    q: Array,
    k: Array,
    v: Array,
    *,
    visibility: Visibility,
    scale: float,
    scores: Scores = Scores(),
    dropout: float = 0.0,
    key: Array | None = None,
    rows: Array | None = None,
    precision: Precision = Precision(),
    impl: Impl = "auto",
) -> tuple[Array, Array | None]:
    """Computes softmax(scale * q k^T + scores) v over the visible keys.

    q [B, Lq, H, K], k and v [B, Lk, H, K]; `kernels.scores` defines `scores`. Returns ([B, Lq, H, K] in the precision's
    type, probabilities [B, H, Lq, Lk] float32 from the reference implementation, else None). Raises UserError if the
    implementation that `impl` names cannot compute this.
    """
    platform = _platform()
    given = {"visibility": visibility, "scores": scores, "dropout": dropout, "precision": precision}
    chosen = choose(impl, platform, q.shape[1], k.shape[1], lambda name: _refusal(name, platform, q, k, **given))
    given |= {"scale": scale, "key": key, "rows": rows}
    if chosen == "reference":
        return reference.attention(q, k, v, **given)
    run = _function(chosen, platform)
    if current() is None:
        return run(q, k, v, **given), None
    return _divided(run, chosen == "xla", q, k, v, **given), None


def _platform() -> str:
    """Returns the platform of the layout's devices (which may be a topology's), or JAX's default backend."""
    layout = current()
    platform = jax.default_backend() if layout is None else layout.mesh.devices.flat[0].platform
    return "gpu" if platform in ("cuda", "rocm") else platform


def _module(name: str, platform: str):
    if name == "xla":
        return blocked
    if name == "cudnn":
        from ptm_jax.kernels.attention import cudnn as module
    elif platform == "tpu":
        from ptm_jax.kernels.attention import tpu as module
    else:
        from ptm_jax.kernels.attention import gpu as module
    return module


def _function(name, platform):
    return _module(name, platform).attention


def _refusal(name, platform, q, k, **given) -> str | None:
    """Returns why an implementation cannot compute this and what to use instead, or None."""
    if name == "reference":
        return None
    if name == "pallas" and platform not in ("tpu", "gpu"):
        return f"there are kernels for TPU and GPU, none for {platform}: take impl='xla'"
    if name == "cudnn" and platform != "gpu":
        return f"it runs on NVIDIA's GPUs, not on {platform}: take impl='xla'"
    return _module(name, platform).refusal(q, k, **given)


def _divided(run, by_query, q, k, v, *, key, rows, dropout, scale, precision, visibility, scores):
    """Calls `run` on each device's part of the arrays."""
    layout = current()
    sizes = {"rows": q.shape[0], "length": q.shape[1], "heads": q.shape[2]}
    axes = {name: layout.axes(name) for name in sizes if by_query or name != "length"}
    axes = {name: found for name, found in axes.items() if sizes[name] % layout.parts(name) == 0}
    if not by_query or "length" not in axes:
        axes["length"] = ()
    rows = jnp.arange(sizes["rows"], dtype=jnp.int32) if rows is None else rows
    args = q, k, v, visibility, scores, rows, key
    split = lambda x, *names: _spec(axes, x, names)
    place = "rows", "length", "heads", None
    specs = (
        split(q, *place),
        *(split(x, "rows", None, "heads", None) for x in (k, v)),
        _of_visibility(visibility, split),
        _of_scores(scores, split),
        split(rows, "rows"),
        None if key is None else P(),
    )
    whole = q.shape[2], q.shape[1], k.shape[1]

    def local(q, k, v, visibility, scores, rows, key):
        part = {"first_head": _first(layout.mesh, axes.get("heads", ()), q.shape[2])}
        if by_query:
            part |= {"whole": whole, "first_query": _first(layout.mesh, axes["length"], q.shape[1])}
        else:
            part |= {"whole_heads": whole[0]}
        given = {"visibility": visibility, "scores": scores, "dropout": dropout, "key": key, "rows": rows}
        return run(q, k, v, scale=scale, precision=precision, **given, **part)

    return jax.shard_map(local, mesh=layout.mesh, in_specs=specs, out_specs=specs[0], check_vma=False)(*args)


def _first(mesh, axes, size):
    """Returns the start of this device's part of a dimension; `size` is the size of a part."""
    first = jnp.zeros((), jnp.int32)
    for axis in axes:
        first = first * mesh.shape[axis] + jax.lax.axis_index(axis)
    return first * size


def _spec(axes, x, names):
    """Returns the partition spec of an array with these names of dimensions. Dimensions of size 1 are not split."""
    if x is None:
        return None
    return P(*(axes.get(name) or None if size > 1 else None for name, size in zip(names, x.shape, strict=True)))


def _of_visibility(visibility: Visibility, split) -> Visibility:
    queries, keys = ("rows", "length"), ("rows", None)
    return Visibility(
        split(visibility.q_segments, *queries),
        split(visibility.k_segments, *keys),
        split(visibility.q_order, *queries),
        split(visibility.k_order, *keys),
        split(visibility.allow, "rows", "heads", "length", None),
        split(visibility.q_group, *queries),
        split(visibility.k_group, *keys),
        visibility.strict,
    )


def _of_scores(scores: Scores, split) -> Scores:
    relative, types = scores.relative, scores.types
    if relative is not None:
        queries = split(relative.queries, "rows", "length", "heads", None)
        relative = Relative(queries, split(relative.table, None, "heads", None))
    if types is not None:
        by_query = split(types.scores, "rows", "length", "heads", None)
        types = Types(by_query, split(types.q_types, "rows", "length"), split(types.k_types, "rows", None))
    return dataclasses.replace(
        scores,
        bias=split(scores.bias, "rows", "heads", "length", None),
        distances=split(scores.distances, "heads", None),
        relative=relative,
        types=types,
        values=split(scores.values, None, "heads", None),
        q_places=split(scores.q_places, "rows", "length"),
        k_places=split(scores.k_places, "rows", None),
    )
