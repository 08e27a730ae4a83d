"""Structural probes of every layer at once (Hewitt and Manning 2019).

Distance: the squared norm of B (h_i - h_j) against the number of edges between two words; the loss
is the mean of the absolute differences over the pairs, divided by the squared length (section 2.2).
Depth: the squared norm of B h_i against the edges to the root. Adam begins at 1e-3; the rate falls
by ten after each epoch without a gain on the held-out sentences, and training ends after five.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from scipy.sparse.csgraph import minimum_spanning_tree
from scipy.stats import rankdata

from ptm_jax.core.types import Array

BATCH, EPOCHS, PATIENCE, GAIN = 20, 40, 5, 1e-4
RATE = 1e-3
LENGTHS = range(5, 51)
"""Lengths of sentences whose correlations are averaged."""
PUNCTUATION = ("PUNCT", ".", ",", ":", "``", "''", "-LRB-", "-RRB-", "$", "#")


class ParsedStates(NamedTuple):
    """A sentence: states [W, N+1, D], heads [W] (-1: root), and which words are punctuation [W]."""

    states: np.ndarray
    heads: tuple[int, ...]
    punctuation: np.ndarray


def distances(heads: Sequence[int]) -> np.ndarray:
    """Returns the numbers of edges [W, W] between words of a tree."""
    count = len(heads)
    table = np.full((count, count), np.inf)
    np.fill_diagonal(table, 0)
    for word, head in enumerate(heads):
        if head >= 0:
            table[word, head] = table[head, word] = 1
    for middle in range(count):
        table = np.minimum(table, table[:, middle, None] + table[None, middle])
    return table


def depths(heads: Sequence[int]) -> np.ndarray:
    """Returns the number of edges [W] from the root of the tree to each word."""
    return distances(heads)[list(heads).index(-1)]


def train(
    sentences: Sequence[ParsedStates], held: Sequence[ParsedStates], *, depth: bool = False,
    rank: int | None = None, epochs: int = EPOCHS, seed: int = 0,
) -> np.ndarray:  # fmt: skip
    """Returns B [N+1, D, rank] of each layer, by the least loss on the held-out sentences.

    rank  None: as many as the states have
    """
    layers, width = sentences[0].states.shape[1:]
    draw = np.random.default_rng(seed)
    start = draw.uniform(-0.05, 0.05, (layers, width, rank or width)).astype(np.float32)
    b, moments = jnp.asarray(start), optax.adam(RATE).init(jnp.asarray(start))
    scale, worse = np.ones(layers, np.float32), np.zeros(layers, int)
    best, best_loss = b, np.full(layers, np.inf)
    for _ in range(epochs):
        for batch in _batches(sentences, depth, draw):
            b, moments = _step((b, moments), batch, jnp.asarray(scale), depth)
        losses = [
            (np.asarray(_loss(b, *batch, depth)), batch[0].shape[1])
            for batch in _batches(held, depth, None)
        ]
        loss = sum(one * rows for one, rows in losses) / sum(rows for _, rows in losses)
        better = loss < best_loss - GAIN
        best = jnp.where(better[:, None, None], b, best)
        best_loss, worse = np.where(better, loss, best_loss), np.where(better, 0, worse + 1)
        scale = np.where(better, scale, scale * 0.1).astype(np.float32)
        if worse.min() >= PATIENCE:
            break
    return np.asarray(best)


def predicted(b: np.ndarray, states: np.ndarray, depth: bool = False) -> np.ndarray:
    """Returns squared distances [N+1, W, W], or squared norms [N+1, W], of a sentence."""
    projected = np.einsum("wnd,ndk->nwk", np.asarray(states, np.float32), b)
    if depth:
        return (projected**2).sum(-1)
    return ((projected[:, :, None] - projected[:, None]) ** 2).sum(-1)


def distance_scores(sentences: Sequence[ParsedStates], b: np.ndarray) -> dict[str, np.ndarray]:
    """Returns the figures [N+1]: `uuas`, the share of undirected edges in the minimum spanning tree
    without punctuation, `dspr`, Spearman's correlation of the distances of a word, averaged over
    words, sentences of a length, and lengths (section 3.2), and how well one factor makes tree
    distances of the squared ones and of their roots: the share of variance that it explains, 1 for
    squares of a Pythagorean embedding (Coenen, Reif et al. 2019, arXiv 1906.02715, section 3.2)."""
    edges, right = 0, np.zeros(len(b))
    products, gold_sums = np.zeros((2, 2, len(b))), np.zeros(3)
    by_length: dict[int, list[np.ndarray]] = {}
    for sentence in sentences:
        tables = predicted(b, sentence.states)
        words = np.flatnonzero(~sentence.punctuation)
        gold = _edges(sentence.heads, words)
        edges += len(gold)
        for layer, table in enumerate(tables):
            right[layer] += len(gold & spanning_edges(table, words))
        true = distances(sentence.heads)
        gold_sums += len(true) * (len(true) - 1), true.sum(), (true**2).sum()
        for power, values in enumerate((tables, np.sqrt(tables))):
            products[power] += (values * true).sum((1, 2)), (values**2).sum((1, 2))
        if len(words) and len(sentence.heads) in LENGTHS:
            by_length.setdefault(len(sentence.heads), []).append(_correlations(tables, true))
    count, total, square = gold_sums
    errors = square - products[:, 0] ** 2 / np.maximum(products[:, 1], 1e-30)
    explained = 1 - errors / max(square - total**2 / max(1, count), 1e-30)
    return {
        "uuas": right / max(1, edges), "dspr": _mean_of_lengths(by_length, len(b)),
        "fit of squares": explained[0], "fit of roots": explained[1],
    }  # fmt: skip


def depth_scores(sentences: Sequence[ParsedStates], b: np.ndarray) -> dict[str, np.ndarray]:
    """Returns the figures [N+1]: `root`, the share of sentences whose root is the least deep word
    without punctuation, and `nspr`, Spearman's correlation of the depths, averaged as `dspr`."""
    right, by_length = np.zeros(len(b)), {}
    for sentence in sentences:
        table = predicted(b, sentence.states, depth=True)
        words = np.flatnonzero(~sentence.punctuation)
        root = sentence.heads.index(-1)
        right += words[table[:, words].argmin(1)] == root if len(words) else 0
        if len(sentence.heads) in LENGTHS:
            gold = depths(sentence.heads)
            by_length.setdefault(len(gold), []).append(np.nan_to_num(_spearman(table, gold)))
    return {"root": right / max(1, len(sentences)), "nspr": _mean_of_lengths(by_length, len(b))}


