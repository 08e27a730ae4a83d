"""Attention with several implementations; `kernels.choice` selects one by `impl`.

`reference` defines the result and returns probabilities; a TPU may take the Pallas kernel for its
softmax (`kernels.softmax`). `candidates` lists the others, which do
not hold all scores of a row: `blocked` (impl="xla") runs on every platform, `tpu` and `gpu`
(impl="pallas"), `splash`, `cudnn` and `tokamax` only on their devices. Their modules are imported
when selected. With "auto" an attached TPU or GPU decides (`kernels.deciding`).

Under a layout (`core.constraint`) a kernel runs inside `jax.shard_map`. Rows and heads stay split.
If positions are split, `blocked` keeps the queries split; the other kernels gather them. Keys and
values are gathered. Dropout numbers heads and queries globally, so its bits equal those of one
device.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from ptm_jax.core.constraint import current
from ptm_jax.core.precision import Precision
from ptm_jax.core.types import Array, Visibility
from ptm_jax.kernels import choice, deciding, reference
from ptm_jax.kernels.attention import candidates, cpu
from ptm_jax.kernels.attention.arguments import Arguments
from ptm_jax.kernels.choice import Impl
from ptm_jax.kernels.scores import Scores
from ptm_jax.kernels.softmax import scale_mask_softmax


def attention(q: Array, k: Array, v: Array, **settings: Any) -> Array:
    """Returns the result of `attend` without the probabilities."""
    return attend(q, k, v, **settings)[0]


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
    cap: float | None = None,
    impl: Impl = "auto",
) -> tuple[Array, Array | None]:
    """Computes softmax(scale * q k^T + scores) v over the visible keys.

    q [B, Lq, H, K], k and v [B, Lk, H, K]; `kernels.scores` defines `scores`. Returns ([B, Lq, H,
    K] in the precision's type, probabilities [B, H, Lq, Lk] float32 from the reference
    implementation, else None). `cap` limits the scores softly: cap tanh(score / cap). Raises
    UserError if the implementation that `impl` names cannot compute this.
    """
    platform = choice.platform()
    settings = {
        "visibility": visibility,
        "scale": scale,
        "scores": scores,
        "dropout": dropout,
        "key": key,
        "rows": rows,
        "cap": cap,
    }
    args = Arguments(**settings, precision=precision)
    if impl == "auto" and deciding.asks(platform):
        impl = candidates.best(platform, q, k, args)
    chosen = choice.choose(
        impl, platform, q.shape[1], k.shape[1], lambda name: _refusal(name, platform, q, k, args)
    )
    if chosen == "reference" or (chosen == "native" and q.shape[1] * k.shape[1] <= choice.SHORT):
        heads, probabilities = reference.attention(
            q, k, v, **settings, precision=precision, softmax=scale_mask_softmax
        )
        # A program that does not read the result of the definition does not compute it.
        return heads if chosen == "reference" else cpu.attention(q, k, v, args), probabilities
    run = candidates.module_of(chosen, platform).attention
    return run(q, k, v, args) if current() is None else _divided(
        run, q, k, v, args, by_query=chosen == "xla"
    ), None


def _refusal(name, platform, q, k, args) -> str | None:
    """Returns why an implementation cannot compute this and what to use instead, or None."""
    several = [one for one in candidates.CANDIDATES if one.name == name]
    if not any(one.runs_on(platform) for one in several):
        return f"it is for {several[0].where}, and there is none for {platform}: take impl='xla'"
    if not several[0].installed:
        return f"the package {several[0].needs} is not installed: install it, or take impl='xla'"
    return candidates.module_of(name, platform).refusal(q, k, args)


AXES = {
    **dict.fromkeys(("q", "queries", "scores"), ("rows", "length", "heads", None)),
    **dict.fromkeys(("k", "v", "keys"), ("rows", None, "heads", None)),
    **dict.fromkeys(
        ("q_segments", "q_order", "q_group", "q_types", "q_places"), ("rows", "length")
    ),
    **dict.fromkeys(("k_segments", "k_order", "k_group", "k_types", "k_places"), ("rows", None)),
    **dict.fromkeys(("allow", "bias"), ("rows", "heads", "length", None)),
    **dict.fromkeys(("table", "values"), (None, "heads", None)),
    "distances": ("heads", None),
    "rows": ("rows",),
}
"""Names of the dimensions of every operand by the name of its field. Others are scalars."""


def _divided(run, q, k, v, args, *, by_query):
    """Calls `run` on each device's part of the arrays."""
    layout = current()
    sizes = {"rows": q.shape[0], "length": q.shape[1], "heads": q.shape[2]}
    axes = {name: layout.axes(name) for name in sizes if by_query or name != "length"}
    axes = {
        name: mesh_axes for name, mesh_axes in axes.items() if sizes[name] % layout.parts(name) == 0
    }
    first = functools.partial(_first, layout.mesh, axes)
    args = dataclasses.replace(args, rows=args.rows_of(q), full_size=args.whole_of(q, k))

    def local(operands, args):
        q, k, v = operands["q"], operands["k"], operands["v"]
        start = {
            "first_head": first("heads", q.shape[2]),
            "first_query": first("length", q.shape[1]),
        }
        return run(q, k, v, dataclasses.replace(args, **start))

    def spec(path, x):  # dimensions of size 1 are not split
        names = AXES.get(jax.tree_util.keystr(path[-1:], simple=True), ())
        return P(
            *(
                axes.get(name) or None if size > 1 else None
                for name, size in zip(names, jnp.shape(x), strict=False)
            )
        )

    constants = {"q": q, "k": k, "v": v}, args
    specs = jax.tree.map_with_path(spec, constants)
    mapped = jax.shard_map(
        local, mesh=layout.mesh, in_specs=specs, out_specs=specs[0]["q"], check_vma=False
    )
    return mapped(*constants)


def _first(mesh, axes, name, size):
    """Returns the start of this device's part of a dimension; `size` is the size of a part."""
    first = jnp.zeros((), jnp.int32)
    for axis in axes.get(name, ()):
        first = first * mesh.shape[axis] + jax.lax.axis_index(axis)
    return first * size
