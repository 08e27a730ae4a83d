"""Sets the attention order: mask mixtures, permutations, pseudo masks (survey 3.1.1 to 3.1.3)."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Literal

import jax
import jax.numpy as jnp

from ptm_jax.core import slots
from ptm_jax.core.batch import put, rows_of, segments_of
from ptm_jax.core.errors import Advised
from ptm_jax.core.streams import named
from ptm_jax.core.types import Array, Batch, Vocab
from ptm_jax.corruptions.base import (
    best,
    budget,
    capacity,
    check_shares,
    draws,
    hide,
    is_special,
    maskable,
    places,
    stretches,
)
from ptm_jax.corruptions.compact import pad_of
from ptm_jax.corruptions.masking.units import NGrams, draw_lengths

if TYPE_CHECKING:
    from ptm_jax.core.system import System


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaskMixture(slots.Corruption):
    """Draws one of UniLM's attention masks for each row (Dong et al. 2019, sections 2.3, 2.4).

    Writes `order` [B, L]: 0 for bidirectional rows, the position for causal rows, its negative for
    backward rows, and for seq2seq rows 0 on the source and 1, 2, ... on the target. If a document
    has token types 0 and 1, the target is its second part. Otherwise it is cut at a random position
    (deviation: UniLM's source and target are always two text segments with a [SEP] between).

    With `types`, `token_type_ids` mark the kinds as in microsoft/unilm (`new_segment_ids`): 0 and 1
    bidirectional, 2 causal, 3 backward, 4 source and 5 target. Only bidirectional rows, with all
    orders 0, are used for NSP.
    """

    bidirectional: float = 1 / 3
    seq2seq: float = 1 / 3
    causal: float = 1 / 6
    backward: float = 1 / 6
    types: bool = True

    def __post_init__(self):
        if min(self.shares) < 0 or abs(sum(self.shares) - 1) > 1e-6:
            raise ValueError(
                f"the shares of the four kinds of mask are {self.shares}; they must add up to 1"
            )

    @property
    def shares(self) -> tuple[float, float, float, float]:
        """Returns the shares of bidirectional, seq2seq, causal and backward rows."""
        return self.bidirectional, self.seq2seq, self.causal, self.backward

    @property
    def left_to_right(self) -> bool:
        return self.causal == 1.0

    def refusal(self, system: System) -> str | None:
        encoder = slots.encoder_of(system)
        if self.types and encoder is not None and (types := encoder.types) < 6:
            what = f"MaskMixture writes 6 token types, the encoder has {types}"
            return f"{what}; give its embeddings Types(6), or set corruption.types=False"
        return disobeys(system, "MaskMixture")

    def __call__(self, key: Array, batch: Batch) -> Batch:
        rows, segments = rows_of(batch), segments_of(batch)
        slots = jnp.broadcast_to(jnp.arange(segments.shape[1], dtype=jnp.int32), segments.shape)
        second = batch.get("token_type_ids", jnp.zeros_like(segments))
        kind = draw_lengths(named(key, "kind"), rows, 1, self.shares) - 1
        cut = _cuts(draws(named(key, "cut"), rows, segments.shape[1]), segments, second > 0)
        target = slots >= cut
        orders = jnp.zeros_like(slots), jnp.where(target, slots - cut + 1, 0), slots, -slots
        # Padding has order 0, so that it sees at least one token under every mask: its softmax
        # stays finite.
        order = jnp.where(
            segments > 0, jnp.select([kind == n for n in range(3)], orders[:3], orders[3]), 0
        )
        out = {**batch, "order": order.astype(jnp.int32)}
        if self.types:
            numbers = second, 4 + target, jnp.full_like(slots, 2), jnp.full_like(slots, 3)
            numbers = jnp.select([kind == n for n in range(3)], numbers[:3], numbers[3])
            out["token_type_ids"] = jnp.where(segments > 0, numbers, 0).astype(jnp.int32)
        return out


@dataclasses.dataclass(frozen=True, kw_only=True)
class LeftToRight(slots.Corruption):
    """Writes a causal `order` [B, L], so that `LM` trains a bidirectional encoder.

    For a first phase of causal language modelling (Gisserot-Boukhlef et al. 2025, arXiv
    2507.00994). Padding has order 0. The tokens are unchanged.
    """

    left_to_right = True

    def refusal(self, system: System) -> str | None:
        return disobeys(system, "LeftToRight")

    def __call__(self, key: Array, batch: Batch) -> Batch:
        segments = segments_of(batch)
        places = jnp.broadcast_to(jnp.arange(segments.shape[1], dtype=jnp.int32), segments.shape)
        return {**batch, "order": jnp.where(segments > 0, places, 0)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class PermutationOrder(slots.Corruption):
    """XLNet's factorisation order with partial prediction of 1/k of the tokens.

    Yang et al. 2019, 2.3, 3.1.

    Draws spans of 1 to `longest` tokens, p(n) ~ 1/n as in zihangdai/xlnet, each at a random
    position in a context of k * n tokens. Spans end at special tokens and at the document's end.
    Single tokens fill up to exactly round(n / k).

    Writes `order` [B, L]: 0 on tokens that are not predicted, then 1, 2, ... on the targets in
    random order. The content stream sees ranks up to its own; the query stream (`strict`) sees
    lower ranks only. Also writes `plm_positions`, `plm_labels` [B, P] int32, `plm_weights` [B, P]
    float32 with P = ceil(L / k). The tokens are unchanged.

    specials    "first": [CLS] and [SEP] have rank 0: all tokens see them, and they see all tokens
                of rank 0. "ranked": as in zihangdai/xlnet, they have a random rank among the
                targets, see lower ranks, and are seen only by higher ranks, never by tokens that
                are not predicted
    blocks      number of parts of the row that are permuted separately, in sequence (2 in
                zihangdai/xlnet: the first half can then be the next row's memory)
    """

    vocab: Vocab
    k: int = 6
    longest: int = 5
    specials: Literal["first", "ranked"] = "first"
    blocks: int = 1

    def __post_init__(self):
        if min(self.k, self.longest, self.blocks) < 1:
            raise ValueError(
                f"k {self.k}, longest {self.longest} and blocks {self.blocks} must be at least 1"
            )
        if self.specials not in ("first", "ranked"):
            raise ValueError(f"specials is {self.specials!r}; it must be 'first' or 'ranked'")

    def refusal(self, system: System) -> str | None:
        return disobeys(system, "PermutationOrder")

    def __call__(self, key: Array, batch: Batch) -> Batch:
        ids, rows = batch["input_ids"], rows_of(batch)
        length = ids.shape[1]
        limit = capacity(length, 1 / self.k)
        allowed = maskable(batch, self.vocab)
        count = budget(allowed.sum(1), 1 / self.k, limit)
        spans = self._spans(key, rows, allowed, stretches(batch, allowed), count, limit=limit)
        single = draws(named(key, "single"), rows, length)
        positions, weights = best(
            jnp.where(spans, 2.0, jnp.where(allowed, single, -1.0)), count, limit
        )
        ranked = put(jnp.zeros_like(allowed), positions, weights, True)
        if self.specials == "ranked":
            ranked |= is_special(ids, self.vocab) & (segments_of(batch) > 0)
        drawn = jnp.where(ranked, draws(named(key, "order"), rows, length), 2.0)
        rank = jnp.where(ranked, jnp.argsort(jnp.argsort(drawn, 1), 1) + 1, 0)
        part = jnp.arange(length) * self.blocks // length
        return {
            **batch,
            "order": (rank + part * (length + 1)).astype(jnp.int32),
            "plm_positions": positions,
            "plm_labels": jnp.take_along_axis(ids, positions, 1),
            "plm_weights": weights,
        }

    def _spans(self, key, rows, allowed, runs, count, *, limit) -> Array:
        """Returns True inside the spans, [B, L]: at most `count` tokens of a row."""
        shares = [1 / n for n in range(1, self.longest + 1)]
        sizes = draw_lengths(
            named(key, "lengths"), rows, limit, tuple(share / sum(shares) for share in shares)
        )
        before = jnp.cumsum(sizes, 1) - sizes
        sizes = jnp.maximum(jnp.minimum(sizes, count[:, None] - before), 0)
        room = sizes * (self.k - 1) + 1
        begins = before * self.k + jnp.floor(
            draws(named(key, "begins"), rows, limit) * room
        ).astype(jnp.int32)
        # `begins` is a rank among the allowed tokens. A rank beyond the last one gives no span.
        rank, length = jnp.cumsum(allowed, 1) - 1, allowed.shape[1]
        at = jax.vmap(
            lambda where, size: jnp.zeros(length, jnp.int32).at[where].max(size, mode="drop")
        )(begins, sizes)
        size = jnp.where(allowed, jnp.take_along_axis(at, jnp.maximum(rank, 0), 1), 0)
        slots = jnp.arange(length)
        stop = jax.lax.cummax(jnp.where(size > 0, slots + size, 0), axis=1)
        run = jax.lax.cummax(jnp.where(size > 0, runs, 0), axis=1)
        return allowed & (slots < stop) & (runs == run)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PseudoMasks(slots.Corruption):
    """UniLMv2's pseudo-masked language model (Bao et al. 2020).

    It predicts by autoencoding and partially autoregressively in one pass.

    Blocks are drawn until `rate` of the tokens is used (Algorithm 1). A block has 2 to `longest`
    tokens (uniform) with probability `spans`, else one token. The factorisation order is the order
    in which blocks were drawn. The chosen tokens are masked in the row ([M]: 80% [MASK], 10%
    random, 10% kept). P = ceil(rate * L) pseudo masks [P] and then the P original tokens are
    appended, with the `positions` and `places` of the chosen tokens (Figure 3). The row grows from
    L to L + 2P. Visibility inside a document, where s is the step that predicts a block (Figure 4):

        context and [M]     see context and [M]
        tokens of step s    see context and [M], the tokens of steps 1..s
        [P] of step s       see context and [M], the tokens of steps 1..s-1, the [P] of step s
        a [P]               is seen by the [P] of its step only

    Writes the extended `input_ids`, `segment_ids`, `positions`, `places`, and `token_type_ids` if
    the batch has them; `order`, `key_order` (the same) and `group`, see `core.types.Visibility`;
    `mlm_*` at [M], `plm_*` at [P].

    `pseudo` is the id of [P]; None: [MASK]. Deviation: a block that overlaps a chosen one is
    shortened; Algorithm 1 draws another.
    """

    vocab: Vocab
    rate: float = 0.15
    spans: float = 0.4
    longest: int = 6
    mask: float = 0.8
    random: float = 0.1
    pseudo: int | None = None

    def __post_init__(self):
        check_shares(self.rate, self.mask, self.random)
        if not 0 <= self.spans <= 1 or self.longest < 2:
            raise ValueError(
                f"spans is {self.spans} and longest {self.longest}; expected a share, and at "
                "least 2"
            )

    def refusal(self, system: System) -> str | None:
        return disobeys(system, "PseudoMasks")

    def __call__(self, key: Array, batch: Batch) -> Batch:
        ids, segments = batch["input_ids"], segments_of(batch)
        length = ids.shape[1]
        limit = capacity(length, self.rate)
        count = budget(maskable(batch, self.vocab).sum(1), self.rate, limit)
        shares = (1 - self.spans, *[self.spans / (self.longest - 1)] * (self.longest - 1))
        blocks = NGrams(shares=shares, whole_words=False)
        units = blocks.propose(named(key, "choose"), batch, self.vocab, count, limit)
        positions, weights = places(units > 0, limit)
        out = dict(
            hide(key, batch, positions, weights, self.vocab, shares=(self.mask, self.random))
        )
        used = weights > 0
        step = jnp.where(used, jnp.take_along_axis(units, positions, 1), 0)

        def grown(row, pseudo, token):
            return jnp.concatenate(
                [row, jnp.where(used, pseudo, 0), jnp.where(used, token, 0)], 1
            ).astype(jnp.int32)

        slots = jnp.broadcast_to(jnp.arange(length), ids.shape)
        fields = {
            "segment_ids": segments,
            "positions": batch.get("positions", slots),
            "places": batch.get("places", slots),
        }
        if "token_type_ids" in batch:
            fields["token_type_ids"] = batch["token_type_ids"]
        for name, row in fields.items():
            place_in_row = jnp.take_along_axis(row, positions, 1)
            out[name] = grown(row, place_in_row, place_in_row)
        pseudo = self.vocab.mask if self.pseudo is None else self.pseudo
        extended = grown(out["input_ids"], pseudo, out["mlm_labels"])
        out["input_ids"] = jnp.where(out["segment_ids"] > 0, extended, pad_of(self.vocab))
        none = jnp.zeros_like(slots)
        out["order"] = out["key_order"] = grown(none, step - 1, step)
        out["group"] = grown(none, step, 0)
        for name in ("word_starts", "sentences"):
            if name in batch:
                out[name] = grown(batch[name], 0, 0)
        out["plm_positions"] = jnp.where(used, length + jnp.arange(limit, dtype=jnp.int32), 0)
        return {**out, "plm_labels": out["mlm_labels"], "plm_weights": weights}


@dataclasses.dataclass(frozen=True, kw_only=True)
class PseudoTokens(PseudoMasks):
    """`PseudoMasks` with a separate token [P], as in the paper (Bao et al. 2020, section 3.2).

    [P] is `pseudo` if given, else the first id of `vocab.extra`, which a tokenizer with a sentinel
    provides."""

    def __call__(self, key: Array, batch: Batch) -> Batch:
        if self.pseudo is None and not self.vocab.extra:
            raise Advised("this vocabulary has no extra token for [P]", "set tokenizer.sentinels=1")
        pseudo = self.vocab.extra[0] if self.pseudo is None else self.pseudo
        return PseudoMasks.__call__(dataclasses.replace(self, pseudo=pseudo), key, batch)

    def refusal(self, system: System) -> str | None:
        if self.pseudo is None and not self.vocab.extra:
            return (
                "PseudoTokens needs a token for [P], and the vocabulary has no extra one; set "
                "tokenizer.sentinels=1"
            )
        return PseudoMasks.refusal(self, system)


def _cuts(drawn: Array, segments: Array, second: Array) -> Array:
    """Returns the start of the target in each token's document, [B, L]: its second part, else a
    random position inside."""
    slots, length = jnp.arange(segments.shape[1], dtype=jnp.int32), segments.shape[1]
    new = jnp.pad(segments[:, 1:] != segments[:, :-1], ((0, 0), (1, 0)), constant_values=True)
    start = jax.lax.cummax(jnp.where(new, slots, 0), axis=1)
    after = jnp.pad(jnp.where(new, slots, length)[:, 1:], ((0, 0), (0, 1)), constant_values=length)
    stop = jax.lax.cummin(after, axis=1, reverse=True)
    count = jnp.pad(jnp.cumsum(second, 1, dtype=jnp.int32), ((0, 0), (1, 0)))
    count = jnp.take_along_axis(count, stop, 1) - jnp.take_along_axis(count, start, 1)
    drawn = jnp.take_along_axis(drawn, start, 1)
    inside = start + 1 + jnp.floor(drawn * (stop - start - 1)).astype(jnp.int32)
    return jnp.where(count > 0, stop - count, inside)


def disobeys(system: System, name: str) -> str | None:
    """Returns why a system's encoder does not read the `order` of the corruption `name`, or
    None."""
    encoder = slots.encoder_of(system)
    if encoder is not None and encoder.obeys_order:
        return None
    return (
        f"{name} writes who sees whom, which this encoder does not read; take a Transformer, or "
        "another corruption"
    )
