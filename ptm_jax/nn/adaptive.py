"""Adaptive input and softmax: rarer words have narrower vectors (Grave et al. 2017; Baevski & Auli 2019; Transformer-XL).

The vocabulary is sorted by frequency and cut: ids below cutoffs[0] are the first cluster, and so on; cluster i has vectors
of D / divide^i. With `divide` 1 all are D wide and nothing is projected.
"""

from __future__ import annotations

from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from ptm_jax.core.precision import Precision
from ptm_jax.core.streams import counter_bits
from ptm_jax.core.types import Vocab, record, static
from ptm_jax.kernels import cross_entropy
from ptm_jax.kernels.choice import Impl
from ptm_jax.nn.initializers import Normal, Zeros
from ptm_jax.nn.layers import Context, Dense, Dropout, Identity


@record
class AdaptiveTable:
    """What a tied head reads: tables ([V_i, D_i], ...) and projections ([D_i, D], ...), or () where there are none."""

    tables: Any
    projections: Any


def clusters(vocab: Vocab, cutoffs: tuple[int, ...]) -> list[tuple[int, int]]:
    """First id and size of every cluster; raises ValueError where the cutoffs do not rise inside the vocabulary."""
    edges = (0, *cutoffs, vocab.size)
    if any(low >= high for low, high in zip(edges, edges[1:], strict=False)):
        raise ValueError(f"cutoffs {cutoffs} must rise and lie inside a vocabulary of {vocab.size}")
    return [(low, high - low) for low, high in zip(edges, edges[1:], strict=False)]


