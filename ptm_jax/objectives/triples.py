"""Losses of triples as texts: KEPLER's knowledge embeddings and LIBERT's lexical relations."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from ptm_jax.core import slots
from ptm_jax.core.batch import rows_of
from ptm_jax.core.streams import named
from ptm_jax.core.towers import Tower
from ptm_jax.core.types import Batch, Encoded, Loss
from ptm_jax.objectives.base import OnePass, binary_loss, blind, encode_view, token_loss


@dataclasses.dataclass(frozen=True, kw_only=True)
class KE(OnePass):
    """-log sigma(gamma - d(h, t)) - log sigma(d(h', t') - gamma), d(h, t) = |h + r - t|, with entities encoded from their
    descriptions (Wang et al. 2021, arXiv 1911.06136, Eq. 3 to 5 with one negative).

    Reads the views `head`, `tail` and `other`, `relation` and `other_side` [B] (`data.rows.graphs.WithDescribedTriple`). An
    entity is the state of the first token of its description; the head `relations` gives the vectors of relations. A row of
    padding weighs 0. `ke_order` is the share of true triples that are nearer than the wrong one.
    """

    tower: str = "main"
    head: str = "relations"
    gamma: float = 4.0

    def of(self, tower: Tower, encoded: Encoded, batch: Batch) -> Loss:
        first = lambda name: encode_view(tower, batch, name).hidden[:, 0].astype(jnp.float32)
        h, t, other = map(first, ("head", "tail", "other"))
        r = tower.head(self.head, batch["relation"], h)
        distance = lambda h, t: jnp.abs(h + r - t).sum(-1)
        tail = batch["other_side"][:, None] > 0
        true, wrong = distance(h, t), distance(jnp.where(tail, h, other), jnp.where(tail, other, t))
        weights = (batch["head_segment_ids"] > 0).any(1).astype(jnp.float32)
        nll = jax.nn.softplus(true - self.gamma) + jax.nn.softplus(self.gamma - wrong)
        return token_loss(nll, weights, true < wrong, "ke_nll")

    def refusal(self, system: Any) -> str | None:
        encoder = slots.encoder_of(system, self.tower)
        if encoder is not None and encoder.direction != "bidirectional":
            return f"KE reads an entity from its text's first token, and this encoder is {encoder.direction}; take BERT's"
        return None


@dataclasses.dataclass(frozen=True, kw_only=True)
class LRC(OnePass):
    """Whether a pair of words is in a lexical relation, from the pooled first token of [CLS] w1 [SEP] w2 [SEP] (Lauscher
    et al. 2020, arXiv 1909.02339, Eq. 2). Reads `lexical_input_ids` [B, 3, S], of which the first is true. Heads
    `pool`, `lrc`."""

    tower: str = "main"
    head: str = "lrc"
    pool: str = "pool"

    def of(self, tower: Tower, encoded: Encoded, batch: Batch) -> Loss:
        fields = {
            f: batch[f"lexical_{f}"] for f in ("input_ids", "segment_ids", "token_type_ids") if f"lexical_{f}" in batch
        }
        count, pairs, _ = fields["input_ids"].shape
        view = {name: value.reshape(count * pairs, -1) for name, value in fields.items()}
        view["rows"] = (rows_of(batch)[:, None] * pairs + jnp.arange(pairs)).reshape(-1)
        key = batch.get("noise")
        states = tower(view, None if key is None else named(key, "lexical")).hidden
        scores = tower.head(self.head, tower.head(self.pool, states))
        right = jnp.tile(jnp.arange(pairs) == 0, count)
        return binary_loss(scores, right, (view["segment_ids"] > 0).any(1).astype(jnp.float32), "lrc_nll")

    def refusal(self, system: Any) -> str | None:
        encoder = slots.encoder_of(system, self.tower)
        if encoder is not None and encoder.reads_source:
            return "LRC reads a pair from the first token of its text, and this encoder is a decoder; take BERT's"
        return blind(system, self.tower, self.pool)
