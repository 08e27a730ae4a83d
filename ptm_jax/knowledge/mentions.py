"""Finds names of a lexicon in rows of token ids: longest matches from left to right in a trie.

A lexicon is compiled from a file and a tokenizer. Names are therefore found in the ids themselves,
after packing, truncation and corruptions, by any network or objective.
"""

from __future__ import annotations

import dataclasses
import importlib.resources
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ptm_jax.core.errors import UserError
from ptm_jax.core.facts import CorpusFact
from ptm_jax.core.types import Array
from ptm_jax.knowledge.tries import Trie

if TYPE_CHECKING:
    from ptm_jax.core.types import Vocab


class Found(NamedTuple):
    """Mentions of a batch, which do not overlap.

    first    [B, L] int32   place of the first token of the token's mention, -1 outside of mentions
    values   [B, L, K] int32  integers of the mention's name in the lexicon, 0 outside
    """

    first: Array
    values: Array

    @property
    def starts(self) -> Array:
        """Whether a token is the first of a mention, [B, L]."""
        return self.first == jnp.arange(self.first.shape[1])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lexicon(CorpusFact):
    """Names with K integers each, [V + 1 + N, 3 + K] int32. The first of the K is not 0.

    rows below V    id i: whether it begins a word or is special, and the row of the trie node of
                    the names that it begins (0: none)
    row V           -1, the number of tokens of the longest name, the maximal number of children
    rows above V    nodes of the trie: the last token, the first row and the last row + 1 of its
                    children, and the K integers (0: no name ends here)

    file   the lexicon; None: the small English one of the package, for miniatures
    """

    packaged: ClassVar[str] = "words.tsv"

    file: str | None = None

    def entries(self, tokenizer: Any) -> Mapping[str, Sequence[int]]:
        """Returns {name: K integers}. Raises UserError with file and line."""
        raise NotImplementedError

    def example(self, number: int, vocab: Vocab) -> Sequence[int]:
        """Returns the integers of a name of the stand-in."""
        raise NotImplementedError

    @property
    def path(self) -> Path:
        if self.file is not None:
            return Path(self.file).expanduser()
        return Path(
            str(importlib.resources.files("ptm_jax") / "knowledge" / "english" / self.packaged)
        )

    def of_tokenizer(self, tokenizer: Any) -> np.ndarray:
        entries, vocab = self.entries(tokenizer), tokenizer.vocab
        names = sorted(entries)
        rows = (
            tuple(row.tolist()) for row in tokenizer.encode_batch([f" {name}" for name in names])
        )
        named = {
            ids: entries[name]
            for name, ids in zip(names, rows, strict=True)
            if ids and vocab.unk not in ids
        }
        if not named:
            raise UserError(
                f"{self.path} has no name that this tokenizer can write; give a lexicon of "
                "its language"
            )
        starts = tokenizer.word_starts()
        starts[list(vocab.specials)] = True
        return trie(named, starts)

    def stand_in(self, vocab: Vocab) -> np.ndarray:
        ids = [i for i in range(vocab.size // 8, vocab.size - 1, 3) if i not in vocab.specials]
        names = [(i,) for i in ids] + [(i, i + 1) for i in ids if i % 2]
        return trie(
            {name: self.example(n, vocab) for n, name in enumerate(names)},
            np.ones(vocab.size, bool),
        )

    def begins(self, ids: Array) -> Array:
        """Returns whether an id begins a word or is special, bool of the shape of `ids`."""
        return jnp.asarray(self.values[:, 0] == 1)[ids]

    def every(self, ids: Array, segments: Array) -> Array:
        """Returns the rows of `values` of all names that begin at a token of ids [B, L] and end at
        a word's border inside one segment above 0: [B, L, N] by the number of their tokens, 0 for
        none."""
        size = int(np.flatnonzero(self.values[:, 0] == -1)[0])
        longest, widest = (int(x) for x in self.values[size, 1:3])
        table, searches = jnp.asarray(self.values), max(1, math.ceil(math.log2(widest + 1)))
        ids = jnp.minimum(ids, size - 1)
        begins = self.begins(ids)

        def later(x, n):
            return jnp.pad(x[:, n:], ((0, 0), (0, min(n, x.shape[1]))))

        node, nodes = jnp.where(begins & (segments > 0), table[ids, 1], 0), []
        for n in range(1, longest + 1):
            goes_on = later(segments, n) == segments
            nodes.append(
                jnp.where(
                    (node > 0) & (table[node, 3] != 0) & (later(begins, n) | ~goes_on), node, 0
                )
            )
            token, (low, high) = later(ids, n), (table[node, 1], table[node, 2])
            stop = high
            for _ in range(searches):
                middle = (low + high) // 2
                less = (low < high) & (table[middle, 0] < token)
                low, high = jnp.where(less, middle + 1, low), jnp.where(less, high, middle)
            matches = (
                (node > 0)
                & goes_on
                & (low < stop)
                & (table[jnp.minimum(low, len(table) - 1), 0] == token)
            )
            node = jnp.where(matches, low, 0)
        return jnp.stack(nodes, -1)

    def find(self, ids: Array, segments: Array) -> Found:
        """Returns the mentions in ids [B, L]: from left to right the longest name of `every`."""
        every, table = self.every(ids, segments), jnp.asarray(self.values)
        lengths = jnp.max(jnp.where(every > 0, jnp.arange(1, every.shape[-1] + 1), 0), -1).astype(
            ids.dtype
        )
        nodes = jnp.take_along_axis(every, jnp.maximum(lengths - 1, 0)[..., None], 2)[..., 0]

        def place(state, now):
            (first, end), (slot, length) = state, now
            new = (length > 0) & (slot >= end)
            first, end = jnp.where(new, slot, first), jnp.where(new, slot + length, end)
            return (first, end), jnp.where(slot < end, first, -1)

        none = jnp.zeros_like(lengths[:, 0])
        _, first = jax.lax.scan(
            place, (none, none), (jnp.arange(ids.shape[1], dtype=ids.dtype), lengths.T)
        )
        first = first.T
        owner = jnp.take_along_axis(nodes, jnp.maximum(first, 0), 1)
        return Found(first, jnp.where((first >= 0)[..., None], table[owner, 3:], 0))


def trie(names: Mapping[tuple[int, ...], Sequence[int]], starts: np.ndarray) -> np.ndarray:
    """Returns the table of `Lexicon` for names of ids and the ids that begin a word [V] bool."""
    size, values = len(starts), np.array([*names.values()], np.int64)
    made = Trie.of([*names], size)  # the children of a node stand side by side
    parents, tokens = np.divmod(made.keys, size)
    ends = np.searchsorted(parents, np.arange(len(made.accepts)), "right")
    spans = np.stack([np.searchsorted(parents, np.arange(len(made.accepts))), ends], 1)
    table = np.zeros((size + 1 + len(tokens), 3 + values.shape[1]), np.int32)
    table[:size, 0] = starts
    table[tokens[: ends[0]], 1] = size + 1 + np.arange(ends[0])
    table[size, :3] = -1, max(map(len, names)), np.diff(spans[1:]).max()
    nodes = table[size + 1 :]
    nodes[:, 0], nodes[:, 1:3] = tokens, size + 1 + spans[1:]
    named = made.accepts[1:] >= 0
    nodes[named, 3:] = values[made.accepts[1:][named]]
    return table
