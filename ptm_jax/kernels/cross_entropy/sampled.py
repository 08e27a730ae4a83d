"""Losses over a few sampled words instead of the whole vocabulary: [.., S] scores for S samples.

    sample = log_uniform(key, 8192, vocab.size)
    loss = sampled_softmax(features, table, bias, labels, sample)

Sampled softmax is the cross-entropy over the label and the samples. It subtracts from each score
the log of the word's expected count (Jean et al. 2015, arXiv 1412.2007, section 3; ELMo: 8,192
samples). Noise-contrastive estimation separates the label from samples by a logistic loss with the
same correction (Gutmann & Hyvarinen 2010; Mnih & Teh 2012, arXiv 1206.6426, section 3); without the
correction it is negative sampling.

For training only: evaluate with `linear_cross_entropy`. The label's score is corrected like those
of the samples (`tf.nn.sampled_softmax_loss`). The optimum is that of the full softmax; the
gradients are not.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from ptm_jax.core.precision import Precision
from ptm_jax.core.types import Array, record
from ptm_jax.kernels.cross_entropy.scored import LOW


@record
class Sample:
    """Sampled words [S] int32, shared by all tokens; `count` and `words` are the arguments of
    `log_uniform`."""

    ids: Any
    count: Any
    words: Any

    def log_expected(self, ids: Array) -> Array:
        """Returns the log of a word's expected count among the samples, log(S P(v))."""
        return jnp.log(self.count) + log_probability(ids, self.words)


def log_probability(ids: Array, words: int) -> Array:
    """Returns log P(v) = log(log((v + 2) / (v + 1)) / log(V + 1)), Zipf's law over words sorted by
    frequency."""
    return jnp.log(jnp.log1p(1 / (ids + 1.0))) - jnp.log(jnp.log(words + 1.0))


def log_uniform(key: Array, count: int, words: int) -> Sample:
    """Draws `count` words with replacement from the log-uniform distribution.

    The vocabulary must be sorted by frequency, frequent words first. Follows TensorFlow's
    `log_uniform_candidate_sampler` with unique=False."""
    uniform = jax.random.uniform(key, (count,))
    ids = jnp.expm1(uniform * jnp.log(words + 1.0)).astype(jnp.int32)
    return Sample(jnp.clip(ids, 0, words - 1), jnp.float32(count), jnp.float32(words))


def sampled_softmax(
    features: Array,
    table: Array,
    bias: Array | None,
    labels: Array,
    sample: Sample,
    *,
    precision: Precision = Precision(),
) -> Array:
    """Returns the loss [..] float32 for features [.., D], table [V, D], labels [..]. Ignores
    samples equal to the label."""
    label, others = _corrected(features, table, bias, labels, sample, precision)
    others = jnp.where(sample.ids == labels[..., None], LOW, others)
    return jnp.logaddexp(label, jax.nn.logsumexp(others, -1)) - label


def nce(
    features: Array,
    table: Array,
    bias: Array | None,
    labels: Array,
    sample: Sample,
    *,
    corrected: bool = True,
    precision: Precision = Precision(),
) -> Array:
    """Returns -log sigma(s(label) - log S P(label)) - sum_i log sigma(-(s(w_i) - log S P(w_i))),
    [..] float32.

    The normaliser is 1. `corrected=False` omits the correction (Mikolov et al. 2013, Eq. 4)."""
    label, others = _corrected(features, table, bias, labels, sample, precision, corrected)
    return jax.nn.softplus(-label) + jax.nn.softplus(others).sum(-1)


def _corrected(features, table, bias, labels, sample, precision, corrected=True):
    """Returns the scores of the label [..] and of the samples [.., S], less the logs of their
    expected counts."""
    flat = features.reshape(-1, features.shape[-1])
    others = precision.einsum("td,sd->ts", flat, table[sample.ids], jnp.float32)
    others = others.reshape(*labels.shape, -1)

    def typed(x):
        return x.astype(precision.dtype).astype(jnp.float32)

    label = (typed(features) * typed(table[labels])).sum(-1)
    if bias is not None:
        label, others = label + bias[labels], others + bias[sample.ids]
    if corrected:
        label, others = (
            label - sample.log_expected(labels),
            others - sample.log_expected(sample.ids),
        )
    return label, others