def chain_uuas(sentences: Sequence[ParsedStates]) -> float:
    """The baseline: each word hangs on the next one."""
    edges = right = 0
    for sentence in sentences:
        words = np.flatnonzero(~sentence.punctuation)
        gold = _edges(sentence.heads, words)
        edges += len(gold)
        right += len(gold & {*zip(words.tolist(), words[1:].tolist(), strict=False)})
    return right / max(1, edges)


def spanning_edges(table: np.ndarray, words: np.ndarray) -> set[tuple[int, int]]:
    """Returns the edges of the minimum spanning tree of distances [W, W] over some words."""
    part = table[np.ix_(words, words)] + 1e-9  # scipy reads 0 as no edge
    tree = minimum_spanning_tree(np.triu(part, 1)).tocoo()
    pairs = zip(words[tree.row].tolist(), words[tree.col].tolist(), strict=True)
    return {(min(pair), max(pair)) for pair in pairs}


def _edges(heads: Sequence[int], words: np.ndarray) -> set[tuple[int, int]]:
    chosen = {*words.tolist()}
    return {
        (min(word, head), max(word, head))
        for word, head in enumerate(heads)
        if head in chosen and word in chosen
    }


def _correlations(tables: np.ndarray, gold: np.ndarray) -> np.ndarray:
    return np.nanmean(_spearman(tables, gold), -1)


def _spearman(rows: np.ndarray, gold: np.ndarray) -> np.ndarray:
    """Returns Spearman's correlation [..] of rows [.., W] with gold [.., W]; 0/0 for equal values.
    One call for all rows: SciPy's `spearmanr` takes longer for them than the training."""
    count = rows.shape[-1]
    first, second = (rankdata(values, axis=-1) - (count + 1) / 2 for values in (rows, gold))
    with np.errstate(invalid="ignore"):
        return (first * second).sum(-1) / np.sqrt((first**2).sum(-1) * (second**2).sum(-1))


def _mean_of_lengths(by_length: dict[int, list[np.ndarray]], layers: int) -> np.ndarray:
    means = [np.mean(values, 0) for values in by_length.values()]
    return np.mean(means, 0) if means else np.full(layers, np.nan)


def _batches(
    sentences: Sequence[ParsedStates], depth: bool, draw: np.random.Generator | None
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yields states [N+1, B, W, D], gold [B, W, W] or [B, W], and a mask [B, W] of words, of
    sentences of similar lengths; in a drawn order if there is a generator."""
    order = np.argsort([len(one.heads) for one in sentences], kind="stable")
    groups = [order[start : start + BATCH] for start in range(0, len(order), BATCH)]
    for at in range(len(groups)) if draw is None else draw.permutation(len(groups)):
        several = [sentences[i] for i in groups[at]]
        width = -(-max(len(one.heads) for one in several) // 8) * 8
        layers, size = several[0].states.shape[1:]
        states = np.zeros((layers, BATCH, width, size), np.float32)
        gold = np.zeros((BATCH, width) if depth else (BATCH, width, width), np.float32)
        mask = np.zeros((BATCH, width), np.float32)
        for row, one in enumerate(several):
            count = len(one.heads)
            states[:, row, :count] = np.asarray(one.states, np.float32).transpose(1, 0, 2)
            mask[row, :count] = 1
            if depth:
                gold[row, :count] = depths(one.heads)
            else:
                gold[row, :count, :count] = distances(one.heads)
        yield states, gold, mask


@functools.partial(jax.jit, static_argnums=4)
def _loss(b: Array, states: Array, gold: Array, mask: Array, depth: bool) -> Array:
    """Returns the loss [N+1] of each layer: the mean over the sentences."""
    projected = jnp.einsum("nbwd,ndk->nbwk", states, b)
    squares = (projected**2).sum(-1)
    lengths = mask.sum(-1)
    if depth:
        wrong = (jnp.abs(squares - gold) * mask).sum(-1) / jnp.maximum(lengths, 1)
    else:
        products = jnp.einsum("nbwk,nbvk->nbwv", projected, projected)
        table = squares[..., :, None] + squares[..., None, :] - 2 * products
        pairs = mask[:, :, None] * mask[:, None]
        wrong = (jnp.abs(table - gold) * pairs).sum((-1, -2)) / jnp.maximum(lengths, 1) ** 2
    return wrong.sum(-1) / jnp.maximum((lengths > 0).sum(), 1)


@functools.partial(jax.jit, static_argnums=3)
def _step(
    state: tuple[Array, optax.OptState],
    batch: tuple[Array, Array, Array],
    scale: Array,
    depth: bool,
) -> tuple[Array, optax.OptState]:
    b, moments = state
    gradient = jax.grad(lambda b: _loss(b, *batch, depth).sum())(b)
    updates, moments = optax.adam(RATE).update(gradient, moments, b)
    return b + updates * scale[:, None, None], moments
