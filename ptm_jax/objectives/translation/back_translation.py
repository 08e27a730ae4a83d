"""Back-translation inside the step (Sennrich et al. 2016; on line: Lample et al. 2018, arXiv
1804.07755, section 3.3; facebookresearch/XLM, trainer.py, `bt_step`)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from ptm_jax.core import slots
from ptm_jax.core.streams import named, row_keys
from ptm_jax.core.towers import Tower
from ptm_jax.core.types import Array, Batch, Loss, Vocab, record
from ptm_jax.objectives.base import AroundTask
from ptm_jax.objectives.text.seq2seq import Seq2Seq

if TYPE_CHECKING:
    from ptm_jax.core.system import System


@record
class Writing:
    """Rows that are being written: `tokens` [B, T+1] from the first token on, `going` [B], and the
    decoder's cache after `at` tokens."""

    at: Any
    tokens: Any
    going: Any
    cache: Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class BackTranslation(AroundTask):
    """A text x is translated into another language, and `task` predicts x from the translation y.

    y is the greedy answer of the same network, without dropout: at most int(grow n + more) tokens
    for x of n tokens, both </s> of x and of y included. A y that does not end gets </s> in its last
    place. y is a constant: the gradient is that of the second pass alone.

    x is what the batch's decoder predicts, after the token `begin`: `decoder_labels` [B, T] of
    weight > 0, in the languages `decoder_language_ids` [B, T] (absent: 0). A row is one text. With
    more than two `languages` the other one is drawn for each row.

    Deviation: the length is bounded for each row; XLM takes the longest row of a batch of nearly
    equal lengths.
    """

    vocab: Vocab
    task: Any = Seq2Seq()
    tower: str = "main"
    languages: int = 2
    begin: str = "eos"
    grow: float = 1.3
    more: int = 5

    language_field = "decoder_language_ids"

    def __post_init__(self):
        if self.languages < 2:
            raise ValueError(f"languages is {self.languages}; a translation needs at least 2")
        if self.grow < 0 or self.more < 2:
            raise ValueError(
                f"grow is {self.grow} and more {self.more}; a translation has at least 2 tokens"
            )

    @property
    def baseline(self) -> str | None:
        return None

    def __call__(self, towers: Mapping[str, Tower], batch: Batch, key: Array) -> Loss:
        text, real = self.text(batch)
        mine = _column(batch.get(self.language_field), text)
        other = self._other(mine, batch, key)
        tower = towers[self.tower]
        still = dataclasses.replace(tower, params=jax.lax.stop_gradient(tower.params), train=False)
        written, inside = self.translation(still, text, real, mine, other)
        made = {name: batch[name] for name in ("rows", "step") if name in batch}
        made |= self.source(jax.lax.stop_gradient(written), inside, other)
        made |= {f"decoder_{name}": batch[f"decoder_{name}"] for name in ("labels", "weights")}
        target = _source(text[:, :-1], batch["decoder_weights"] > 0, mine)
        made |= {f"decoder_{name}": value for name, value in target.items()}
        loss = self.task(towers, made, key)
        metrics = {f"back_{name}": ratio for name, ratio in loss.metrics.items()}
        return dataclasses.replace(loss, metrics=metrics, carry=None)

    def first(self, language: Array) -> Array:
        """Returns the token before texts of a language, of the shape of `language`."""
        (begin,) = self.vocab.need(self.begin)
        return jnp.full_like(language, begin)

    def source(self, text: Array, real: Array, language: Array) -> dict[str, Array]:
        """Returns the fields of the encoder for texts [B, T] from `first` on."""
        return _source(text, real, language)

    def text(self, batch: Batch) -> tuple[Array, Array]:
        """Returns the texts [B, T+1] from `begin` on, and where they have tokens."""
        (begin,) = self.vocab.need(self.begin)
        words, real = batch["decoder_labels"], batch["decoder_weights"] > 0
        ids = jnp.pad(jnp.where(real, words, _pad(self.vocab)), ((0, 0), (1, 0)))
        return ids.at[:, 0].set(begin), jnp.pad(real, ((0, 0), (1, 0))).at[:, 0].set(real[:, 0])

    def translation(
        self, tower: Tower, text: Array, real: Array, mine: Array, other: Array
    ) -> tuple[Array, Array]:
        """Returns translations [B, T'] from `begin` on, and where they have tokens.

        text   ids [B, T+1] and where they are `real`; the languages are mine, other [B]
        """
        (end,) = self.vocab.need("eos")
        encoder, (rows, longest) = slots.encoder_in(tower.module), text.shape
        limit = self._limits(longest, encoder)[real.sum(1)]
        room = limit_of(self, longest, encoder)
        start = self.first(other)[:, None]
        first = _source(start, jnp.ones_like(start, bool), other)
        first = {f"decoder_{name}": value for name, value in first.items()}
        cache = encoder.empty_cache(rows, room, longest)
        encoded = tower(self.source(text, real, mine) | first, cache=cache)
        tokens = jnp.full((rows, room), _pad(self.vocab), jnp.int32).at[:, :1].set(start)
        state = Writing(jnp.int32(1), tokens, limit > 1, encoded.cache)

        def grown(state: Writing, hidden: Array) -> Writing:
            word = tower.head(self._head, hidden[:, -1]).logits().argmax(-1).astype(jnp.int32)
            word = jnp.where(state.at + 1 >= limit, end, word)
            word = jnp.where(state.going, word, _pad(self.vocab))
            tokens = jax.lax.dynamic_update_slice_in_dim(state.tokens, word[:, None], state.at, 1)
            going = state.going & (word != end)
            return Writing(state.at + 1, tokens, going, state.cache)

        def step(state: Writing) -> Writing:
            last = jax.lax.dynamic_slice_in_dim(state.tokens, state.at - 1, 1, 1)
            place = jnp.full_like(last, state.at - 1)
            inputs = {"input_ids": last, "positions": place, "language_ids": other[:, None]}
            encoded = tower(inputs, cache=state.cache)
            return grown(dataclasses.replace(state, cache=encoded.cache), encoded.hidden)

        state = jax.lax.while_loop(
            lambda state: (state.at < room) & state.going.any(), step, grown(state, encoded.hidden)
        )
        after = jnp.cumsum((state.tokens == end)[:, 1:], 1)
        inside = jnp.pad(after, ((0, 0), (2, 0)))[:, :-1] == 0
        return state.tokens, inside & (limit > 1)[:, None]

    @property
    def _head(self) -> str:
        return slots.objective(self.task).head

    def _limits(self, longest: int, encoder: slots.Encoder) -> Array:
        """Returns the most tokens of the translation of n = 0, ..., `longest` tokens."""
        counts = range(longest + 1)
        return jnp.asarray([limit_of(self, n, encoder) if n else 0 for n in counts], jnp.int32)

    def _other(self, mine: Array, batch: Batch, key: Array) -> Array:
        """Returns the language of each row's translation, [B]."""
        if self.languages == 2:
            return 1 - mine
        rows = batch.get("rows", jnp.arange(len(mine), dtype=jnp.int32))
        keys = row_keys(named(key, "language"), rows)
        step = jax.vmap(lambda one: jax.random.randint(one, (), 1, self.languages))(keys)
        return (mine + step) % self.languages

    def refusal(self, system: System) -> str | None:
        encoder = slots.encoder_of(system, self.tower)
        if encoder is not None and not (encoder.writes and encoder.reads_source):
            return (
                "BackTranslation writes translations, and this encoder has no decoder that goes on "
                "token by token; take an EncoderDecoder"
            )
        return slots.objective(self.task).refusal(system)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenBackTranslation(BackTranslation):
    """`BackTranslation` with tokens of languages (Liu et al. 2020, section 5), for the batches of
    `LanguageTokens`.

    The source x </s> <X> is translated into <Y> y </s>; from the source y </s> <Y> the decoder
    predicts x </s> <X> after <X>. <X> is `vocab.extra[n]` of the language n of the row
    (`language_ids`). `begin` is not read.
    """

    language_field = "language_ids"

    def first(self, language: Array) -> Array:
        return jnp.take(jnp.asarray(self.vocab.extra, jnp.int32), language, mode="clip")

    def source(self, text: Array, real: Array, language: Array) -> dict[str, Array]:
        last = jnp.arange(text.shape[1]) == real.sum(1, keepdims=True) - 1
        ids = jnp.where(last, self.first(language)[:, None], jnp.roll(text, -1, 1))
        return _source(jnp.where(real, ids, _pad(self.vocab)), real, language)

    def text(self, batch: Batch) -> tuple[Array, Array]:
        weights = batch["decoder_weights"] > 0
        inside = weights & jnp.pad(weights[:, 1:], ((0, 0), (0, 1)))
        ids = jnp.where(inside, batch["decoder_labels"], _pad(self.vocab))
        start = self.first(_column(batch.get(self.language_field), ids))
        start = jnp.where(weights[:, 0], start, _pad(self.vocab))[:, None]
        return jnp.concatenate([start, ids], 1), jnp.concatenate([weights[:, :1], inside], 1)

    def refusal(self, system: System) -> str | None:
        if not self.vocab.extra:
            return "this vocabulary has no tokens of languages; prepare the text with --sentinels N"
        return super().refusal(system)


def limit_of(value: BackTranslation, count: int, encoder: slots.Encoder) -> int:
    """Returns the most tokens of a translation of `count` tokens, within the encoder's limit."""
    longest = int(value.grow * count + value.more)
    return longest if encoder.limit is None else min(longest, encoder.limit)


def _pad(vocab: Vocab) -> int:
    return 0 if vocab.pad is None else vocab.pad


def _column(languages: Array | None, text: Array) -> Array:
    """Returns the language of each row, [B], of the first of its tokens."""
    return jnp.zeros(len(text), jnp.int32) if languages is None else languages[:, 0]


def _source(ids: Array, real: Array, language: Array) -> dict[str, Array]:
    """Returns the fields of rows of one text each."""
    segments = real.astype(jnp.int32)
    places = jnp.arange(ids.shape[1], dtype=jnp.int32)
    return {
        "input_ids": ids,
        "segment_ids": segments,
        "positions": places * segments,
        "language_ids": language[:, None] * segments,
    }
