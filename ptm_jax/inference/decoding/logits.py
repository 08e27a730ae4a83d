"""Rules on logits [R, V] before a token is chosen, as pure functions.

The definitions and their order follow the processors of the `transformers` library: repetition
penalty, repeated n-grams, bad words, minimum length, forced first and last token; then, for
sampling, temperature, top-k, top-p. Deviation: prompt padding is never penalised, so the answer to
a prompt does not depend on its batch.
"""

from __future__ import annotations

import functools
import operator

import jax
import jax.numpy as jnp

from ptm_jax.core.types import Array

NEVER = -1e9
"""The score of a forbidden token. It is finite, so that sums and differences of scores are never
NaN."""


def repetition_penalty(logits: Array, tokens: Array, used: Array, penalty: Array | float) -> Array:
    """Makes tokens that have occurred less likely.
    Their positive logits are divided by `penalty`, negative ones multiplied by it.

    tokens [R, W] int32, used [R, W] True where a slot holds a token of the prompt or of the answer.
    Keskar et al. 2019, section 4.1, divide only; with negative logits that would reward repetition.
    """
    seen = _marked(logits, tokens, used)
    return jnp.where(seen, jnp.where(logits < 0, logits * penalty, logits / penalty), logits)


def no_repeat_ngram(logits: Array, tokens: Array, used: Array, count: Array, size: int) -> Array:
    """Forbids every token that would repeat an n-gram of `size`.
    `count` is the number of written slots."""
    width = tokens.shape[1]
    if width < size:
        return logits
    starts = width - size + 1
    last = jax.lax.dynamic_slice_in_dim(tokens, count - (size - 1), size - 1, 1)
    same = jnp.ones((tokens.shape[0], starts), bool)
    for i in range(size - 1):
        same &= tokens[:, i : i + starts] == last[:, i, None]
    for i in range(size):
        same &= used[:, i : i + starts]
    return jnp.where(_marked(logits, tokens[:, size - 1 :], same), NEVER, logits)


def bad_words(logits: Array, tokens: Array, used: Array, count: Array, words: Array) -> Array:
    """Forbids every token that would complete a word of `words` [N, n], ids that end on the right,
    -1 before them. `count` is the number of written slots."""
    longest = words.shape[1] - 1
    pads = ((0, 0), (longest, 0))
    last = jax.lax.dynamic_slice_in_dim(jnp.pad(tokens, pads), count, longest, 1)
    real = jax.lax.dynamic_slice_in_dim(jnp.pad(used, pads), count, longest, 1)
    prefix = words[None, :, :-1]
    same = (prefix < 0) | ((last[:, None] == prefix) & real[:, None])
    which = same.all(-1) & (words[None, :, -1] >= 0)
    ends = jnp.broadcast_to(words[:, -1], which.shape)
    return jnp.where(_marked(logits, ends, which), NEVER, logits)


def one_of(token: Array, ids: tuple[int, ...]) -> Array:
    """Returns whether each token is one of `ids`."""
    return functools.reduce(operator.or_, (token == i for i in ids), jnp.zeros(token.shape, bool))


def forbid(logits: Array, token: int, when: Array) -> Array:
    """Forbids `token` where `when` is true."""
    return logits.at[:, token].set(jnp.where(when, NEVER, logits[:, token]))


def force(logits: Array, token: int | tuple[int, ...], when: Array) -> Array:
    """Forces `token`, or one of several, where `when` is true.

    Its log-probability is 0, and all others are forbidden.
    """
    only = jnp.where(jnp.isin(jnp.arange(logits.shape[1]), jnp.asarray(token)), 0.0, NEVER)
    return jnp.where(when, only, logits)


def top_k(logits: Array, k: Array | int) -> Array:
    """Keeps the k largest logits of a row, including ties with the smallest of them."""
    ordered = jnp.sort(logits, -1)[:, ::-1]
    least = jnp.take_along_axis(
        ordered, jnp.full((logits.shape[0], 1), jnp.clip(k, 1, logits.shape[1]) - 1), 1
    )
    return jnp.where(logits < least, NEVER, logits)


def top_p(logits: Array, p: Array | float) -> Array:
    """Keeps the smallest set of most probable tokens whose probability reaches p (Holtzman et al.
    2020), at least one."""
    ordered = jnp.sort(logits, -1)[:, ::-1]
    probabilities = jax.nn.softmax(ordered, -1)
    before = jnp.cumsum(probabilities, -1) - probabilities
    count = jnp.maximum((before < p).sum(-1, keepdims=True), 1)
    return jnp.where(logits < jnp.take_along_axis(ordered, count - 1, 1), NEVER, logits)


def length_penalty(count: Array | float, alpha: Array | float, rule: str = "gnmt") -> Array:
    """Returns the divisor of the log-probability of n generated tokens.

    ((5 + n) / 6) ** alpha under "gnmt" (Wu et al. 2016, Eq. 14), n ** alpha under "power". n counts
    `eos`, and neither the prompt nor the first token of a decoder.
    """
    count = jnp.asarray(count, jnp.float32)
    return (count if rule == "power" else (5.0 + count) / 6.0) ** alpha


def _marked(logits: Array, tokens: Array, which: Array) -> Array:
    """Returns [R, V] bool: whether a token is in a slot [R, S] with `which` true."""
    rows = jnp.arange(logits.shape[0])[:, None]
    where = jnp.where(which, tokens, logits.shape[1])  # the id V is out of range and dropped
    return jnp.zeros(logits.shape, bool).at[rows, where].set(True, mode="drop")