class AdaptiveEmbeddings(nn.Module):
    """[B, L] ids -> [B, L, D]: the vector of the id's cluster, projected to D, times `scale` (sqrt(D)).

    In the place of `Embeddings`; `table()` is an `AdaptiveTable`. `table_width` is that of the first cluster's vectors
    (None: D); where it is another and `divide` is 1, one projection serves all clusters.
    """

    vocab: Vocab
    width: int
    cutoffs: tuple[int, ...]
    divide: int = 4
    table_width: int | None = None
    position: nn.Module | None = None
    norm: nn.Module = Identity()
    dropout: float = 0.0
    scale: float = 1.0
    initializer: Any = Normal(0.02)
    precision: Precision = Precision()

    given = False

    def refusal(self, system) -> str | None:
        """A vocabulary head that reads one table cannot read one for each cluster."""
        heads = getattr(system.towers.get("main"), "heads", {})
        plain = [name for name, head in heads.items() if hasattr(head, "vocab") and not isinstance(head, AdaptiveHead)]
        if not plain:
            return None
        return f"the head {plain[0]!r} reads one table, and AdaptiveEmbeddings has one for each cluster; take AdaptiveHead"

    def setup(self):
        self.drop = Dropout(self.dropout)
        first = self.table_width or self.width
        widths = [first // self.divide**i for i in range(len(self.cutoffs) + 1)]
        if not widths[-1]:
            raise ValueError(f"width {first} / {self.divide}^{len(self.cutoffs)} is nothing; cut fewer clusters")
        sizes = clusters(self.vocab, self.cutoffs)
        init = self.initializer
        self.tables = [self.param(f"token{i}", init, (size, widths[i])) for i, (_, size) in enumerate(sizes)]
        project = widths if self.divide > 1 else widths[:1] if first != self.width else []
        self.projections = [self.param(f"project{i}", init, (w, self.width)) for i, w in enumerate(project)]

    def table(self) -> AdaptiveTable:
        shared = len(self.tables) if len(self.projections) == 1 else 1
        return AdaptiveTable(tuple(self.tables), tuple(self.projections) * shared)

    def __call__(self, batch, context: Context, table: AdaptiveTable | None = None):
        table = self.table() if table is None else table
        ids, x = batch["input_ids"], 0.0
        for i, (low, size) in enumerate(clusters(self.vocab, self.cutoffs)):
            vectors = table.tables[i][jnp.clip(ids - low, 0, size - 1)]
            if table.projections:
                vectors = self.precision.dense(vectors, table.projections[i], out=jnp.float32)
            x = x + jnp.where(((ids >= low) & (ids < low + size))[..., None], vectors, 0.0)
        x = x * self.scale
        if self.position is not None:
            x = x + self.position(context.positions, self.width)
        x = self.norm(x.astype(jnp.float32))
        return self.drop(x.astype(self.precision.dtype), context)


@record
class AdaptiveReadout:
    """log p(word) = log p(cluster) + log p(word | cluster), not yet multiplied out; the first cluster's words stand beside
    the names of the others. features ([.., D_i], ...), tables ([V_i, D_i], ...), biases ([V_i] or None, ...); `impl` is what
    computes a loss of a cluster (`kernels.cross_entropy`)."""

    features: Any
    tables: Any
    biases: Any
    precision: Precision = static(Precision())
    impl: Impl = static("auto")

    def _parts(self):
        """Log-probabilities of the head [.., V_0 + C] and inside each other cluster [.., V_i]."""
        for features, table, bias in zip(self.features, self.tables, self.biases, strict=True):
            yield jax.nn.log_softmax(cross_entropy.logits(cross_entropy.Linear(features, table, bias), self.precision))

    def logits(self):
        """[.., V] float32, already normalised: log-probabilities."""
        head, *tails = self._parts()
        size = head.shape[-1] - len(tails)
        return jnp.concatenate([head[..., :size], *(head[..., size + i, None] + t for i, t in enumerate(tails))], -1)

    def nll(self, labels):
        """-log p(label) [..] in nats, float32, for labels [..] int32; no cluster's scores are held where they are many."""
        return self.judge(labels).nll

    def judge(self, labels, *, smoothing: float = 0.0) -> cross_entropy.Judged:
        """What `nll` says, the loss with smoothing, and which labels are the likeliest of all words; one pass."""
        lengths = [len(table) for table in self.tables]
        size, words = lengths[0] - len(lengths) + 1, sum(lengths) - len(lengths) + 1
        inside = lambda low, count: jnp.clip(labels - low, 0, count - 1)
        names = cross_entropy.logits(self._linear(0, size, lengths[0]), self.precision)
        first = self._scored(0, size, inside(0, size), smoothing)
        log_sum = jnp.logaddexp(first.log_sum, jax.nn.logsumexp(names, -1)) if len(lengths) > 1 else first.log_sum
        found, top = first.label - log_sum, first.top - log_sum
        total, low = (first.mean - log_sum) * size if smoothing else 0.0, size
        for i, count in enumerate(lengths[1:], 1):
            tail = self._scored(i, count, inside(low, count), smoothing)
            less = names[..., i - 1] - log_sum - tail.log_sum  # of every score of the cluster
            found, top = jnp.where(labels >= low, tail.label + less, found), jnp.maximum(top, tail.top + less)
            total = total + (tail.mean + less) * count if smoothing else 0.0
            low += count
        loss = -found if not smoothing else -(1 - smoothing) * found - smoothing * total / words
        return cross_entropy.Judged(-found, loss, jax.lax.stop_gradient(found >= top))

    def draw(self, seeds, *, temperature: float = 1.0):
        """A word [..] int32 of the softmax at a temperature, by seeds [..] uint32: the best of the clusters' best."""
        lengths = [len(table) for table in self.tables]
        size = low = lengths[0] - len(lengths) + 1
        options = {"temperature": temperature, "precision": self.precision, "impl": self.impl}
        names = jax.lax.stop_gradient(cross_entropy.logits(self._linear(0, size, lengths[0]), self.precision))
        found, best = cross_entropy.race(self._linear(0, 0, size), seeds, **options)
        for i, count in enumerate(lengths[1:], 1):
            less = names[..., i - 1] - jax.lax.stop_gradient(self._scored(i, count, jnp.zeros_like(found), 0.0).log_sum)
            word, value = cross_entropy.race(self._linear(i, 0, count), counter_bits(jnp.uint32(i), seeds), **options)
            value += less / temperature
            found, best = jnp.where(value > best, low + word, found), jnp.maximum(value, best)
            low += count
        return found

    def _linear(self, cluster, start, stop):
        """Some lines of a cluster's table."""
        bias = self.biases[cluster]
        bias = None if bias is None else bias[start:stop]
        return cross_entropy.Linear(self.features[cluster], self.tables[cluster][start:stop], bias)

    def _scored(self, cluster, count, labels, smoothing):
        options = {"mean": smoothing > 0, "precision": self.precision, "impl": self.impl}
        return cross_entropy.score(self._linear(cluster, 0, count), labels, **options)


class AdaptiveHead(nn.Module):
    """The softmax over the clusters of an `AdaptiveEmbeddings` of the same cutoffs.

    tied: the tables are the embeddings'; otherwise the head has its own, its first cluster unprojected. `projections` are
    the embeddings' in all clusters, in all but the first (Transformer-XL on WikiText-103), or in none, where tied; and in
    an untied head of which `own` is the "tables" alone. `table_width` is the embeddings'. `impl` computes the loss of a
    cluster (`kernels.cross_entropy`).
    """

    vocab: Vocab
    cutoffs: tuple[int, ...]
    divide: int = 4
    tied: bool = True
    projections: Literal["all", "tail", "none"] = "tail"
    own: Literal["all", "tables"] = "all"
    table_width: int | None = None
    bias: bool = True
    initializer: Any = Normal(0.02)
    precision: Precision = Precision()
    impl: Impl = "auto"

    @staticmethod
    def example(encoded):
        return (encoded.hidden[:, :1],)

    @nn.compact
    def __call__(self, hidden, *, table=None):
        features, tables, biases = [], [], []
        width, count = hidden.shape[-1], len(self.cutoffs)
        for i, (_, size) in enumerate(clusters(self.vocab, self.cutoffs)):
            narrow = (self.table_width or width) // self.divide**i
            words = table.tables[i] if self.tied else self.param(f"token{i}", self.initializer, (size, narrow))
            features.append(self._project(hidden, i, narrow, table))
            bias = self.param(f"bias{i}", Zeros(), (size,)) if self.bias else None
            if i == 0 and count:
                names = self.param("clusters", self.initializer, (count, narrow))
                words = jnp.concatenate([words, names])
                bias = jnp.concatenate([bias, self.param("clusters_bias", Zeros(), (count,))]) if self.bias else None
            tables.append(words)
            biases.append(bias)
        return AdaptiveReadout(tuple(features), tuple(tables), tuple(biases), self.precision, self.impl)

    def _project(self, hidden, i: int, narrow: int, table):
        """[.., D] -> [.., D_i], by the transpose of the embeddings' projection where it is theirs."""
        apart = not self.tied and self.own == "all"
        if (self.divide == 1 and narrow == hidden.shape[-1]) or (apart and i == 0):
            return hidden
        if not apart and (self.projections == "all" or (self.projections == "tail" and i > 0)):
            kernel = table.projections[i].T
        else:
            kernel = self.param(f"project{i}", self.initializer, (hidden.shape[-1], narrow))
        return self.precision.dense(hidden, kernel)


class AdaptiveSoftmaxHead(nn.Module):
    """The adaptive softmax of Grave et al. (2017) as torch has it (`AdaptiveLogSoftmaxWithLoss`; XLM's `asm`): tables of its
    own, the names of the clusters behind the words of the first, and a bias there alone. Cluster i is D / divide^i wide."""

    vocab: Vocab
    cutoffs: tuple[int, ...]
    divide: float = 4.0
    initializer: Any = Normal(0.02)
    precision: Precision = Precision()
    impl: Impl = "auto"

    @staticmethod
    def example(encoded):
        return (encoded.hidden[:, :1],)

    @nn.compact
    def __call__(self, hidden, *, table=None):
        del table
        (_, first), *rest = clusters(self.vocab, self.cutoffs)
        width = hidden.shape[-1]
        features, tables = [hidden], [self.param("words", self.initializer, (first + len(rest), width))]
        for i, (_, size) in enumerate(rest, start=1):
            narrow = int(width // self.divide**i)
            project = Dense(narrow, bias=False, initializer=self.initializer, precision=self.precision, name=f"project{i}")
            features.append(project(hidden))
            tables.append(self.param(f"words{i}", self.initializer, (size, narrow)))
        bias = self.param("bias", Zeros(), (len(tables[0]),))
        return AdaptiveReadout(tuple(features), tuple(tables), (bias, *[None] * len(rest)), self.precision, self.impl)
