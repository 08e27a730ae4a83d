"""Softmax of the scores of attention that are held in memory, with scale and mask in one pass.

    p        = softmax(scale * logits)       over the `seen` positions of the last axis
    d logits = scale * p (g - sum p g)

The definition of attention calls it. This is the way of every network whose maps are read:
`encode(attention=True)`, views of attention, and attention losses of distillation. `impl` selects
the implementation:

    reference   `kernels.reference.masked_softmax`, which XLA compiles to several loops
    pallas      `tpu`: one kernel a direction, as in Megatron-LM. Not run on hardware yet
    auto        reference; on an attached TPU the one that is right and fastest there
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from ptm_jax.core.constraint import current
from ptm_jax.core.errors import UserError
from ptm_jax.core.types import Array
from ptm_jax.kernels import choice, deciding
from ptm_jax.kernels.softmax import candidates


def scale_mask_softmax(logits: Array, seen: Array, scale: float = 1.0, impl: str = "auto") -> Array:
    """Returns probabilities [B, H, Lq, Lk] in the type of the logits [B, H, Lq, Lk].

    The booleans `seen` broadcast to the logits. Probabilities of a row without any are zero, and so
    is its gradient. Raises UserError if the implementation that `impl` names cannot compute this.
    """
    platform = choice.platform()
    if impl == "auto":
        impl = candidates.best(platform, logits) if deciding.asks(platform) else "reference"
    several = [one for one in candidates.CANDIDATES if one.name == choice.named(impl)]
    if not several:
        names = ", ".join(one.name for one in candidates.CANDIDATES)
        raise UserError(f"impl={impl!r} has no masked softmax; impl is one of auto, {names}")
    module = several[0].load()
    if reason := module.refusal(platform, logits.shape[-1], logits.dtype):
        raise UserError(f"impl={impl!r} cannot compute this softmax: {reason}")
    run = functools.partial(module.softmax, scale=scale)
    if impl == "reference" or current() is None:
        return run(logits, seen)
    return _divided(run, logits, seen)


def _divided(run, logits, seen):
    """Calls `run` on each device's rows, heads and queries; every device has all keys."""
    layout = current()

    def spec(x):
        names = ("rows", "heads", "length")
        split = [
            layout.axes(name) if size > 1 and size % layout.parts(name) == 0 else None
            for name, size in zip(names, x.shape, strict=False)
        ]
        return PartitionSpec(*(axes or None for axes in split), None)

    seen = jnp.broadcast_to(seen, (*seen.shape[:2], *logits.shape[2:]))
    mapped = jax.shard_map(
        run,
        mesh=layout.mesh,
        in_specs=(spec(logits), spec(seen)),
        out_specs=spec(logits),
        check_vma=False,
    )
    return mapped(logits, seen)
