"""Linear probes of every layer at once: accuracy, selectivity, description length, mixed layers.

Liu et al. 2019: a softmax of a linear function of the states, trained by Adam. Hewitt and Liang
2019: the same probe learns labels that are drawn for each word type; selectivity is the difference
of the accuracies. Voita and Titov 2020: the bits of an online code. Tenney et al. 2019b: a probe on
the mean of the layers 0 to n with trained weights, whose gain over that of n - 1 gives the expected
layer (Eq. 3 and 4); the weights over all layers give the centre of gravity.

The layers are one array, and one program trains all of their probes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ptm_jax.core.types import Array
from ptm_jax.tasks.probes import layer_training
from ptm_jax.tasks.probes.layer_training import Arrays
from ptm_jax.tasks.probes.word_states import Rows

BATCH = 256
"""Rows of a batch, at most; a small set is divided into at least 32 batches of 16 rows or more."""
EPOCHS = 50
PORTIONS = (0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.0625, 0.125, 0.25, 0.5, 1.0)
"""Shares of the data after which the probe of the online code is trained anew."""


class Probe(NamedTuple):
    """Trained probes of N+1 layers.

    params     kernel [N+1, D, C], bias [N+1, C]; mix [N+1, N+1], logits of the weights of the
               layers that a probe reads, without which each reads its layer; inner [N+1, D, H] and
               inner_bias [N+1, H] of a hidden layer, after which the kernel is [N+1, H, C]
    constants  mean [N+1, D] and scale [N+1, D] of the training states
    """

    params: Arrays
    constants: Arrays


def train(
    states: np.ndarray, labels: np.ndarray, classes: int, *, mixed: bool = False, hidden: int = 0,
    held: int | None = None, learning_rate: float = 1e-3, epochs: int = EPOCHS, seed: int = 0,
) -> Probe:  # fmt: skip
    """Returns the probes of every layer.

    states  [n, N+1, D]; labels [n] int32 below `classes`
    mixed   whether probe n reads the weighted mean of the layers 0 to n
    hidden  width of a layer of sigmoids; 0: the probe is linear
    held    the last rows, which choose the epoch; None: a drawn tenth
    """
    draw = np.random.default_rng(seed)
    if held is None:
        order = draw.permutation(len(states))
        held = max(1, len(states) // 10) if len(states) > 20 else 0
        train_rows, held_rows = order[held:], order[:held]
    else:
        train_rows, held_rows = np.split(np.arange(len(states)), [len(states) - held])
    layers, width = states.shape[1:]
    mean, deviation = _moments(states, np.sort(train_rows[:20_000]))
    constants = {"mean": mean, "scale": 1 / np.maximum(deviation, 1e-6)}
    params = {
        "kernel": np.zeros((layers, hidden or width, classes), np.float32),
        "bias": np.zeros((layers, classes), np.float32),
    }
    if mixed:
        params["mix"] = np.zeros((layers, layers), np.float32)
    if hidden:
        params["inner"] = layer_training.uniform(draw, layers, width, hidden, inputs=width)
        params["inner_bias"] = layer_training.uniform(draw, layers, hidden, inputs=width)
    size = 16
    while size < BATCH and 64 * size <= len(train_rows):
        size *= 2

    def batches():
        for rows in layer_training.divided(draw.permutation(train_rows), size):
            yield _batch(states, labels, rows, size)

    def held_out():
        return _all_batches(states, labels, held_rows if len(held_rows) else train_rows)

    best = layer_training.fitted(
        _loss, params, constants, batches, held_out, rate=learning_rate, epochs=epochs
    )
    return Probe(best, constants)


def accuracy(probe: Probe, states: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Returns the accuracy [N+1] of each layer."""
    return (predictions(probe, states) == labels).sum(1) / max(1, len(labels))


def predictions(probe: Probe, states: np.ndarray) -> np.ndarray:
    """Returns the label [N+1, n] with the highest probability."""
    best = [np.zeros((states.shape[1], 0), int)]
    for batch, rows in _all_batches(states, np.zeros(len(states), int), np.arange(len(states))):
        best.append(np.asarray(_logits(*probe, batch["states"])).argmax(-1)[:, :rows])
    return np.concatenate(best, 1)


