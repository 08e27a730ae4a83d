"""Linear probes of every layer at once: accuracy, selectivity, description length, mixed layers.

Liu et al. 2019: a softmax of a linear function of the states, trained by Adam. Hewitt and Liang
2019: the same probe learns labels that are drawn for each word type; selectivity is the difference
of the accuracies. Voita and Titov 2020: the bits of an online code. Tenney et al. 2019b: a probe on
the mean of the layers 0 to n with trained weights, whose gain over that of n - 1 gives the expected
layer (Eq. 3 and 4); the weights over all layers give the centre of gravity.

The layers are one array, and one program trains all of their probes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ptm_jax.core.types import Array

BATCH = 256
"""Rows of a batch, at most; a small set is divided into at least 32 batches of 16 rows or more."""
EPOCHS = 50
PATIENCE = 3
"""Epochs without a gain on the held-out tenth of the training data after which a probe stops."""
PORTIONS = (0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.0625, 0.125, 0.25, 0.5, 1.0)
"""Shares of the data after which the probe of the online code is trained anew."""


class Probe(NamedTuple):
    """Trained probes of N+1 layers.

    kernel  [N+1, D, C]; bias [N+1, C]; mix [N+1, N+1], logits of the weights of the layers that a
            probe reads, or None: each reads its layer
    mean    [N+1, D] and scale [N+1, D] of the training states
    """

    kernel: Array
    bias: Array
    mix: Array | None
    mean: Array
    scale: Array


def train(
    states: np.ndarray, labels: np.ndarray, classes: int, *, mixed: bool = False,
    learning_rate: float = 1e-3, epochs: int = EPOCHS, seed: int = 0,
) -> Probe:  # fmt: skip
    """Returns the probes of every layer.

    states  [n, N+1, D]; labels [n] int32 below `classes`
    mixed   whether probe n reads the weighted mean of the layers 0 to n
    """
    draw = np.random.default_rng(seed)
    order = draw.permutation(len(states))
    held = max(1, len(states) // 10) if len(states) > 20 else 0
    train_rows, held_rows = order[held:], order[:held]
    layers, width = states.shape[1:]
    sample = np.asarray(states[np.sort(train_rows[:20_000])], np.float32)
    probe = Probe(
        jnp.zeros((layers, width, classes)),
        jnp.zeros((layers, classes)),
        jnp.zeros((layers, layers)) if mixed else None,
        jnp.asarray(sample.mean(0)),
        jnp.asarray(1 / np.maximum(sample.std(0), 1e-6)),
    )
    free = {name: value for name, value in probe._asdict().items() if name in _FREE}
    free = {name: value for name, value in free.items() if value is not None}
    moments = optax.adam(learning_rate).init(free)
    size = 16
    while size < BATCH and 64 * size <= len(train_rows):
        size *= 2
    best, best_loss = free, np.full(layers, np.inf)
    worse = np.zeros(layers, int)
    for _ in range(epochs):
        for rows in _batches(draw.permutation(train_rows), size):
            block, weights = _block(states, rows, size)
            targets = np.pad(labels[rows], (0, size - len(rows)))
            free, moments = _step((free, moments), probe, (block, targets, weights), learning_rate)
        current = probe._replace(**free)
        loss = bits(current, states, labels, held_rows if held else train_rows)
        better = loss < best_loss - 1e-4
        best = jax.tree.map(functools.partial(_chosen, better), free, best)
        best_loss, worse = np.where(better, loss, best_loss), np.where(better, 0, worse + 1)
        if worse.min() >= PATIENCE:
            break
    return probe._replace(**best)


def accuracy(probe: Probe, states: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Returns the accuracy [N+1] of each layer."""
    right = np.zeros(states.shape[1])
    for rows in _batches(np.arange(len(states)), BATCH):
        block, _ = _block(states, rows, BATCH)
        best = np.asarray(_logits(probe, block)).argmax(-1)[:, : len(rows)]
        right += (best == labels[rows]).sum(1)
    return right / max(1, len(states))


def bits(
    probe: Probe, states: np.ndarray, labels: np.ndarray, rows: np.ndarray | None = None
) -> np.ndarray:
    """Returns the mean bits [N+1] of a label: -log2 of its probability."""
    rows = np.arange(len(states)) if rows is None else rows
    total = np.zeros(states.shape[1])
    for chosen in _batches(rows, BATCH):
        block, weights = _block(states, chosen, BATCH)
        targets = np.pad(labels[chosen], (0, BATCH - len(chosen)))
        total += np.asarray(_loss(probe, block, targets, weights)) * len(chosen)
    return total / max(1, len(rows)) / np.log(2)


