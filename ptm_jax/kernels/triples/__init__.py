"""Updates of graph embeddings on a CPU: a C++ kernel, compiled on its first use.

XLA computes the many small operations of a step one after the other. The kernel computes the
gradients of a row of the batch in the cache, and moves every vector that was read once, in place,
on all cores. Results do not depend on the number of threads. Definition:
`objectives.vectors.graph_vectors.TripleLoss` with noise, under SGD, Adagrad or Adam.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ptm_jax.core.recipe import SGD, Adagrad, AdamW, Optimizer, Recipe
from ptm_jax.core.types import Array, Batch, Ratio
from ptm_jax.kernels import native
from ptm_jax.kernels.updates import Arrays, State, Step, Triples

TARGET = "ptm_triples"
SOURCE = Path(__file__).with_name("update.cc")
SCORES = ("l1", "l2", "planes", "product")
"""Names of the scores: TransE with either norm, TransH, DistMult
(`objectives.vectors.vector_traits.TripleHead`)."""
KINDS = (SGD, Adagrad, AdamW)


def refusal() -> str | None:
    """Registers the kernel; returns why it cannot be used here, or None."""
    return native.refusal(SOURCE, TARGET)


def makes(recipe: Recipe) -> bool:
    """Returns whether the kernel makes the updates of a recipe.

    Plain SGD, Adagrad, or Adam without weight decay.
    """
    plain = recipe.optimizer
    if isinstance(plain, AdamW):
        return plain.weight_decay == 0 and recipe.updates == 1
    return recipe.updates == 1 and (
        plain == SGD() or isinstance(plain, Adagrad) and not plain.scaled
    )


def descend(
    tables: tuple[Array, ...],
    moments: tuple[Array, ...],
    batch: Batch,
    numbers: Array,
    **settings: Any,
) -> tuple[tuple[Array, ...], Array]:
    """Updates the tables of a graph, and returns them with the moments and sums.

    The sums are [loss, sides, ordered sides, constraints, triples, norm of the gradient].

    tables    the encoder's [V, D] and, for TransH, the normals [V, D], float32; all arrays are
              donated
    moments   mu and nu of each table; [0, D] where the optimizer has none
    batch     `input_ids`, `segment_ids` [B, 3 T], `noise_ids` [B, K], `sides` [B, T]
    numbers   [4]: the rates of both tables, and 1 / (1 - b1^t) and (1 - b2^t)^-1/2 of Adam's update
              t
    settings  attributes of the foreign function (update.cc)
    """
    fields = [
        batch[name].astype(jnp.int32) for name in ("input_ids", "segment_ids", "noise_ids", "sides")
    ]
    inputs = [
        tables[0],
        *moments[:2],
        *(tables[1:] or [jnp.zeros((0, tables[0].shape[1]), jnp.float32)]),
        *moments[2:],
    ]
    inputs += [jnp.zeros((0, tables[0].shape[1]), jnp.float32)] * (6 - len(inputs))
    made = (
        *(jax.ShapeDtypeStruct(x.shape, jnp.float32) for x in inputs),
        jax.ShapeDtypeStruct((6,), jnp.float32),
    )
    call = jax.ffi.ffi_call(TARGET, made, input_output_aliases={n: n for n in range(6)})
    *arrays, sums = call(*inputs, *fields, numbers.astype(jnp.float32), **settings)
    return tuple(arrays), sums


def _numbers(
    optimizer: Optimizer, rates: list[Array], count: Array
) -> tuple[Array, dict[str, Any]]:
    """Returns the numbers of `descend`, and the settings of the optimizer."""
    adam = isinstance(optimizer, AdamW)
    b1, b2 = (optimizer.b1, optimizer.b2) if adam else (0.0, 0.0)
    t = (count + 1).astype(jnp.float32)
    corrections = [jnp.ones((), jnp.float32)] * 2
    if (
        adam and optimizer.bias_correction
    ):  # from the logarithm: 1 - 0.999 loses four digits in float32
        first, second = (-jnp.expm1(t * math.log(b)) for b in (b1, b2))
        corrections = [1.0 / first, jax.lax.rsqrt(second)]
    eps = 0.0 if isinstance(optimizer, SGD) else optimizer.eps
    kind = next(n for n, kind in enumerate(KINDS) if isinstance(optimizer, kind))
    attributes = {
        "b1": np.float32(b1),
        "b2": np.float32(b2),
        "eps": np.float32(eps),
        "kind": np.int64(kind),
    }
    return jnp.stack([rates[0], rates[-1], *corrections]), attributes


def _run(
    settings: Triples, recipe: Recipe, state: State, batch: Batch
) -> tuple[Arrays, Mapping[str, Arrays], dict[str, Any]]:
    tables, moments, paths = state.tables, state.moments, list(state.tables)
    numbers, attributes = _numbers(
        recipe.optimizer, [state.rates[path] for path in paths], state.count
    )
    names, none = ("mu", "nu"), jnp.zeros((0, tables[paths[0]].shape[1]), jnp.float32)
    attributes |= {
        "score": np.int64(SCORES.index(settings.score)),
        "softmax": settings.loss == "softmax",
        "both": settings.both,
        "unit": settings.unit,
        "whole_table": settings.whole_table(batch),
        "epsilon": np.float32(settings.tolerance),
        "margin": np.float32(settings.margin),
        "soft": np.float32(settings.soft),
        "decay": np.float32(settings.decay),
    }
    arrays, sums = descend(
        tuple(tables.values()),
        tuple(moments.get(name, {}).get(path, none) for path in paths for name in names),
        batch,
        numbers,
        **attributes,
    )
    after = dict(zip(paths, arrays[::3], strict=False))
    moved = {
        name: {path: arrays[3 * n + 1 + m] for n, path in enumerate(paths)}
        for m, name in enumerate(names)
        if name in moments
    }
    metrics = {
        f"{settings.loss}_loss": Ratio(sums[0], sums[1]),
        "ordered": Ratio(sums[2], sums[1]),
        "loss": Ratio(sums[jnp.array([0, 3])], sums[jnp.array([1, 4])]),
        "grad_norm": sums[5],
    }
    return after, moved, metrics


STEPS = {Triples: Step(makes, refusal, _run)}
"""The kernel of its record of settings (`kernels.updates`)."""
