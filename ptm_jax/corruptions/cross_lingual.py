"""Sources and targets with languages: mBART's language tokens, XNLG's translation, and Unicoder's
recovery of words."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from ptm_jax.core import slots
from ptm_jax.core.batch import rows_of, segments_of
from ptm_jax.core.errors import Advised
from ptm_jax.core.streams import named
from ptm_jax.core.types import Array, Batch, Vocab
from ptm_jax.corruptions.base import draws, maskable, places
from ptm_jax.corruptions.compact import decoder, layout, moved, take


@dataclasses.dataclass(frozen=True, kw_only=True)
class LanguageTokens(slots.Corruption):
    """mBART's denoising (Liu et al. 2020, section 2.2). Rows are begin x end, for each segment.

    The encoder reads noise(x) end <X>, the decoder reads <X> x end and predicts x end <X>. <X> is
    the token `vocab.extra[n]` of the language n (`language_ids`).
    """

    vocab: Vocab
    noise: Any

    def __call__(self, key: Array, batch: Batch) -> Batch:
        if not self.vocab.extra:
            raise Advised(
                "this vocabulary has no language tokens, which the system needs",
                "prepare the text with --sentinels N, a token for each language",
            )
        ids, segments, tokens = batch["input_ids"], segments_of(batch), self._tokens(batch)
        noisy = self.noise(named(key, "noise"), batch)
        labels = _ended(ids, segments, tokens)
        fields = decoder(labels, segments, 0, self.vocab, batch.get("positions"))
        inputs = jnp.where(_first(segments), tokens, ids)
        fields["decoder_input_ids"] = jnp.where(segments > 0, inputs, fields["decoder_input_ids"])
        source = _ended(noisy["input_ids"], segments_of(noisy), self._tokens(noisy))
        return {**noisy, "input_ids": source, **fields}

    def _tokens(self, batch: Batch) -> Array:
        """Returns the language token of each place, [B, L]."""
        languages = batch.get("language_ids", jnp.zeros_like(batch["input_ids"]))
        return jnp.take(jnp.asarray(self.vocab.extra, jnp.int32), languages, mode="clip")

    def refusal(self, system) -> str | None:
        """Returns the refusal of the noise, or None."""
        return slots.corruption(self.noise).refusal(system)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CrossLingual(slots.Corruption):
    """Cross-lingual autoencoding: a sentence is decoded from its translation (Chi et al. 2020,
    arXiv 1909.10481, section 3.2: XAE). Reads rows of `Translated`, kind "tlm".

    Of each pair the source is drawn. A segment of one sentence is its own source and target: with
    `noise`, a corruption of the source, that is the denoising of text (DAE).

    The decoder reads the target without its last token and predicts the next tokens, so it begins
    with the `begin` token of the rows. Its languages are `decoder_language_ids` [B, T], T = L.
    """

    vocab: Vocab
    noise: Any = None

    start = "eos"  # rows of XLM begin with it

    def __call__(self, key: Array, batch: Batch) -> Batch:
        ids, real = batch["input_ids"], segments_of(batch) > 0
        begins, _, side, second = _sides(batch)
        chosen = _drawn(key, batch)
        of_source, of_target = (
            real & (~second | (side == chosen)),
            real & (~second | (side != chosen)),
        )
        place, _, used = layout(of_source, ids.shape[1])
        source = moved(batch, take(ids, place), place, used, self.vocab)
        if self.noise is not None:
            source = self.noise(named(key, "noise"), source)
        return {**source, **self._target(batch, of_target, begins)}

    def _target(self, batch: Batch, chosen: Array, begins: Array) -> dict[str, Array]:
        """Returns the decoder's fields. The last token of a sentence is a label alone."""
        ids, segments = batch["input_ids"], segments_of(batch)
        following = jnp.pad(ids, ((0, 0), (0, 1)))[:, 1:]
        same = jnp.pad(segments, ((0, 0), (0, 1)))[:, 1:] == segments
        goes_on = same & ~jnp.pad(begins, ((0, 0), (0, 1)))[:, 1:]
        place, _, real = layout(chosen & goes_on, ids.shape[1])
        documents = jnp.where(real, take(segments, place), 0)
        fields = decoder(take(following, place), documents, 0, self.vocab)
        fields["decoder_input_ids"] = jnp.where(
            real, take(ids, place), fields["decoder_input_ids"]
        ).astype(jnp.int32)
        if "language_ids" in batch:
            fields["decoder_language_ids"] = take(batch["language_ids"], place) * real
        return fields

    def refusal(self, system) -> str | None:
        """Returns the refusal of the noise, or None."""
        return None if self.noise is None else slots.corruption(self.noise).refusal(system)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecoveredWords(slots.Corruption):
    """The words of a drawn sentence of each pair are predicted from its translation: Unicoder's
    cross-lingual word recovery (Huang et al. 2019, section 3.1). Reads rows of `Translated`, kind
    "tlm".

    The two sentences become segments, which do not attend to each other. `recovered` [B, L] int32
    is the segment of the translation for the words to predict (`nn.embeddings.recovery`), else 0.
    Adds `mlm_positions`, `mlm_labels`, `mlm_weights` [B, P], P = L.
    """

    vocab: Vocab

    def __call__(self, key: Array, batch: Batch) -> Batch:
        ids, segments = batch["input_ids"], segments_of(batch)
        _, number, side, second = _sides(batch)
        words = second & (side == _drawn(key, batch)) & maskable(batch, self.vocab)
        positions, weights = places(words, ids.shape[1])
        return {
            **batch,
            "segment_ids": jnp.where(segments > 0, number, 0).astype(jnp.int32),
            "recovered": jnp.where(words, number + 1 - 2 * side, 0).astype(jnp.int32),
            "mlm_positions": positions,
            "mlm_labels": take(ids, positions),
            "mlm_weights": weights,
        }


def _sides(batch: Batch) -> tuple[Array, Array, Array, Array]:
    """Returns for each place [B, L]: whether a sentence begins, the number of the sentence in the
    row, 0 or 1 in the segment, and whether the segment has two sentences."""
    segments = segments_of(batch)
    begins = (batch["positions"] == 0) & (segments > 0)
    number = jnp.cumsum(begins, 1)
    side = number - jax.lax.cummax(jnp.where(_first(segments), number, 0), axis=1)
    return begins, number, side, _any(side == 1, segments) & (segments > 0)


def _drawn(key: Array, batch: Batch) -> Array:
    """Returns 0 or 1 for each segment, [B, L]."""
    segments = segments_of(batch)
    drawn = draws(named(key, "source"), rows_of(batch), segments.shape[1] + 1) < 0.5
    return take(drawn.astype(jnp.int32), segments)


def _first(segments: Array) -> Array:
    """Returns True on the first token of each segment, [B, L]."""
    return (segments > 0) & (segments != jnp.pad(segments, ((0, 0), (1, 0)))[:, :-1])


def _any(mask: Array, segments: Array) -> Array:
    """Returns True on the segments in which `mask` [B, L] is True somewhere, [B, L]."""
    return ((segments[:, :, None] == segments[:, None, :]) & mask[:, None, :]).any(-1)


def _ended(ids: Array, segments: Array, tokens: Array) -> Array:
    """Returns each segment without its first token and with `tokens` at its end, [B, L]."""
    following = jnp.pad(ids, ((0, 0), (0, 1)))[:, 1:]
    goes_on = jnp.pad(segments, ((0, 0), (0, 1)))[:, 1:] == segments
    return jnp.where(segments > 0, jnp.where(goes_on, following, tokens), ids).astype(jnp.int32)
