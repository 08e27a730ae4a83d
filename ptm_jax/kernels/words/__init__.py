"""Word vectors on a CPU: kernels in C++, compiled on their first use by the host's compiler.

XLA's CPU backend scatters rows one by one and computes small products on one core. A kernel makes
an update's products and additions in the cache, on all cores, in place; results do not depend on
the number of threads. Definitions: of `sampling` `objectives.vectors.windows.NegativeSampling`
under SGD, of `cells` `objectives.vectors.glove.GloVe` under scaled Adagrad, of `bags`
`objectives.tasks.downstream.Classification` of supervised fastText under SGD.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ptm_jax.core.recipe import SGD, Adagrad, Recipe
from ptm_jax.core.types import Array, Batch, Ratio
from ptm_jax.kernels import native
from ptm_jax.kernels.updates import Arrays, Bags, Cells, Sampling, State, Step

TARGETS = {"sampling": "ptm_words_descend", "cells": "ptm_words_cells", "bags": "ptm_words_bags"}


def library(name: str) -> ctypes.CDLL | str:
    """Returns a kernel, compiled on its first use, or why it cannot be used here."""
    return native.library(Path(__file__).with_name(f"{name}.cc"))


def refusal(name: str) -> str | None:
    """Registers a kernel; returns why it cannot be used here, or None."""
    return native.refusal(Path(__file__).with_name(f"{name}.cc"), TARGETS[name])


Several = tuple[Array, ...]


def descend(
    tables: Several,
    batch: Batch,
    rate: Array,
    *,
    updates: int,
    window: int,
    k: int,
    limit: float | None = None,
    means=False,
    pieces=None,
    threads: int = 0,
) -> tuple[Several, Array]:
    """Updates tables by windows of words, and returns them with sums.

    The sums are [loss, centres, pairs, sum of gradient norms]. Each of the `updates` reads the rows
    m, m + updates, ....

    tables   input and output vectors, [V, D] float32; with `pieces` also n-gram vectors, [M, D];
             all are donated
    batch    `input_ids`, `segment_ids`, `windows` [B, L], `noise_ids` [B, K]
    rate     the learning rate of the mean over the centres of an update
    limit    longest change of a row in an update (`recipe.SGD.row_limit`)
    means    CBOW: the mean of the neighbours predicts the word
    pieces   [V + 1 + N] int32, n-grams of the words (`statistics.subwords.HashedNGrams`), or
             None
    threads  0: the cores of this process
    """
    fields = [
        batch[name].astype(jnp.int32)
        for name in ("input_ids", "segment_ids", "windows", "noise_ids")
    ]
    inputs = (
        tables if pieces is not None else (*tables, jnp.zeros((0, tables[0].shape[1]), jnp.float32))
    )
    rows = jnp.asarray(pieces if pieces is not None else (), jnp.int32)
    made = (
        *(jax.ShapeDtypeStruct(table.shape, jnp.float32) for table in inputs),
        jax.ShapeDtypeStruct((4,), jnp.float32),
    )
    call = jax.ffi.ffi_call(
        TARGETS["sampling"], made, input_output_aliases={n: n for n in range(3)}
    )
    numbers = {
        "updates": np.int64(updates),
        "window": np.int64(window),
        "k": np.float32(k),
        "threads": np.int64(threads),
    }
    numbers["limit"] = np.float32(limit or 0)
    *arrays, sums = call(
        *inputs, rows, *fields, jnp.reshape(rate, (1,)).astype(jnp.float32), means=means, **numbers
    )
    return tuple(arrays[: len(tables)]), sums


def fit(
    tables: Several, sums: Several, cells: Several, rates: Array, *, updates: int, threads: int = 0
) -> Several:
    """Updates tables by cells of co-occurrences, and returns them with sums, in one tuple.

    (tables, sums, [loss, cells, norms of the gradients]). Each of the `updates` reads the rows m, m
    + updates, ....

    tables   vectors [V, D] and biases [V] of words, and of contexts, float32; all are donated
    sums     of their squared steps
    cells    i, j, log X and f(X) [B, L]; 0 where there is no cell
    rates    [4], of the tables, for the mean over the cells of an update
    threads  0: the cores of this process
    """
    words, logs = (
        [field.astype(jnp.int32) for field in cells[:2]],
        [field.astype(jnp.float32) for field in cells[2:]],
    )
    shapes = [jax.ShapeDtypeStruct(table.shape, jnp.float32) for table in (*tables, *sums)]
    made = (*shapes, jax.ShapeDtypeStruct((3,), jnp.float32))
    call = jax.ffi.ffi_call(
        TARGETS["cells"], made, input_output_aliases={n: n for n in range(len(shapes))}
    )
    numbers = {"updates": np.int64(updates), "threads": np.int64(threads)}
    return tuple(call(*tables, *sums, *words, *logs, rates.astype(jnp.float32), **numbers))


def classify(
    tables: Several,
    rows: Several,
    labels: Array,
    weights: Array,
    rate: Array,
    *,
    updates: int,
    ways=None,
) -> Several:
    """Updates tables by the classes of texts, and returns them with sums, in one tuple.

    (tables, [loss, weights, weights of right texts, sum of gradient norms]). Each of the `updates`
    reads the texts m, m + updates, ....

    tables   vectors of words and of n-grams, [V, D] and [M, D] float32, and the matrix of classes,
             [D, C]; all are donated
    rows     of words [B, L] and of n-grams [B, L, n], int32; the largest int32: none
    labels   [B] int32; weights [B] float32, 0: no text
    rate     the learning rate of the mean over the texts of an update
    ways     [C, P] int32 (`kernels.updates.Bags`), or None: softmax; with them no text counts as
             right
    """
    made = (
        *(jax.ShapeDtypeStruct(table.shape, jnp.float32) for table in tables),
        jax.ShapeDtypeStruct((4,), jnp.float32),
    )
    call = jax.ffi.ffi_call(TARGETS["bags"], made, input_output_aliases={n: n for n in range(3)})
    ways = jnp.zeros((tables[2].shape[1], 0), jnp.int32) if ways is None else jnp.asarray(ways)
    inputs = *rows, labels.astype(jnp.int32), weights.astype(jnp.float32), ways
    return tuple(
        call(
            *tables, *inputs, jnp.reshape(rate, (1,)).astype(jnp.float32), updates=np.int64(updates)
        )
    )


Result = tuple[Arrays, Mapping[str, Arrays], dict[str, Any]]


def _sampling(settings: Sampling, recipe: Recipe, state: State, batch: Batch) -> Result:
    tables, sums = descend(
        tuple(state.tables.values()),
        batch,
        next(iter(state.rates.values())),
        updates=recipe.updates,
        limit=recipe.optimizer.row_limit,
        window=settings.window,
        k=settings.k,
        means=settings.means,
        pieces=settings.pieces,
    )
    metrics = {
        "loss": Ratio(sums[0], sums[1]),
        "pair_loss": Ratio(sums[0], sums[2]),
        "grad_norm": sums[3] / recipe.updates,
    }
    return dict(zip(state.tables, tables, strict=True)), {}, metrics


def _cells(settings: Cells, recipe: Recipe, state: State, batch: Batch) -> Result:
    tables = state.tables
    squares = tuple(state.moments["nu"][path] for path in tables)
    *arrays, sums = fit(
        tuple(tables.values()),
        squares,
        (batch["input_ids"], batch["context_ids"], *settings.targets(batch)),
        jnp.stack(list(state.rates.values())),
        updates=recipe.updates,
    )
    metrics = dict.fromkeys(("loss", "cell_loss"), Ratio(sums[0], sums[1])) | {
        "grad_norm": sums[2] / recipe.updates
    }
    moved, moments = (
        dict(zip(tables, part, strict=True))
        for part in (arrays[: len(tables)], arrays[len(tables) :])
    )
    return moved, {"nu": moments}, metrics


def _bags(settings: Bags, recipe: Recipe, state: State, batch: Batch) -> Result:
    *tables, sums = classify(
        tuple(state.tables.values()),
        settings.rows(batch),
        batch["label"],
        settings.weights(batch),
        next(iter(state.rates.values())),
        updates=recipe.updates,
        ways=settings.ways,
    )
    metrics = dict.fromkeys(("loss", "nll"), Ratio(sums[0], sums[1])) | {
        "grad_norm": sums[3] / recipe.updates
    }
    if settings.ways is None:
        metrics["accuracy"] = Ratio(sums[2], sums[1])
    return dict(zip(state.tables, tables, strict=True)), {}, metrics


def _plain(recipe: Recipe) -> bool:
    return (
        isinstance(recipe.optimizer, SGD) and not recipe.optimizer.momentum and not recipe.lr_rules
    )


STEPS = {
    Sampling: Step(_plain, functools.partial(refusal, "sampling"), _sampling),
    Bags: Step(
        lambda recipe: recipe.optimizer == SGD() and not recipe.lr_rules,
        functools.partial(refusal, "bags"),
        _bags,
    ),
    Cells: Step(
        lambda recipe: recipe.optimizer == Adagrad(initial=1.0, eps=0.0, scaled=True),
        functools.partial(refusal, "cells"),
        _cells,
    ),
}
"""The kernel of each record of settings (`kernels.updates`)."""
