"""T5's span corruption.

Raffel et al. 2020, section 3.1.4; segmentation as in its code; survey 3.1.2, Seq2Seq MLM.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax.numpy as jnp
import numpy as np

from ptm_jax.core import fields, slots
from ptm_jax.core.batch import rows_of, segments_of
from ptm_jax.core.streams import named
from ptm_jax.core.types import Array, Batch, Vocab
from ptm_jax.corruptions.base import choose, table
from ptm_jax.corruptions.compact import decoder, layout, take, without


def noise_counts(tokens: int, rate: float, mean: float) -> tuple[int, int]:
    """Returns (noise tokens, noise spans) for a row of `tokens`, rounded as published.

    (0, 0) below two tokens.
    """
    if tokens < 2:
        return 0, 0
    noise = min(max(round(tokens * rate), 1), tokens - 1)
    return noise, min(max(round(noise / mean), 1), noise, tokens - noise)


def span_lengths(tokens: int, rate: float, mean: float) -> tuple[int, int]:
    """Returns (input length, target length) for a row of `tokens`. Both include eos."""
    noise, spans = noise_counts(tokens, rate, mean)
    return tokens - noise + spans + 1, noise + spans + 1


def tokens_for(inputs: int, rate: float = 0.15, mean: float = 3.0) -> tuple[int, int]:
    """Returns the (row length, target length) that fill an encoder of `inputs` tokens.

    568 and 114 for T5's 512.
    """
    tokens = inputs
    while span_lengths(tokens + 1, rate, mean)[0] <= inputs:
        tokens += 1
    return tokens, span_lengths(tokens, rate, mean)[1]


@dataclasses.dataclass(frozen=True, kw_only=True)
class SentinelSpans(slots.Corruption):
    """Replaces spans of the row by sentinels.

    The decoder predicts each sentinel and the tokens of its span.

    The noise is round(rate * n) of a row's n tokens, in round(noise / mean) spans that alternate
    with kept pieces. Both divisions are uniform. A row begins with a kept piece and ends with a
    span. Inputs and targets end with eos (an eos at the end of the row is reused). The decoder
    starts with pad. Both lengths are static functions of L (`span_lengths`); `tokens_for` gives the
    L that fills an encoder of 512. Sentinels are the `extra` ids of the vocabulary, number 0 first.
    A tokenizer that appends them counts down from the highest id.

    The documents of a packed row form one stream and see each other, as in the published data: use
    rows without padding. `last` adds a final sentinel before the target's eos, as in the paper's
    figure 2; its code does not.
    """

    start: ClassVar[str] = "pad"

    vocab: Vocab
    rate: float = 0.15
    mean: float = 3.0
    sentinels: int = 100
    last: bool = False

    def __post_init__(self):
        if not 0 < self.rate < 1 or not self.mean >= 1:
            raise ValueError(f"rate {self.rate} must be in (0, 1), mean {self.mean} at least 1")

    def __call__(self, key: Array, batch: Batch) -> Batch:
        pad, eos = self.vocab.need("pad", "eos")
        ids, length = batch["input_ids"], batch["input_ids"].shape[1]
        real = segments_of(batch) > 0
        after = jnp.pad(real, ((0, 0), (0, 1)))[:, 1:]
        tokens = real & ~((ids == eos) & ~after)
        noise, begins, number = self._spans(key, batch, tokens)
        sizes = [span_lengths(n, self.rate, self.mean) for n in range(length + 1)]
        sentinel = self._ids(
            max(noise_counts(n, self.rate, self.mean)[1] for n in range(length + 1)) + self.last
        )
        name = sentinel[jnp.maximum(number, 0)]
        inputs, inputs_real = _written(
            ids,
            (tokens & ~noise) + begins.astype(jnp.int32),
            begins,
            name,
            max(s[0] for s in sizes) - 1,
        )
        labels, labels_real = _written(
            ids, noise + begins.astype(jnp.int32), begins, name, max(s[1] for s in sizes) - 1
        )
        some = real.any(1, keepdims=True)
        if self.last:
            spans = begins.sum(1, keepdims=True, dtype=jnp.int32)
            labels, labels_real = _append(labels, labels_real, sentinel[spans], pad, some)
        inputs, inputs_real = _append(inputs, inputs_real, eos, pad, some)
        labels, labels_real = _append(labels, labels_real, eos, pad, some)
        segments = inputs_real.astype(jnp.int32)
        places = jnp.arange(inputs.shape[1], dtype=jnp.int32)
        return {
            **without(batch, fields.moving(batch)),
            "input_ids": inputs,
            "segment_ids": segments,
            "positions": jnp.where(inputs_real, places, 0),
            **decoder(labels, labels_real.astype(jnp.int32), pad, self.vocab),
        }

    def _spans(self, key: Array, batch: Batch, tokens: Array) -> tuple[Array, Array, Array]:
        """Returns (inside a span, first token of a span, index of the last span begun), all [B, L],
        over `tokens` [B, L]."""
        length, count = tokens.shape[1], tokens.sum(1)
        counts = [noise_counts(n, self.rate, self.mean) for n in range(length + 1)]
        limit = max(spans for _, spans in counts)
        noise = table(lambda n: counts[n][0], length)[count]
        spans = table(lambda n: counts[n][1], length)[count]
        rows = rows_of(batch)
        hidden = _division(named(key, "noise"), rows, noise, spans, length=length, limit=limit)
        visible = _division(
            named(key, "kept"), rows, count - noise, spans, length=length, limit=limit
        )
        # Span k starts after the kept pieces 0..k and the spans 0..k-1.
        start = visible + jnp.pad(hidden, ((0, 0), (1, 0)))[:, :-1]
        stop = visible + hidden
        place = jnp.cumsum(tokens, 1, dtype=jnp.int32) - 1
        begun = (start[:, None, :] <= place[..., None]) & (jnp.arange(limit) < spans[:, None])[
            :, None, :
        ]
        inside = tokens & (begun & (place[..., None] < stop[:, None, :])).any(-1)
        begins = tokens & (begun & (place[..., None] == start[:, None, :])).any(-1)
        return inside, begins, begun.sum(-1, dtype=jnp.int32) - 1

    def _ids(self, needed: int) -> Array:
        """Returns the ids of the sentinels. Raises ValueError if there are too few."""
        available = min(self.sentinels, len(self.vocab.extra))
        if available < needed:
            raise ValueError(
                f"rows of this length have up to {needed} spans, and there are {available} "
                "sentinels; give the vocabulary "
                "more (tokenizer.sentinels, listed in `Vocab.extra`), or shorter rows"
            )
        return jnp.asarray(np.array(self.vocab.extra[:needed], np.int32))


def _division(
    key: Array, rows: Array, items: Array, parts: Array, *, length: int, limit: int
) -> Array:
    """Divides `items` [B] uniformly into `parts` [B] non-empty pieces. Returns their ends [B,
    limit], padded with `items`."""
    between = jnp.arange(length) < (items - 1)[:, None]
    cuts, used = choose(key, rows, between, jnp.maximum(parts - 1, 0), limit)
    return jnp.where(used > 0, cuts + 1, items[:, None]).astype(jnp.int32)


def _written(
    ids: Array, widths: Array, begins: Array, name: Array, length: int
) -> tuple[Array, Array]:
    """Returns (ids [B, T], real): every token repeated `widths` times. The first copy at the start
    of a span is `name`."""
    source, offset, real = layout(widths, length)
    named_here = take(begins, source) & (offset == 0)
    return jnp.where(named_here, take(name, source), take(ids, source)), real


def _append(
    ids: Array, real: Array, token: Array | int, pad: int, rows: Array | bool = True
) -> tuple[Array, Array]:
    """Extends rows by one position. Writes `token` after the last real token of the selected
    `rows`, pad elsewhere."""
    real = jnp.pad(real, ((0, 0), (0, 1)))
    here = (jnp.arange(real.shape[1]) == real.sum(1, keepdims=True)) & rows
    ids = jnp.where(real, jnp.pad(ids, ((0, 0), (0, 1))), pad)
    return jnp.where(here, token, ids).astype(jnp.int32), real | here
