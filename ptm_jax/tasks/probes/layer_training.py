"""Training of a probe for each layer: one program trains all, and each has its own best epoch."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable

import jax
import numpy as np
import optax

from ptm_jax.core.types import Array

Arrays = dict[str, Array]
Loss = Callable[[Arrays, Arrays, Arrays], Array]
"""(parameters, constants, batch) -> the mean loss [K] of the rows of the batch for each probe."""
PATIENCE = 3
"""Epochs without a gain on the held-out data after which a probe stops."""
GAIN = 7e-5
"""Smallest gain, in nats."""


def fitted(
    loss: Loss, params: Arrays, constants: Arrays, batches: Callable[[], Iterable[Arrays]],
    held: Callable[[], Iterable[tuple[Arrays, int]]], *,
    rate: float = 1e-3, epochs: int = 50, patience: int = PATIENCE, gain: float = GAIN,
) -> Arrays:  # fmt: skip
    """Returns the parameters after the epoch with the least loss on the held-out data, for each
    probe by itself. Adam has the rate `rate`.

    loss     a function of a module, so that another training compiles nothing
    params   arrays [K, ...]
    batches  () -> the batches of an epoch
    held     () -> held-out batches, and the number of rows in each
    """
    moments = optax.adam(rate).init(params)
    best, best_loss, worse = params, np.inf, 0
    for _ in range(epochs):
        for batch in batches():
            params, moments = _step(loss, rate, (params, moments), constants, batch)
        mean = mean_loss(loss, params, constants, held())
        better = mean < best_loss - gain
        best = jax.tree.map(functools.partial(_chosen, better), params, best)
        best_loss, worse = np.where(better, mean, best_loss), np.where(better, 0, worse + 1)
        if worse.min() >= patience:
            break
    return best


def mean_loss(
    loss: Loss, params: Arrays, constants: Arrays, batches: Iterable[tuple[Arrays, int]]
) -> np.ndarray:
    """Returns the mean losses [K] over all rows."""
    total, count = 0.0, 0
    for batch, rows in batches:
        total += np.asarray(_losses(loss, params, constants, batch), np.float64) * rows
        count += rows
    return total / max(1, count)


def divided(rows: np.ndarray, size: int) -> list[np.ndarray]:
    """Returns the rows in parts of `size` rows; the last may have fewer."""
    return [rows[start : start + size] for start in range(0, len(rows), size)]


def uniform(draw: np.random.Generator, *shape: int, inputs: int) -> np.ndarray:
    """Returns float32 weights between -1/sqrt(inputs) and 1/sqrt(inputs), as torch draws them."""
    return draw.uniform(-1, 1, shape).astype(np.float32) / np.float32(np.sqrt(inputs))


def _chosen(better: np.ndarray, new: Array, old: Array) -> Array:
    return jax.numpy.where(better.reshape(-1, *[1] * (new.ndim - 1)), new, old)


@functools.partial(jax.jit, static_argnums=0)
def _losses(loss: Loss, params: Arrays, constants: Arrays, batch: Arrays) -> Array:
    return loss(params, constants, batch)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _step(
    loss: Loss, rate: float, state: tuple[Arrays, optax.OptState], constants: Arrays, batch: Arrays
) -> tuple[Arrays, optax.OptState]:
    params, moments = state
    gradient = jax.grad(lambda params: loss(params, constants, batch).sum())(params)
    updates, moments = optax.adam(rate).update(gradient, moments, params)
    return optax.apply_updates(params, updates), moments
