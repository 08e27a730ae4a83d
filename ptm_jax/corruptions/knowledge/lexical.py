"""Masking by classes of words: label-aware masking (SentiLR), allowed supersenses (SenseBERT)."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from ptm_jax.core import slots
from ptm_jax.core.batch import put, rows_of, segments_of
from ptm_jax.core.fields import move_with_tokens
from ptm_jax.core.streams import named
from ptm_jax.core.types import Array, Batch, Vocab
from ptm_jax.corruptions.base import (
    best,
    budget,
    capacity,
    check_shares,
    choose,
    draws,
    hide,
    maskable,
    places,
)
from ptm_jax.knowledge.word_classes import PARTS, POLARITIES, WordClasses, allowed

OTHER, NEUTRAL = PARTS.index("u"), POLARITIES.index("0")
move_with_tokens("parts", "polarities", "ratings", "allowed_senses")


@dataclasses.dataclass(frozen=True, kw_only=True)
class LabelAwareMasking(slots.Corruption):
    """Masks each polar word with probability `polar` and every other word with `rate`.

    Ke et al. 2020, arXiv 1911.02493, section 2.3; the probabilities are from thu-coai/SentiLARE.
    All tokens of a word share one draw of 80/10/10.

    Writes the token classes `parts` and `polarities` [B, L]; hidden and replaced words have "other"
    and "neutral". Writes the labels `parts_labels` and `polarities_labels` [B, P], P = ceil(polar *
    L). `classes_weights` [B, P] is 0 for words that are both other and neutral. Chosen words beyond
    P stay.

    With the class of the text in `label` [B], 0 to 4, -1 for none (`data.rows.rated`), `ratings`
    [B, L] holds the class on every word and 5 elsewhere (early fusion). In a fraction `late` of the
    rows it is 5 everywhere, and `rating_label` and `rating_weights` [B] make the class a label
    (late supervision).
    """

    vocab: Vocab
    lexicon: WordClasses = WordClasses()
    rate: float = 0.15
    polar: float = 0.3
    late: float = 0.2
    mask: float = 0.8
    random: float = 0.1

    def __post_init__(self):
        check_shares(self.rate, self.mask, self.random)
        if not self.rate <= self.polar <= 1 or not 0 <= self.late <= 1:
            raise ValueError(
                f"polar is {self.polar} and late {self.late}; expected rate <= polar <= 1 "
                "and a share"
            )

    def __call__(self, key: Array, batch: Batch) -> Batch:
        ids, rows = batch["input_ids"], rows_of(batch)
        length, slot = ids.shape[1], jnp.arange(ids.shape[1])
        words, classes = maskable(batch, self.vocab), self.lexicon.classes(batch)
        edge = jnp.pad(
            segments_of(batch)[:, 1:] != segments_of(batch)[:, :-1],
            ((0, 0), (1, 0)),
            constant_values=True,
        )
        first = jax.lax.cummax(jnp.where(self.lexicon.begins(ids) | edge, slot, 0), axis=1)

        def of_word(x):
            return jnp.take_along_axis(x, first, 1)

        wanted = jnp.where(of_word(classes["polarities"]) == NEUTRAL, self.rate, self.polar)
        chosen = words & (of_word(draws(named(key, "choose"), rows, length)) < wanted)
        positions, weights = places(chosen, capacity(length, self.polar))

        def at(x):
            return jnp.take_along_axis(x, positions, 1)

        units = jnp.cumsum(jnp.diff(at(first), axis=1, prepend=at(first)[:, :1]) != 0, 1)
        out = hide(
            key, batch, positions, weights, self.vocab, shares=(self.mask, self.random), units=units
        )
        seen = at(out["input_ids"]) == out["mlm_labels"]
        labels = {"parts": at(classes["parts"]), "polarities": at(classes["polarities"])}
        for name, none in (("parts", OTHER), ("polarities", NEUTRAL)):
            out[name] = put(classes[name], positions, weights, jnp.where(seen, labels[name], none))
            out[f"{name}_labels"] = labels[name]
        known = (labels["parts"] != OTHER) | (labels["polarities"] != NEUTRAL)
        out["classes_weights"] = weights * known
        return {**out, **self._ratings(named(key, "late"), batch, words)}

    def _ratings(self, key: Array, batch: Batch, words: Array) -> Batch:
        if "label" not in batch:
            return {}
        late, label = (
            draws(key, rows_of(batch), 1)[:, 0] < self.late,
            batch["label"].astype(jnp.int32),
        )
        rated = label >= 0
        ratings = jnp.where(words & (rated & ~late)[:, None], label[:, None], 5)
        asked = (rated & late & words.any(1)).astype(jnp.float32)
        return {"ratings": ratings, "rating_label": jnp.maximum(label, 0), "rating_weights": asked}


@dataclasses.dataclass(frozen=True, kw_only=True)
class AllowedSenses(slots.Corruption):
    """Writes `allowed_senses` [B, L, 2] int32, the bits of the supersenses that each word allows.

    Apply it before the masking: `objectives.knowledge.lexical.Supersenses` needs the senses of
    hidden words. No network reads the field.
    """

    lexicon: WordClasses = WordClasses()

    def __call__(self, key: Array, batch: Batch) -> Batch:
        return {**batch, "allowed_senses": self.lexicon.classes(batch)["senses"]}


@dataclasses.dataclass(frozen=True, kw_only=True)
class SingleSenseMasking(slots.Corruption):
    """`TokenMasking` that prefers tokens with one allowed supersense.

    Selects a fraction `single` of the one-sense tokens, at most a fraction `limit` of the
    predictions. The remaining predictions are uniform over the other tokens (Levine et al. 2020,
    arXiv 1908.05646, section 3.5). Reads `allowed_senses`; without them it draws among all tokens.
    """

    vocab: Vocab
    rate: float = 0.15
    single: float = 0.5
    limit: float = 0.4
    mask: float = 0.8
    random: float = 0.1

    def __post_init__(self):
        check_shares(self.rate, self.mask, self.random)
        if not (0 <= self.single <= 1 and 0 <= self.limit <= 1):
            raise ValueError(f"single is {self.single} and limit {self.limit}; both are shares")

    def __call__(self, key: Array, batch: Batch) -> Batch:
        rows, room = rows_of(batch), capacity(batch["input_ids"].shape[1], self.rate)
        words = maskable(batch, self.vocab)
        count = budget(words.sum(1), self.rate, room)
        senses = batch.get("allowed_senses", jnp.zeros((*words.shape, 2), jnp.int32))
        clear = words & (allowed(senses).sum(-1) == 1)
        favoured = jnp.floor(
            jnp.minimum(clear.sum(1) * self.single + 0.5, count * self.limit)
        ).astype(jnp.int32)
        first, used = choose(named(key, "single"), rows, clear, favoured, room)
        scores = jnp.where(words, draws(named(key, "choose"), rows, words.shape[1]), -1.0)
        positions, weights = best(put(scores, first, used, 2.0), count, room)
        return hide(key, batch, positions, weights, self.vocab, shares=(self.mask, self.random))
