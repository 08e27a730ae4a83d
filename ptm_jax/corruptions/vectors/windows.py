"""Random windows, shared noise words, and windows with another word in their centre.

Mikolov et al. 2013a and b.
"""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
import numpy as np

from ptm_jax.core import slots
from ptm_jax.core.batch import rows_of, segments_of
from ptm_jax.core.streams import named, uniform_bits
from ptm_jax.core.types import Array, Batch, Vocab
from ptm_jax.corruptions.base import draws, is_special, up_to
from ptm_jax.statistics.counts import Counts, noise_of


@dataclasses.dataclass(frozen=True, kw_only=True)
class WordWindows(slots.Corruption):
    """Draws the window of every centre and the noise words of every row.

    Writes `windows` [B, L] int32, the number of neighbours on each side: uniform in 1 .. `window`
    at each of `centres` (2013a, section 3.2; `window` itself unless `dynamic`), 0 elsewhere; and
    `noise_ids` [B, K] int32 of `noise` words with probabilities proportional to count ** `power`
    (2013b, section 2.2). The centres of a row share its noise words; the published code draws new
    ones for every pair. Special and unknown words are never noise.
    """

    vocab: Vocab
    window: int = 5
    dynamic: bool = True
    noise: int = 64
    power: float = 0.75
    counts: Counts = Counts()

    def __call__(self, key: Array, batch: Batch) -> Batch:
        rows, segments = rows_of(batch), segments_of(batch)
        centre = (segments > 0) & (batch.get("centres", segments) > 0)
        reach = jnp.full(segments.shape, self.window, jnp.int32)
        if self.dynamic:
            bits = uniform_bits(named(key, "windows"), rows, segments.shape[1:])
            reach = 1 + up_to((bits >> 8).astype(jnp.float32) * 2**-24, jnp.int32(self.window))
        out = {**batch, "windows": jnp.where(centre, reach, 0)}
        if self.noise:
            steps = _steps(noise_of(self.counts.values, self.vocab, self.power))
            bits = uniform_bits(named(key, "noise"), rows, (self.noise,))
            out["noise_ids"] = jnp.searchsorted(jnp.asarray(steps), bits, side="right").astype(
                jnp.int32
            )
        return out


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReplacedCentres(slots.Corruption):
    """Draws another word for the centre of every window, from a dictionary that grows.

    Collobert et al. 2011, sections 4.2 and 4.5.

    dictionary   (first step, words) of every size, in order: from this step on the first so many
                 ids are the dictionary, which are the most frequent words; others become the
                 unknown word. (): all words at all steps

    Writes `replaced_ids` [B, L] int32, uniform over the words of the dictionary, and
    `replaced_weights` [B, L] float32: 1 at the `centres` that are words of it, 0 elsewhere. The
    draw may return the same word, as in the paper's sum over the dictionary. The batch's `step`
    decides the size; without it the last one holds.
    """

    vocab: Vocab
    dictionary: tuple[tuple[int, int], ...] = ()

    def __post_init__(self):
        steps, sizes = [step for step, _ in self.dictionary], [size for _, size in self.dictionary]
        if self.dictionary and (
            steps[0] != 0 or sorted(set(steps)) != steps or sorted(sizes) != sizes or sizes[0] < 1
        ):
            raise ValueError(
                f"dictionary is {self.dictionary}; steps must rise from 0 and sizes must not fall"
            )

    def __call__(self, key: Array, batch: Batch) -> Batch:
        ids, rows, segments = batch["input_ids"], rows_of(batch), segments_of(batch)
        size, unknown = self.vocab.size, self.vocab.unk
        if self.dictionary:
            steps, sizes = np.array(self.dictionary, np.int32).T
            last = (jnp.asarray(steps) <= batch["step"]).sum() - 1 if "step" in batch else -1
            size, (unknown,) = (
                jnp.minimum(jnp.asarray(sizes)[last], self.vocab.size),
                self.vocab.need("unk"),
            )
            ids = jnp.where((ids < size) | is_special(ids, self.vocab), ids, unknown)
        besides = sorted({*self.vocab.specials, *([] if unknown is None else [unknown])})
        new = up_to(
            draws(named(key, "centres"), rows, ids.shape[1]),
            size - sum(one < size for one in besides),
        )
        for one in besides:  # ascending: each skips one id
            new += new >= one
        words = (segments > 0) & (batch.get("centres", segments) > 0) & ~is_special(ids, self.vocab)
        words &= ids != (-1 if unknown is None else unknown)
        return {
            **batch,
            "input_ids": ids,
            "replaced_ids": new,
            "replaced_weights": words.astype(jnp.float32),
        }


def _steps(probabilities: np.ndarray) -> np.ndarray:
    """Returns the ends of the words' shares of 2**32, [V] uint32. The word of bits u is the number
    of ends <= u."""
    ends = np.minimum(np.round(np.cumsum(probabilities) * 2.0**32), 2.0**32 - 1)
    last = int(np.flatnonzero(probabilities)[-1]) if probabilities.any() else 0
    return np.minimum(ends, 2.0**32 - 1).astype(np.uint32)[:last]