def bits(
    probe: Probe, states: np.ndarray, labels: np.ndarray, rows: np.ndarray | None = None
) -> np.ndarray:
    """Returns the mean bits [N+1] of a label: -log2 of its probability."""
    rows = np.arange(len(states)) if rows is None else rows
    batches = _all_batches(states, labels, rows)
    return layer_training.mean_loss(_loss, *probe, batches) / np.log(2)


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
        part = states.of(known) if isinstance(states, Rows) else states[known]
        probe = train(part, labels[known], classes, seed=seed)
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
    the mean of the layers 1 to N, weighted by the gain of each; NaN without a gain, and where
    layers that lose put it outside of them."""
    gains = np.diff(scores)
    total = gains.sum()
    mean = (np.arange(1, len(scores)) * gains).sum() / total if total > 0 else np.nan
    return float(mean) if 1 <= mean <= len(gains) else float("nan")


def centre_of_gravity(mix: Array) -> float:
    """Returns the mean of the layers, weighted as the probe on all of them does (Eq. 2), from the
    logits [N+1, N+1] of the weights."""
    weights = jax.nn.softmax(mix[-1])
    return float((np.arange(len(weights)) * np.asarray(weights)).sum())


def _moments(states: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the means and standard deviations [N+1, D] of some rows, batch by batch."""
    mean, square = (np.zeros(states.shape[1:]) for _ in range(2))
    for chosen in layer_training.divided(rows, BATCH):
        mean += np.asarray(states[chosen], np.float64).sum(0) / len(rows)
    for chosen in layer_training.divided(rows, BATCH):
        square += ((states[chosen] - mean) ** 2).sum(0) / len(rows)
    return mean.astype(np.float32), np.sqrt(square).astype(np.float32)


def _all_batches(
    states: np.ndarray, labels: np.ndarray, rows: np.ndarray
) -> Iterator[tuple[Arrays, int]]:
    """Yields the batches of all rows, and the number of rows in each."""
    for chosen in layer_training.divided(rows, BATCH):
        yield _batch(states, labels, chosen, BATCH), len(chosen)


def _batch(states: np.ndarray, labels: np.ndarray, rows: np.ndarray, size: int) -> Arrays:
    """Returns states [N+1, size, D], targets [size], and weights [size], 0 of the padding."""
    block = np.zeros((size, *states.shape[1:]), np.float32)
    block[: len(rows)] = states[rows]
    return {
        "states": block.transpose(1, 0, 2),
        "targets": np.pad(labels[rows], (0, size - len(rows))),
        "weights": (np.arange(size) < len(rows)).astype(np.float32),
    }


def layer_weights(mix: Array) -> Array:
    """Returns the weights [K, N+1] of the layers that K = N+1 probes read, from logits: probe n
    reads the layers 0 to n."""
    return jax.nn.softmax(jnp.where(jnp.tril(jnp.ones(mix.shape, bool)), mix, -jnp.inf), -1)


@jax.jit
def _logits(params: Arrays, constants: Arrays, block: Array) -> Array:
    """Returns the logits [N+1, B, C] of states [N+1, B, D]."""
    block = (block - constants["mean"][:, None]) * constants["scale"][:, None]
    if "mix" in params:
        block = jnp.einsum("nm,mbd->nbd", layer_weights(params["mix"]), block)
    if "inner" in params:
        inner = jnp.einsum("nbd,ndh->nbh", block, params["inner"])
        block = jax.nn.sigmoid(inner + params["inner_bias"][:, None])
    return jnp.einsum("nbd,ndc->nbc", block, params["kernel"]) + params["bias"][:, None]


def _loss(params: Arrays, constants: Arrays, batch: Arrays) -> Array:
    """Returns the mean loss [N+1] of the rows with a weight, in nats."""
    logits = _logits(params, constants, batch["states"])
    targets = jnp.broadcast_to(batch["targets"], logits.shape[:2])
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, targets)
    return (losses * batch["weights"]).sum(-1) / jnp.maximum(batch["weights"].sum(), 1)
