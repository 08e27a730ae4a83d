"""Random windows and shared noise words (Mikolov et al. 2013a and b)."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
import numpy as np

from ptm_jax.core import slots
from ptm_jax.core.batch import rows_of, segments_of
from ptm_jax.core.facts import Counts, noise_of
from ptm_jax.core.streams import named, uniform_bits
from ptm_jax.core.types import Array, Batch, Vocab
from ptm_jax.corruptions.base import up_to


@dataclasses.dataclass(frozen=True, kw_only=True)
class WordWindows(slots.Corruption):
    """Draws the window of every centre and the noise words of every row.

    Writes `windows` [B, L] int32, the number of neighbours on each side: uniform in 1 .. `window` at each of `centres`
    (2013a, section 3.2; `window` itself unless `dynamic`), 0 elsewhere; and `noise_ids` [B, K] int32 of `noise` words with
    probabilities proportional to count ** `power` (2013b, section 2.2). The centres of a row share its noise words; the
    published code draws new ones for every pair. Special and unknown words are never noise.
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
            out["noise_ids"] = jnp.searchsorted(jnp.asarray(steps), bits, side="right").astype(jnp.int32)
        return out


def _steps(probabilities: np.ndarray) -> np.ndarray:
    """Returns the ends of the words' shares of 2**32, [V] uint32. The word of bits u is the number of ends <= u."""
    ends = np.minimum(np.round(np.cumsum(probabilities) * 2.0**32), 2.0**32 - 1)
    last = int(np.flatnonzero(probabilities)[-1]) if probabilities.any() else 0
    return np.minimum(ends, 2.0**32 - 1).astype(np.uint32)[:last]
