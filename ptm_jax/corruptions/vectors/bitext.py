"""Windows of words in two languages, and noise words of each (Luong et al. 2015)."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
import numpy as np

from ptm_jax.core import slots
from ptm_jax.core.batch import rows_of
from ptm_jax.core.streams import named, uniform_bits
from ptm_jax.core.types import Array, Batch, Vocab
from ptm_jax.corruptions.base import up_to
from ptm_jax.corruptions.vectors.windows import WordWindows
from ptm_jax.knowledge.languages import WordLanguages
from ptm_jax.statistics.counts import Counts, noise_of


@dataclasses.dataclass(frozen=True, kw_only=True)
class BilingualWindows(slots.Corruption):
    """Draws the window of every word and of every aligned pair, and the noise words of every row.

    Writes `windows` [B, L] as `WordWindows`, `pair_windows` [B, L] alike for each entry of
    `aligned`, `word_languages` [B, L] (1, 2; 0: none), and `noise_ids` [B, 2 K]: `noise` words of
    the first language, then of the second, with probabilities proportional to count ** `power` in
    it.
    """

    vocab: Vocab
    window: int = 5
    noise: int = 64
    power: float = 0.75
    counts: Counts = Counts()
    languages: WordLanguages = WordLanguages()

    def __call__(self, key: Array, batch: Batch) -> Batch:
        rows, length = rows_of(batch), batch["input_ids"].shape[1:]
        out = WordWindows(vocab=self.vocab, window=self.window, noise=0)(key, batch)

        def draw(name, shape):
            return (uniform_bits(named(key, name), rows, shape) >> 8).astype(jnp.float32) * 2**-24

        out["pair_windows"] = 1 + up_to(draw("pair_windows", length), jnp.int32(self.window))
        numbers = self.languages.values
        out["word_languages"] = jnp.asarray(np.maximum(numbers, 0))[batch["input_ids"]]
        noise = []
        for language in (1, 2):
            shares = noise_of(
                np.where(numbers == language, self.counts.values, 0), self.vocab, self.power
            )
            words = np.flatnonzero(shares)
            ends = jnp.asarray(np.cumsum(shares[words])[:-1], jnp.float32)
            place = jnp.searchsorted(ends, draw(f"noise_{language}", (self.noise,)), side="right")
            noise.append(jnp.asarray(words if len(words) else [0], jnp.int32)[place])
        return {**out, "noise_ids": jnp.concatenate(noise, 1)}
