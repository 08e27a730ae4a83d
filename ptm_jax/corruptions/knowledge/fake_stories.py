"""True and fake stories: shuffled, with a replaced or a repeated sentence (commonsense GPT-2)."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from ptm_jax.core import slots
from ptm_jax.core.batch import rows_of, segments_of
from ptm_jax.core.fields import moving
from ptm_jax.core.streams import named
from ptm_jax.core.types import Array, Batch, Vocab
from ptm_jax.corruptions.base import draws, up_to
from ptm_jax.corruptions.masking.noise import sentences_of

TRUE, SHUFFLED, REPLACED, REPEATED = range(4)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FakeStories(slots.Corruption):
    """Makes the first document of a row true or fake.

    Guan et al. 2020, arXiv 2001.05139, section 3.4; details as in thu-coai/CommonsenseStoryGen,
    gen_fake_st.py. Each of the four kinds has probability 1/4:

        true       unchanged
        shuffled   the sentences in another order, which may equal the old one
        replaced   a sentence is replaced by a sentence of another document of the row, the one of
                   the same number if it exists
        repeated   a sentence is followed by a copy of itself

    The first sentence, the context of a story, stays. A document stays true if it has one sentence,
    if it would be shuffled and has two, or if it would take a sentence and no other document has
    one. Other documents are unchanged. Tokens that move past the end of the row are cut. Reads
    `sentences`. Deviation: the code drops the full stop between the two copies of a sentence.

    Writes `truth_labels` [B] int32 (0 true, 1 shuffled, 2 replaced, 3 repeated) and `truth_weights`
    [B] float32.
    """

    vocab: Vocab

    def __call__(self, key: Array, batch: Batch) -> Batch:
        segments, sentences, length = (
            segments_of(batch),
            sentences_of(batch),
            batch["input_ids"].shape[1],
        )
        drawn = draws(named(key, "stories"), rows_of(batch), 4, length + 1)
        kind, order, first, other = drawn[:, 0, 0], *jnp.moveaxis(drawn[:, 1:], 1, 0)
        numbers = jnp.arange(length + 1)
        story = segments == 1

        def within(tokens):
            return (sentences[..., None] == numbers) & tokens[..., None]

        def among(tokens):
            return within(tokens).any(1).at[:, 0].set(False)

        of_story, others = among(story), among(segments > 1)
        owner = jnp.where(within(segments > 0), segments[..., None], 0).max(1).at[:, 0].set(0)
        earlier = (owner[:, :, None] == owner[:, None]) & (numbers < numbers[:, None])
        ordinal = jnp.where(owner > 0, earlier.sum(-1), -1)  # number of a sentence in its document

        def best(scores, allowed):
            return jnp.where(allowed, scores, -1.0).argmax(-1)[:, None]

        later = of_story & (ordinal > 0)
        place = best(first, later)
        kind, count = up_to(kind, 4), of_story.sum(1)
        able = (
            (count > 1) & ((kind != SHUFFLED) | (count > 2)) & ((kind != REPLACED) | others.any(1))
        )
        kind = jnp.where(able, kind, TRUE)[:, None]
        alike = ordinal == jnp.take_along_axis(ordinal, place, 1)
        donor = jnp.where(kind == REPLACED, best(other + alike, others), place)
        texts = (
            (sentences == donor)
            & (story == (kind == REPEATED))
            & (segments > 0)
            & (kind >= REPLACED)
        )
        order = jnp.where(of_story & ~later, -1.0, order)
        ranks = jnp.take_along_axis(jnp.argsort(jnp.argsort(order, 1), 1), sentences, 1)
        keys = jnp.where(story & (kind == SHUFFLED) & (sentences > 0), 1 + ranks, sentences)
        keys = segments * (length + 3) + jnp.where(_ends(segments, sentences), length + 2, keys)
        end = (length + 2) * (length + 3)
        gone = (segments == 0) | (story & (kind == REPLACED) & (sentences == place))
        keys = jnp.concatenate(
            [jnp.where(gone, end, keys), jnp.where(texts, length + 3 + place, end)], 1
        )
        chosen = jnp.argsort(keys, axis=1, stable=True)[:, :length]
        real = jnp.take_along_axis(keys, chosen, 1) < end
        out = self._moved(batch, real, chosen)
        weights = story.any(1).astype(jnp.float32)
        return {**out, "truth_labels": kind[:, 0].astype(jnp.int32), "truth_weights": weights}

    def _moved(self, batch, real, chosen):
        """Returns the batch with the `chosen` tokens [B, L]; numbers from L on are copies that join
        the story, and places that are not `real` become padding."""
        length = chosen.shape[1]
        source = chosen % length

        def take(x):
            return jnp.take_along_axis(x, source.reshape(*source.shape, *(1,) * (x.ndim - 2)), 1)

        out = {**batch, **{name: take(batch[name]) for name in moving(batch)}}
        out["input_ids"] = jnp.where(real, take(batch["input_ids"]), self.vocab.pad or 0)
        segments = jnp.where(chosen >= length, 1, take(segments_of(batch)))
        out["segment_ids"] = jnp.where(real, segments, 0)
        new = out["segment_ids"]
        out["positions"] = jnp.where(new > 0, jnp.arange(length) - _begins(new), 0)
        return out


def _begins(segments: Array) -> Array:
    """Returns the first place of each token's document, [B, L]."""
    edge = jnp.pad(segments[:, 1:] != segments[:, :-1], ((0, 0), (1, 0)), constant_values=True)
    return jax.lax.cummax(jnp.where(edge, jnp.arange(segments.shape[1]), 0), axis=1)


def _ends(segments: Array, sentences: Array) -> Array:
    """Returns which tokens are in no sentence and follow a word of their document, [B, L].

    Such tokens, for example [SEP], stay at the end.
    """
    count = jnp.cumsum(sentences > 0, 1)
    before = jnp.take_along_axis(count - (sentences > 0), _begins(segments), 1)
    return (sentences == 0) & (count > before)
