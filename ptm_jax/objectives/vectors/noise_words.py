"""Softmax over a sample of a large vocabulary.

Jean et al. 2015, arXiv 1412.2007, section 3; Jozefowicz et al. 2016.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from ptm_jax.core.types import Array


def word_nll(readout: Any, labels: Array, count: int, key: Array | None) -> Array:
    """Returns -log p(label) [..] in nats, float32, for labels [..] int32.

    By the whole softmax if `count` is 0 or there is no key, else by `sampled_nll`.
    """
    return (
        sampled_nll(readout, labels, count, key)
        if count and key is not None
        else readout.nll(labels)
    )


def sampled_nll(readout: Any, labels: Array, count: int, key: Array) -> Array:
    """Returns -log p(label) [..] among the label and distinct drawn words.

    The words S are of `count` draws, which the batch shares.

    -log (exp(s_y) / c_y / sum over y and S of exp(s_w) / c_w), with c_w = 1 - (1 - Q(w)) ** count
    the chance that S has w. Draws are from Q(w) = log((w + 2) / (w + 1)) / log(V + 1), for which
    ids must fall in frequency. A noise word that is the label does not count. Deviation from
    `tf.nn.sampled_softmax_loss` of allenai/bilm-tf: it draws until S has `count` words.
    """
    features, table, bias, size = readout.features, readout.table, readout.bias, len(readout.table)
    draw = jnp.exp(jax.random.uniform(key, (count,)) * jnp.log(size + 1.0))
    noise = jnp.sort(jnp.clip(draw.astype(jnp.int32) - 1, 0, size - 1))
    again = jnp.concatenate([jnp.zeros((1,), bool), noise[1:] == noise[:-1]])
    chosen = (features.astype(jnp.float32) * table[labels]).sum(-1)
    others = readout.precision.dense(features, table[noise].T, out=jnp.float32)
    if bias is not None:
        chosen, others = chosen + bias[labels], others + bias[noise]
    chosen, others = (readout.linear.capped(scores) for scores in (chosen, others))
    chosen, others = (
        chosen - _log_chance(labels, size, count),
        others - _log_chance(noise, size, count),
    )
    others = jnp.where((noise == labels[..., None]) | again, -jnp.inf, others)
    return jnp.logaddexp(chosen, jax.nn.logsumexp(others, -1)) - chosen


def _log_chance(words: Array, size: int, count: int) -> Array:
    draw = jnp.log1p(1.0 / (words.astype(jnp.float32) + 1.0)) / jnp.log(size + 1.0)
    return jnp.log(-jnp.expm1(count * jnp.log1p(-draw)))
