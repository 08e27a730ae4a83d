"""Edge probes of every mix of layers at once (Tenney et al. 2019a, section 3; 2019b, section 3.2).

Probe n reads the mean of the layers 0 to n with trained weights, times a trained scale. Each word
of a span is projected to 256 dimensions, attention within the span gives one vector, and the second
span has a projection and attention of its own. A hidden layer of 256 (tanh, layer norm, dropout of
0.3) and a sigmoid for each label follow. The loss is the binary cross-entropy, batches have 32
targets, and the score is the micro-averaged F1 of the labels whose probability is at least 0.5.

The papers take 250,000 steps at a rate of 1e-4; here the rate is 1e-3, and each probe stops by its
loss on a tenth of the training targets.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ptm_jax.core.types import Array
from ptm_jax.tasks.probes import layer_training
from ptm_jax.tasks.probes.layer_training import Arrays
from ptm_jax.tasks.probes.linear_probes import layer_weights

WIDTH, DROPOUT, BATCH, EPOCHS = 256, 0.3, 32, 20
WIDTHS = tuple(4**n for n in range(8))
"""Words of a span to which the spans of a batch are padded."""
WORDS = 512
"""Words of a batch at most, where a span has fewer."""


class Edges(NamedTuple):
    """Targets of edge probes.

    states   [words, N+1, D] of all words
    spans    [n, S, 2] int64: first word and the word after the last; S is 1 or 2
    targets  [n, C] float32: 1 for each label that a target has
    """

    states: np.ndarray
    spans: np.ndarray
    targets: np.ndarray


def train(edges: Edges, *, epochs: int = EPOCHS, seed: int = 0) -> Arrays:
    """Returns the parameters of the probes of N+1 mixes of layers."""
    draw = np.random.default_rng(seed)
    order = draw.permutation(len(edges.spans))
    held = len(order) // 10

    def batches():
        groups = _groups(edges, draw.permutation(order[held:]))
        for at in draw.permutation(len(groups)):
            key = draw.integers(0, 2**32, 2, dtype=np.uint32)
            yield _batch(edges, *groups[at]) | {"key": key}

    def held_out():
        for rows, width, size in _groups(edges, order[:held] if held else order):
            yield _batch(edges, rows, width, size), len(rows)

    return layer_training.fitted(_loss, _initial(edges, draw), {}, batches, held_out, epochs=epochs)


def f1(params: Arrays, edges: Edges, unseen: int = 0) -> np.ndarray:
    """Returns the micro-averaged F1 [N+1] of the labels; `unseen` labels of the targets have no
    column and are missed."""
    right, predicted = 0, 0
    for rows, width, size in _groups(edges, np.arange(len(edges.spans))):
        chosen = np.asarray(logits(params, _batch(edges, rows, width, size)))[:, : len(rows)] >= 0
        right += (chosen * edges.targets[rows]).sum((1, 2))
        predicted += chosen.sum((1, 2))
    return 2 * right / np.maximum(1, predicted + edges.targets.sum() + unseen)


def logits(params: Arrays, batch: Arrays) -> Array:
    """Returns the logits [N+1, B, C] of states [B, S, W, N+1, D] and a mask [B, S, W] of words."""
    weights = layer_weights(params["mix"]) * params["scale"][:, None]
    states = jnp.einsum("km,bswmd->kbswd", weights, batch["states"].astype(jnp.float32))
    words = jnp.einsum("kbswd,ksde->kbswe", states, params["project"])
    words += params["project_bias"][:, None, :, None]
    scores = jnp.einsum("kbswe,kse->kbsw", words, params["attend"])
    attention = jax.nn.softmax(jnp.where(batch["mask"], scores, -jnp.inf), -1)
    vectors = jnp.einsum("kbsw,kbswe->kbse", attention, words)
    inner = jnp.einsum("kbse,kseh->kbh", vectors, params["inner"]) + params["inner_bias"][:, None]
    hidden = jax.nn.standardize(jnp.tanh(inner), epsilon=1e-5)
    hidden = hidden * params["norm"][:, None] + params["norm_bias"][:, None]
    if "key" in batch:
        key = jax.random.wrap_key_data(batch["key"])
        hidden *= jax.random.bernoulli(key, 1 - DROPOUT, hidden.shape) / (1 - DROPOUT)
    return jnp.einsum("kbh,khc->kbc", hidden, params["kernel"]) + params["bias"][:, None]


def _initial(edges: Edges, draw: np.random.Generator) -> Arrays:
    layers, width = edges.states.shape[1:]
    sides, classes = edges.spans.shape[1], edges.targets.shape[1]

    def drawn(*shape: int, inputs: int = WIDTH) -> np.ndarray:
        return layer_training.uniform(draw, layers, *shape, inputs=inputs)

    return {
        "mix": np.zeros((layers, layers), np.float32),
        "scale": np.ones(layers, np.float32),
        "project": drawn(sides, width, WIDTH, inputs=width),
        "project_bias": drawn(sides, WIDTH, inputs=width),
        "attend": drawn(sides, WIDTH),
        "inner": drawn(sides, WIDTH, WIDTH, inputs=sides * WIDTH),
        "inner_bias": drawn(WIDTH, inputs=sides * WIDTH),
        "norm": np.ones((layers, WIDTH), np.float32),
        "norm_bias": np.zeros((layers, WIDTH), np.float32),
        "kernel": drawn(WIDTH, classes),
        "bias": drawn(classes),
    }


def _groups(edges: Edges, rows: np.ndarray) -> list[tuple[np.ndarray, int, int]]:
    """Returns the rows of each batch, the words of a span there, and the rows with padding."""
    lengths = (edges.spans[rows, :, 1] - edges.spans[rows, :, 0]).max(-1)
    widths = np.array(WIDTHS)[np.searchsorted(WIDTHS, lengths)]
    groups = []
    for width in sorted({*widths.tolist()}):
        size = max(1, min(BATCH, WORDS // width))
        parts = layer_training.divided(rows[widths == width], size)
        groups += [(part, width, size) for part in parts]
    return groups


def _batch(edges: Edges, rows: np.ndarray, width: int, size: int) -> Arrays:
    """Returns a batch of `size` rows; those that fill it have the weight 0."""
    filled = np.resize(rows, size)
    begins, ends = edges.spans[filled, :, :1], edges.spans[filled, :, 1:]
    places = begins + np.arange(width)
    return {
        "states": edges.states[np.minimum(places, ends - 1)],
        "mask": places < ends,
        "targets": edges.targets[filled],
        "weights": (np.arange(size) < len(rows)).astype(np.float32),
    }


def _loss(params: Arrays, constants: Arrays, batch: Arrays) -> Array:
    """Returns the mean loss [N+1] of a target: the sum over its labels, in nats."""
    scores = logits(params, batch)
    losses = optax.sigmoid_binary_cross_entropy(scores, batch["targets"]).sum(-1)
    return (losses * batch["weights"]).sum(-1) / batch["weights"].sum()
