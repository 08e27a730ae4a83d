"""Adaptive input and softmax: rarer words have narrower vectors.

Grave et al. 2017; Baevski & Auli 2019; Transformer-XL.

The vocabulary is sorted by frequency and cut into clusters: ids below cutoffs[0] are the first
cluster, and so on. The vectors of cluster i have width D / divide^i. With `divide` 1 all have width
D and nothing is projected.
"""

from __future__ import annotations

import itertools
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from ptm_jax.core import slots
from ptm_jax.core.precision import Precision
from ptm_jax.core.streams import counter_bits
from ptm_jax.core.types import Vocab, record, static
from ptm_jax.kernels import cross_entropy
from ptm_jax.kernels.choice import Impl
from ptm_jax.nn.heads.vocabulary import WordHead
from ptm_jax.nn.initializers import Normal, Zeros
from ptm_jax.nn.layers import Context, Dense, Dropout, Identity, Module


@record
class AdaptiveTable:
    """Tables ([V_i, D_i], ...) and projections ([D_i, D], ...) or (), for a tied head."""

    tables: Any
    projections: Any


def clusters(vocab: Vocab, cutoffs: tuple[int, ...]) -> list[tuple[int, int]]:
    """Returns first id and size of every cluster.

    Raises ValueError if the cutoffs do not rise inside the vocabulary.
    """
    sizes = [(low, high - low) for low, high in itertools.pairwise((0, *cutoffs, vocab.size))]
    if any(size <= 0 for _, size in sizes):
        raise ValueError(f"cutoffs {cutoffs} must rise and lie inside a vocabulary of {vocab.size}")
    return sizes


