"""Tensor product decompositions of the states of sentences (McCoy et al. 2019; Jawahar et al. 2019,
section 6).

The state of a sentence is approximated by a linear function of the sum of the outer products of
fillers and roles: the filler is a linear function of the word's vector by itself, the role has a
trained vector. A scheme gives each word its role. The scheme with the least squared error on
held-out sentences is the structure that the states resemble most.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from ptm_jax.core.types import Array
from ptm_jax.data.trees import parses
from ptm_jax.tasks.probes import layer_training
from ptm_jax.tasks.probes.layer_training import Arrays
from ptm_jax.tasks.probes.probe_data import Sentence

FILLER, ROLE, BATCH = 32, 8, 32
"""Entries of a filler and of a role; sentences in a batch."""


class Products(NamedTuple):
    """Sentences as words in roles.

    states  [n, N+1, D] of the sentences
    words   [n, L] numbers of words; roles [n, L] numbers of roles, -1: padding or an unknown role
    scale   [n] factors of the sums of products: 1 as published, and 1 over the number of words
            where the state of a sentence is a mean over its words
    """

    states: np.ndarray
    words: np.ndarray
    roles: np.ndarray
    scale: np.ndarray


def train(
    products: Products, vectors: np.ndarray, roles: int, *, epochs: int = 100, seed: int = 0
) -> Arrays:
    """Returns the parameters of N+1 decompositions, one for each layer.

    vectors  [V, D] of the words; roles: their number
    """
    draw = np.random.default_rng(seed)
    layers, width = products.states.shape[1:]
    order = draw.permutation(len(products.states))
    held = len(order) // 10
    params = {
        "roles": draw.normal(size=(layers, roles, ROLE)).astype(np.float32),
        "fillers": layer_training.uniform(draw, layers, len(vectors[0]), FILLER, inputs=width),
        "kernel": np.zeros((layers, FILLER, ROLE, width), np.float32),  # begins as the mean state
        "bias": np.asarray(products.states, np.float32).mean(0),
    }

    def batches():
        for rows in layer_training.divided(draw.permutation(order[held:]), BATCH):
            yield _batch(products, rows)

    def held_out():
        for rows in layer_training.divided(order[:held] if held else order, BATCH):
            yield _batch(products, rows), len(rows)

    return layer_training.fitted(
        _loss, params, {"vectors": vectors}, batches, held_out, epochs=epochs
    )


def error(params: Arrays, products: Products, vectors: np.ndarray) -> np.ndarray:
    """Returns the mean squared error [N+1] over sentences and entries of a state."""
    parts = layer_training.divided(np.arange(len(products.states)), BATCH)
    batches = ((_batch(products, rows), len(rows)) for rows in parts)
    return layer_training.mean_loss(_loss, params, {"vectors": vectors}, batches)


def approximated(params: Arrays, vectors: Array, batch: Arrays) -> Array:
    """Returns the approximations [N+1, B, D] of sentences with words and roles [B, L]."""
    roles = batch["roles"]
    fillers = jnp.einsum("vd,kdf->kvf", vectors, params["fillers"])[:, batch["words"]]
    bound = params["roles"][:, roles] * ((roles >= 0) * batch["scale"][:, None])[..., None]
    products = jnp.einsum("kblf,kblr->kbfr", fillers, bound)
    return jnp.einsum("kbfr,kfrd->kbd", products, params["kernel"]) + params["bias"][:, None]


def schemes(sentences: Sequence[Sentence], seed: int = 0) -> dict[str, list[list[Hashable]]]:
    """Returns {scheme: roles of the words of each sentence}. Sentences with trees have the roles
    `tree`, the path from the root of the binary tree, and those of a drawn tree."""
    draw = np.random.default_rng(seed)
    rules: dict[str, Callable[[int], list[Hashable]]] = {
        "left to right": lambda count: list(range(count)),
        "right to left": lambda count: list(range(count))[::-1],
        "bidirectional": lambda count: [(word, count - word) for word in range(count)],
        "bag of words": lambda count: [0] * count,
    }
    sizes = [len(sentence.words) for sentence in sentences]
    roles = {name: [rule(size) for size in sizes] for name, rule in rules.items()}
    if all(sentence.heads is not None for sentence in sentences):
        roles["tree"] = [_paths(sentence) for sentence in sentences]
        roles["drawn tree"] = [_drawn_paths(size, draw) for size in sizes]
    return roles


def _paths(sentence: Sentence) -> list[Hashable]:
    """Returns the path of L and R from the root of the binary tree to each word."""
    numbers = tuple(map(str, range(len(sentence.words))))
    tree = parses.binary(parses.Tree(numbers, sentence.heads, numbers, sentence.place))
    children, paths = tree.children, [""] * len(tree.heads)
    for node in reversed(range(len(tree.heads))):  # a phrase stands after its children
        for side, child in zip("LR", children[node], strict=False):
            paths[child] = paths[node] + side
    by_word = {int(word): path for word, path in zip(tree.words, paths, strict=True) if word}
    return [by_word[word] for word in range(len(sentence.words))]


def _drawn_paths(count: int, draw: np.random.Generator) -> list[Hashable]:
    paths = [""]
    while len(paths) < count:
        at = int(draw.integers(len(paths)))
        paths[at : at + 1] = [paths[at] + "L", paths[at] + "R"]
    return paths


def _batch(products: Products, rows: np.ndarray) -> Arrays:
    filled = np.resize(rows, BATCH)
    return {
        "states": np.asarray(products.states[filled], np.float32),
        "words": products.words[filled],
        "roles": products.roles[filled],
        "scale": products.scale[filled],
        "weights": (np.arange(BATCH) < len(rows)).astype(np.float32),
    }


def _loss(params: Arrays, constants: Arrays, batch: Arrays) -> Array:
    """Returns the mean loss [N+1] of a sentence: the mean squared error of its state."""
    states = approximated(params, constants["vectors"], batch)
    wrong = ((states - batch["states"].transpose(1, 0, 2)) ** 2).mean(-1)
    return (wrong * batch["weights"]).sum(-1) / batch["weights"].sum()
