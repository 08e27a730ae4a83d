"""Word vectors of two languages in one space, from parallel text.

BiSkip      a word predicts its neighbours, and the neighbours of the word that it is aligned with
            (Luong et al. 2015, section 3.2; bivec.c, ProcessSentenceAlign)
joint       in addition, the mean vectors of a sentence and of its translation have a high cosine
            (Singla et al. 2018)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import jax
import jax.numpy as jnp

from ptm_jax.core.batch import segments_of
from ptm_jax.core.towers import Tower
from ptm_jax.core.types import Array, Batch, Loss, Ratio, add_losses
from ptm_jax.objectives.vectors.windows import NegativeSampling
from ptm_jax.statistics.windows import square


@dataclasses.dataclass(frozen=True, kw_only=True)
class BilingualSkipGram(NegativeSampling):
    """alpha (mono1 + mono2) + beta (cross12 + cross21) with alpha = 1 (Luong et al. 2015, Eq. 3).

    In an aligned pair (i, j) the word at i predicts the neighbours of j within the pair's window,
    and the word at j the neighbours of i. The aligned words themselves are not predicted. Noise
    words are of the predicted word's language.

    k       number of noise words per prediction
    beta    weight of predictions in the other language
    """

    k: int = 30
    beta: float = 1.0

    def tables(self, system):
        return None

    def contexts(self, batch: Batch) -> tuple[Array, Array]:
        """Returns how often word t predicts word u in its own and in the other language, [B, L, L]
        each."""
        segments, pairs = segments_of(batch), batch["aligned"]
        place = jnp.arange(segments.shape[1])
        real = (pairs >= 0).all(-1)

        def at(side):
            return ((pairs[..., side, None] == place) & real[..., None]).astype(jnp.float32)

        def near(side):
            segment_of_word = jnp.take_along_axis(segments, jnp.maximum(pairs[..., side], 0), 1)
            apart = jnp.abs(pairs[..., side, None] - place)
            inside = (
                (apart > 0)
                & (apart <= batch["pair_windows"][..., None])
                & (segments[:, None] == segment_of_word[..., None])
            )
            return (inside & real[..., None] & (segment_of_word > 0)[..., None]).astype(jnp.float32)

        def product(a, b):
            return jnp.einsum("bpt,bpu->btu", a, b, preferred_element_type=jnp.float32)

        return square(batch, self.window).astype(jnp.float32), product(at(0), near(1)) + product(
            at(1), near(0)
        )

    def __call__(self, towers: Mapping[str, Tower], batch: Batch, key: Array) -> Loss:
        tower, batch = towers[self.tower], self.fields(batch)
        hidden = tower(batch, key).hidden.astype(jnp.float32)
        mono, cross = self.contexts(batch)
        return self._words(tower, hidden, mono + self.beta * cross, batch, mono.sum() + cross.sum())

    def _words(
        self, tower: Tower, hidden: Array, weights: Array, batch: Batch, pairs: Array
    ) -> Loss:
        (true, bias), (noise, noise_bias) = (
            tower.head(self.head, batch[name]) for name in self.reads
        )
        languages, count = batch["word_languages"], batch["noise_ids"].shape[1] // 2
        times = [(weights * (languages == language)[:, None]).sum(-1) for language in (1, 2)]
        same = (batch["target_ids"][..., None] == batch["noise_ids"][:, None]).astype(jnp.float32)
        times = jnp.repeat(jnp.stack(times, -1), count, -1) - _dot("blu,bun->bln", weights, same)
        right = weights * jax.nn.softplus(-_dot("bld,bud->blu", hidden, true) - bias[:, None])
        wrong = times * jax.nn.softplus(_dot("bld,bnd->bln", hidden, noise) + noise_bias[:, None])
        total = (
            jnp.where(weights > 0, right, 0.0).sum()
            + self.k / count * jnp.where(times > 0, wrong, 0.0).sum()
        )
        centres = (weights > 0).any(-1).sum().astype(jnp.float32)
        return Loss(total, centres, {"pair_loss": Ratio(total, pairs)})


@dataclasses.dataclass(frozen=True, kw_only=True)
class SentenceAlignment(BilingualSkipGram):
    """The bilingual skip-gram plus `alignment` times the mean of 1 - cos(s, s') over translations.

    s is the mean of a sentence's vectors (Singla et al. 2018: one model of words and of sentences).
    Sentences without a translation have only the first term. The form of the second term is from
    the survey's row.
    """

    alignment: float = 1.0

    def __call__(self, towers, batch, key):
        tower, batch = towers[self.tower], self.fields(batch)
        hidden = tower(batch, key).hidden.astype(jnp.float32)
        mono, cross = self.contexts(batch)
        words = self._words(
            tower, hidden, mono + self.beta * cross, batch, mono.sum() + cross.sum()
        )
        return add_losses((1.0, words), (self.alignment, self._sentences(hidden, batch)))

    def _sentences(self, hidden: Array, batch: Batch) -> Loss:
        segments, other = segments_of(batch), batch["translation"]
        ours = (segments[:, :, None] == segments[:, None]) & (segments > 0)[:, :, None]
        theirs = (other[:, :, None] == segments[:, None]) & (other > 0)[:, :, None]
        sums = [_dot("btu,bud->btd", part.astype(jnp.float32), hidden) for part in (ours, theirs)]
        lengths = jnp.maximum(ours.sum(-1), 1)
        dot = (sums[0] * sums[1]).sum(-1)
        size = jnp.square(sums[0]).sum(-1) * jnp.square(sums[1]).sum(-1)
        aligned = theirs.any(-1) & (segments > 0)
        cosine = dot * jax.lax.rsqrt(jnp.where(aligned & (size > 0), size, 1.0))
        share = jnp.where(aligned, 1 / lengths, 0.0)  # of a word in its sentence
        total, count = (share * jnp.where(aligned, 1 - cosine, 0.0)).sum(), share.sum()
        count = jnp.round(count)
        return Loss(total, count, {"sentence_distance": Ratio(total, count)})


def _dot(formula: str, a: Array, b: Array) -> Array:
    return jnp.einsum(formula, a, b, preferred_element_type=jnp.float32)
