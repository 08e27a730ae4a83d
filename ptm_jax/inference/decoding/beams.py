"""Beam search with separate finished hypotheses, and length penalties.
The penalty is GNMT's (Wu et al. 2016, section 7) or n ** alpha.

A step ranks the 2K best continuations of a prompt, (1 + n) K where n tokens end an answer. A
continuation among the K best that ends (with a token of `eos`, or at the maximum length) becomes a
hypothesis, ranked by score divided by length penalty. The K best of the others continue, so the
beam never shrinks. A prompt is done when it has K hypotheses and `early_stopping` allows the end,
as in the
`transformers` library:

"never"  no continuation can beat the worst hypothesis: sums of log-probabilities only decrease, and
         the penalty of the longest answer bounds the score of a continuation
False    the best continuation, scored at its present length, does not beat the worst hypothesis;
         with alpha > 0 a longer answer could still have beaten it
True     at once

Rules (`inference.decoding.logits`) apply to log-probabilities, as in that library.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from ptm_jax.core.types import Array, record
from ptm_jax.inference.decoding.logits import NEVER, length_penalty, one_of
from ptm_jax.inference.decoding.settings import Decoded, Generation, adjusted, grown_to_the_end


@record
class Beams:
    """Running hypotheses: tokens [B, K, P+T] with log-probabilities [B, K], and the K best `done`.
    The best is first."""

    t: Any
    tokens: Any
    sums: Any
    done: Decoded
    closed: Any
    cache: Any


def search(
    shape: Generation,
    forward: Callable,
    eos: tuple[int, ...],
    pad: int,
    ids,
    *,
    segments,
    logits,
    cache,
    numbers: Mapping,
) -> Decoded:
    """Returns `Decoded` for prompts [B, P] with K answers each.
    It begins with the logits [B, V] after the prompts and their cache."""
    (rows, prompt), width = ids.shape, shape.beams
    lanes = jnp.repeat(jnp.arange(rows), width)
    counts = segments.sum(1)[lanes]
    real = jnp.pad(segments > 0, ((0, 0), (0, shape.max_new_tokens)), constant_values=True)[lanes]
    tokens = jnp.pad(ids, ((0, 0), (0, shape.max_new_tokens)))[lanes].reshape(rows, width, -1)
    first = jnp.where(
        jnp.arange(width) == 0, 0.0, NEVER
    )  # only one beam starts, to avoid duplicate answers
    beams = Beams(
        t=jnp.int32(0),
        tokens=tokens,
        sums=jnp.broadcast_to(first, (rows, width)),
        done=Decoded(tokens, jnp.zeros((rows, width), jnp.int32), jnp.full((rows, width), NEVER)),
        closed=segments.sum(1) == 0,
        cache=cache.take(lanes),
    )

    def grow(beams, logits):
        return _grown(shape, numbers, eos, prompt, real, beams=beams, logits=logits)

    beams = grown_to_the_end(
        beams,
        logits[lanes],
        grow,
        forward,
        counts,
        prompt=prompt,
        done=lambda beams: beams.closed,
        numbers=numbers,
    )
    answers = beams.done.tokens[:, :, prompt:]
    answers = jnp.where(jnp.arange(answers.shape[2]) < beams.done.lengths[..., None], answers, pad)
    return dataclasses.replace(beams.done, tokens=answers)


def _grown(shape, numbers, eos, prompt: int, real: Array, *, beams: Beams, logits: Array) -> Beams:
    """Extends the beams by one token, from the logits [B * K, V] after them."""
    rows, width, slots = beams.tokens.shape
    used = real & (jnp.arange(slots) < prompt + beams.t)
    flat = beams.tokens.reshape(rows * width, slots)
    scores = adjusted(
        shape,
        numbers,
        eos,
        jax.nn.log_softmax(logits, -1),
        flat,
        used=used,
        t=beams.t,
        prompt=prompt,
    )
    vocab = scores.shape[1]
    totals = (beams.sums[:, :, None] + scores.reshape(rows, width, vocab)).reshape(
        rows, width * vocab
    )
    candidates = max(2, 1 + len(eos)) * width
    sums, index = jax.lax.top_k(totals, min(candidates, width * vocab))
    source, token = index // vocab, (index % vocab).astype(jnp.int32)
    tokens = jnp.take_along_axis(beams.tokens, source[..., None], 1)
    tokens = jax.lax.dynamic_update_slice_in_dim(tokens, token[..., None], prompt + beams.t, 2)

    count, limit, alpha = beams.t + 1, numbers["max_new_tokens"], numbers["length_penalty"]
    ends = jnp.broadcast_to(count >= limit, token.shape)
    ends = ends | one_of(token, eos)
    possible = sums > NEVER / 2
    ended = ends & possible & (jnp.arange(sums.shape[1]) < width)
    ranked = jnp.where(ended, sums / length_penalty(count, alpha, shape.length_rule), NEVER)
    done = _best_done(beams, ranked, tokens, count)

    sums, order = jax.lax.top_k(jnp.where(ends, NEVER, sums), width)
    lanes = jnp.take_along_axis(source, order, 1) + width * jnp.arange(rows)[:, None]
    longest = jnp.where((alpha > 0) & (shape.early_stopping == "never"), limit, count)
    hope = sums[:, 0] / length_penalty(longest, alpha, shape.length_rule)
    worst = done.scores[:, -1]
    closed = beams.closed | (worst > NEVER / 2) & ((hope <= worst) | (shape.early_stopping is True))
    return Beams(
        t=count,
        tokens=jnp.take_along_axis(tokens, order[..., None], 1),
        sums=jnp.maximum(sums, NEVER),
        done=done,
        closed=closed,
        cache=beams.cache.take(lanes.reshape(-1)),
    )


def _best_done(beams: Beams, ranked: Array, tokens: Array, count: Array) -> Decoded:
    """Returns the K best of the old hypotheses and those [B, 2K] of this step."""
    ranked = jnp.where(beams.closed[:, None], NEVER, ranked)
    scores, order = jax.lax.top_k(
        jnp.concatenate([beams.done.scores, ranked], 1), beams.sums.shape[1]
    )
    lengths = jnp.concatenate([beams.done.lengths, jnp.full(ranked.shape, count)], 1)
    everything = jnp.concatenate([beams.done.tokens, tokens], 1)
    lengths = jnp.where(scores > NEVER / 2, jnp.take_along_axis(lengths, order, 1), 0)
    return Decoded(jnp.take_along_axis(everything, order[..., None], 1), lengths, scores)