def description_length(
    states: np.ndarray, labels: np.ndarray, classes: int, seed: int = 0,
    step: Callable[[], None] | None = None,
) -> np.ndarray:  # fmt: skip
    """Returns the bits [N+1] of the labels in an online code (Voita and Titov 2020, section 2.2).

    The first block has uniform codes; each next one has those of a probe of the blocks before it.
    """
    order = np.random.default_rng(seed).permutation(len(states))
    ends = sorted({max(1, round(share * len(states))) for share in PORTIONS})
    total = np.full(states.shape[1], ends[0] * np.log2(classes))
    for begin, end in zip(ends, ends[1:], strict=False):
        known, new = np.sort(order[:begin]), order[begin:end]
        probe = train(states[known], labels[known], classes, seed=seed)
        total += bits(probe, states, labels, new) * len(new)
        if step is not None:
            step()
    return total


def control(words: Sequence[str], labels: np.ndarray, seed: int = 0) -> np.ndarray:
    """Returns a control task's labels (Hewitt and Liang 2019, section 2): each word type has one,
    drawn from the distribution of the labels."""
    draw = np.random.default_rng(seed)
    drawn: dict[str, int] = {}
    for word in sorted({*words}):
        drawn[word] = int(draw.choice(labels))
    return np.array([drawn[word] for word in words], labels.dtype)


def expected_layer(scores: np.ndarray) -> float:
    """Returns the expected layer of the scores [N+1] of mixed probes (Tenney et al. 2019b, Eq. 4):
    the mean of the layers 1 to N, weighted by the gain of each; NaN without a gain."""
    gains = np.diff(scores)
    total = gains.sum()
    return float((np.arange(1, len(scores)) * gains).sum() / total) if total > 0 else float("nan")


def centre_of_gravity(probe: Probe) -> float:
    """Returns the mean of the layers, weighted as the probe on all of them does (Eq. 2)."""
    weights = jax.nn.softmax(probe.mix[-1])
    return float((np.arange(len(weights)) * np.asarray(weights)).sum())


_FREE = ("kernel", "bias", "mix")


def _chosen(better: np.ndarray, new: Array, old: Array) -> Array:
    return jnp.where(better.reshape(-1, *[1] * (new.ndim - 1)), new, old)


def _batches(rows: np.ndarray, size: int) -> list[np.ndarray]:
    return [rows[start : start + size] for start in range(0, len(rows), size)]


def _block(states: np.ndarray, rows: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the states [N+1, size, D] of some rows, and weights [size], 0 of the padding."""
    block = np.zeros((size, *states.shape[1:]), np.float32)
    block[: len(rows)] = states[rows]
    return block.transpose(1, 0, 2), (np.arange(size) < len(rows)).astype(np.float32)


@jax.jit
def _logits(probe: Probe, block: Array) -> Array:
    """Returns the logits [N+1, B, C] of states [N+1, B, D]."""
    block = (block - probe.mean[:, None]) * probe.scale[:, None]
    if probe.mix is not None:
        layers = len(block)
        below = jnp.tril(jnp.ones((layers, layers), bool))
        weights = jax.nn.softmax(jnp.where(below, probe.mix, -jnp.inf), -1)
        block = jnp.einsum("nm,mbd->nbd", weights, block)
    return jnp.einsum("nbd,ndc->nbc", block, probe.kernel) + probe.bias[:, None]


@jax.jit
def _loss(probe: Probe, block: Array, targets: Array, weights: Array) -> Array:
    """Returns the mean loss [N+1] of the rows with a weight, in nats."""
    losses = optax.softmax_cross_entropy_with_integer_labels(
        _logits(probe, block), jnp.broadcast_to(targets, (len(block), len(targets)))
    )
    return (losses * weights).sum(-1) / jnp.maximum(weights.sum(), 1)


@functools.partial(jax.jit, static_argnums=3)
def _step(
    state: tuple[dict, optax.OptState], probe: Probe, batch: tuple[Array, Array, Array], rate: float
) -> tuple[dict, optax.OptState]:
    free, moments = state

    def total(free):
        return _loss(probe._replace(**free), *batch).sum()

    updates, moments = optax.adam(rate).update(jax.grad(total)(free), moments, free)
    return optax.apply_updates(free, updates), moments