class AdaptiveEmbeddings(slots.Embedding, Module):
    """Maps ids [B, L] to vectors [B, L, D] of clusters of several widths.

    The vector from the id's cluster is projected to D and multiplied by `scale` (sqrt(D)).

    Replaces `Embeddings`; `table()` returns an `AdaptiveTable`. `table_width` is the width of the
    first cluster's vectors (None: D). If it is not D and `divide` is 1, all clusters share one
    projection.
    """

    logical_axes = {"token*": ("words", None), "project*": (None, "width")}

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

    def refusal(self, system) -> str | None:
        """Refuses vocabulary heads that read a single table: here each cluster has its own."""
        heads = slots.heads_of(system).items()
        plain = [
            name for name, head in heads if head.scores_words and not isinstance(head, AdaptiveHead)
        ]
        if not plain:
            return None
        return (
            f"the head {plain[0]!r} reads one table, and AdaptiveEmbeddings has one for each "
            "cluster; take AdaptiveHead"
        )

    def setup(self):
        self.drop = Dropout(self.dropout)
        first = self.table_width or self.width
        widths = [first // self.divide**i for i in range(len(self.cutoffs) + 1)]
        if not widths[-1]:
            raise ValueError(
                f"width {first} / {self.divide}^{len(self.cutoffs)} is 0; cut fewer clusters"
            )
        sizes = clusters(self.vocab, self.cutoffs)
        init = self.initializer
        self.tables = [
            self.param(f"token{i}", init, (size, widths[i])) for i, (_, size) in enumerate(sizes)
        ]
        project = widths if self.divide > 1 else widths[:1] if first != self.width else []
        self.projections = [
            self.param(f"project{i}", init, (w, self.width)) for i, w in enumerate(project)
        ]

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
    """Vocabulary scores before the products: log p(word) = log p(cluster) + log p(word | cluster).

    The first softmax is over the words of the first cluster and one entry for each other cluster.

    features ([.., D_i], ...), tables ([V_i, D_i], ...), biases ([V_i] or None, ...). `impl` selects
    the kernel for the loss of a cluster (`kernels.cross_entropy`).
    """

    features: Any
    tables: Any
    biases: Any
    precision: Precision = static(Precision())
    impl: Impl = static("auto")

    def logits(self):
        """Returns the log-probabilities [.., V] float32."""
        clusters = (
            cross_entropy.Linear(*parts)
            for parts in zip(self.features, self.tables, self.biases, strict=True)
        )
        head, *tails = (
            jax.nn.log_softmax(cross_entropy.logits(cluster, self.precision))
            for cluster in clusters
        )
        size = head.shape[-1] - len(tails)
        return jnp.concatenate(
            [head[..., :size], *(head[..., size + i, None] + t for i, t in enumerate(tails))], -1
        )

    def nll(self, labels):
        """Returns -log p(label) [..] in nats, float32, for labels [..] int32, without storing all
        scores of a large cluster."""
        return self.judge(labels).nll

    def judge(self, labels, *, smoothing: float = 0.0) -> cross_entropy.Judged:
        """Computes `nll`, the loss with smoothing, and whether the label is the likeliest word, in
        one pass."""
        lengths = [len(table) for table in self.tables]
        size, words = lengths[0] - len(lengths) + 1, sum(lengths) - len(lengths) + 1

        def inside(low, count):
            return jnp.clip(labels - low, 0, count - 1)

        names = cross_entropy.logits(self._linear(0, size, lengths[0]), self.precision)
        first = self._scored(0, size, inside(0, size), smoothing)
        log_sum = (
            jnp.logaddexp(first.log_sum, jax.nn.logsumexp(names, -1))
            if len(lengths) > 1
            else first.log_sum
        )
        log_p, top = first.label - log_sum, first.top - log_sum
        total, low = (first.mean - log_sum) * size if smoothing else 0.0, size
        for i, count in enumerate(lengths[1:], 1):
            tail = self._scored(i, count, inside(low, count), smoothing)
            less = names[..., i - 1] - log_sum - tail.log_sum  # added to every score of the cluster
            log_p, top = (
                jnp.where(labels >= low, tail.label + less, log_p),
                jnp.maximum(top, tail.top + less),
            )
            total = total + (tail.mean + less) * count if smoothing else 0.0
            low += count
        loss = -log_p if not smoothing else -(1 - smoothing) * log_p - smoothing * total / words
        return cross_entropy.Judged(-log_p, loss, jax.lax.stop_gradient(log_p >= top))

    def draw(self, seeds, *, temperature: float = 1.0):
        """Samples words [..] int32 from the softmax at a temperature, with seeds [..] uint32: the
        best of the clusters' best words."""
        lengths = [len(table) for table in self.tables]
        size = low = lengths[0] - len(lengths) + 1
        options = {"temperature": temperature, "precision": self.precision, "impl": self.impl}
        names = jax.lax.stop_gradient(
            cross_entropy.logits(self._linear(0, size, lengths[0]), self.precision)
        )
        word_ids, best = cross_entropy.race(self._linear(0, 0, size), seeds, **options)
        for i, count in enumerate(lengths[1:], 1):
            less = names[..., i - 1] - jax.lax.stop_gradient(
                self._scored(i, count, jnp.zeros_like(word_ids), 0.0).log_sum
            )
            word, value = cross_entropy.race(
                self._linear(i, 0, count), counter_bits(jnp.uint32(i), seeds), **options
            )
            value += less / temperature
            word_ids, best = jnp.where(value > best, low + word, word_ids), jnp.maximum(value, best)
            low += count
        return word_ids

    def _linear(self, cluster, start, stop):
        """Returns rows `start` to `stop` of a cluster's table as input for the kernels."""
        bias = self.biases[cluster]
        bias = None if bias is None else bias[start:stop]
        return cross_entropy.Linear(self.features[cluster], self.tables[cluster][start:stop], bias)

    def _scored(self, cluster, count, labels, smoothing):
        options = {"mean": smoothing > 0, "precision": self.precision, "impl": self.impl}
        return cross_entropy.score(self._linear(cluster, 0, count), labels, **options)


class AdaptiveHead(WordHead):
    """The softmax over the clusters of an `AdaptiveEmbeddings` with the same cutoffs.

    `tied` uses the embeddings' tables. Otherwise the head has its own tables and does not project
    the first cluster. `projections` selects the clusters of a tied head that use the embeddings'
    projections: all, all but the first (Transformer-XL on WikiText-103), or none. It also applies
    to an untied head with parts="tables". `table_width` is the embeddings'.
    """

    logical_axes = {
        "token*": ("words", None),
        "bias*": ("words",),
        "project*": ("width", None),
        "clusters": (None, None),
        "clusters_bias": (None,),
    }

    vocab: Vocab
    cutoffs: tuple[int, ...]
    divide: int = 4
    tied: bool = True
    projections: Literal["all", "tail", "none"] = "tail"
    parts: Literal["all", "tables"] = "all"
    table_width: int | None = None
    bias: bool = True
    initializer: Any = Normal(0.02)
    precision: Precision = Precision()
    impl: Impl = "auto"

    @nn.compact
    def __call__(self, hidden, *, table=None, context=None):
        features, tables, biases = [], [], []
        width, count = hidden.shape[-1], len(self.cutoffs)
        for i, (_, size) in enumerate(clusters(self.vocab, self.cutoffs)):
            narrow = (self.table_width or width) // self.divide**i
            words = (
                table.tables[i]
                if self.tied
                else self.param(f"token{i}", self.initializer, (size, narrow))
            )
            features.append(self._project(hidden, i, narrow, table))
            bias = self.param(f"bias{i}", Zeros(), (size,)) if self.bias else None
            if i == 0 and count:
                names = self.param("clusters", self.initializer, (count, narrow))
                words = jnp.concatenate([words, names])
                bias = (
                    jnp.concatenate([bias, self.param("clusters_bias", Zeros(), (count,))])
                    if self.bias
                    else None
                )
            tables.append(words)
            biases.append(bias)
        return AdaptiveReadout(
            tuple(features), tuple(tables), tuple(biases), self.precision, self.impl
        )

    def _project(self, hidden, i: int, narrow: int, table):
        """Maps [.., D] to [.., D_i], by the transpose of the embeddings' projection or by the
        head's own."""
        apart = not self.tied and self.parts == "all"
        if (self.divide == 1 and narrow == hidden.shape[-1]) or (apart and i == 0):
            return hidden
        if not apart and (self.projections == "all" or (self.projections == "tail" and i > 0)):
            kernel = table.projections[i].T
        else:
            kernel = self.param(f"project{i}", self.initializer, (hidden.shape[-1], narrow))
        return self.precision.dense(hidden, kernel)


class AdaptiveSoftmaxHead(WordHead):
    """The adaptive softmax of Grave et al. (2017) as in torch.

    `AdaptiveLogSoftmaxWithLoss`; XLM's `asm`. It has its own tables. The entries of the other
    clusters follow the words of the first one, and only this table has a bias. Cluster i has width
    D / divide^i.
    """

    logical_axes = {"words*": ("words", None), "bias": ("vocab",)}

    vocab: Vocab
    cutoffs: tuple[int, ...]
    divide: float = 4.0
    initializer: Any = Normal(0.02)
    precision: Precision = Precision()
    impl: Impl = "auto"

    @nn.compact
    def __call__(self, hidden, *, table=None, context=None):
        (_, first), *tails = clusters(self.vocab, self.cutoffs)
        width = hidden.shape[-1]
        features, tables = (
            [hidden],
            [self.param("words", self.initializer, (first + len(tails), width))],
        )
        for i, (_, size) in enumerate(tails, start=1):
            narrow = int(width // self.divide**i)
            project = Dense(
                narrow,
                bias=False,
                initializer=self.initializer,
                precision=self.precision,
                name=f"project{i}",
            )
            features.append(project(hidden))
            tables.append(self.param(f"words{i}", self.initializer, (size, narrow)))
        bias = self.param("bias", Zeros(), (len(tables[0]),))
        return AdaptiveReadout(
            tuple(features), tuple(tables), (bias, *[None] * len(tails)), self.precision, self.impl
        )
