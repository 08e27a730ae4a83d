"""A hierarchical softmax over the classes of texts.

Joulin et al. 2016, arXiv 1607.01759, section 2.1.
"""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from ptm_jax.nn.heads.pooling import Summary
from ptm_jax.nn.heads.task_heads import TaskHead
from ptm_jax.objectives.vectors.vector_traits import LinearClasses
from ptm_jax.statistics.huffman import class_paths


class ClassTree(LinearClasses, TaskHead):
    """Returns the log-probabilities of a text, [B, C] float32, from [B, L, D].

    The probability of a class is the product of sigma(+-h . v_n) over the inner nodes n above it.

    counts  training counts of the classes, which define Huffman's tree
    """

    counts: tuple[int, ...]
    summary: nn.Module = Summary("none", at="mean")

    @property
    def classes(self) -> int:
        """C."""
        return len(self.counts)

    @property
    def linear(self):
        mean = isinstance(self.summary, Summary) and self.summary.averages
        return mean and not self.dropout

    @property
    def ways(self):
        paths = class_paths(self.counts)
        ways = np.zeros((self.classes, max(map(len, paths))), np.int32)
        for n, path in enumerate(paths):
            ways[n, : len(path)] = path
        return ways

    def reads(self, encoded, batch):
        return self.summary.reads(encoded, batch)

    @nn.compact
    def __call__(self, hidden, where=None, *, table=None, context=None):
        scores = self.scores(
            self.summary(hidden, where, context=context),
            context,
            self.classes,
            "classes",
            bias=False,
        )
        ways = self.ways
        logs = jax.nn.log_sigmoid(np.sign(ways) * scores[:, np.maximum(np.abs(ways) - 1, 0)])
        return jnp.where(ways != 0, logs, 0.0).sum(-1)
