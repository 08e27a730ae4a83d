"""Losses of triples as texts: KEPLER's embeddings, KG-BERT's classes, LIBERT's word relations."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Literal

import jax
import jax.numpy as jnp

from ptm_jax.core import slots
from ptm_jax.core.batch import rows_of
from ptm_jax.core.streams import named
from ptm_jax.core.towers import Tower
from ptm_jax.core.types import Array, Batch, Encoded, Loss
from ptm_jax.objectives.base import OnePass, binary_loss, blind, encode_view, token_loss
from ptm_jax.objectives.text.sentence_pairs import NSP
from ptm_jax.objectives.vectors.vector_traits import ScoresTriples

if TYPE_CHECKING:
    from ptm_jax.core.system import System


@dataclasses.dataclass(frozen=True, kw_only=True)
class KE(OnePass, ScoresTriples):
    """Scores triples whose entities are encoded from their descriptions.

    Wang et al. 2021, arXiv 1911.06136, Eq. 3 to 5: -log sigma(gamma - d(h, t)) - sum_i 1/n log
    sigma(d(h'_i, t'_i) - gamma), d(h, t) = |h + r - t|.
    `data.rows.knowledge.graphs.WithDescribedTriple` writes what it reads:

        described [B, 2 + n, S]    texts of head, tail, n/2 wrong heads and n/2 wrong tails
                                   (`_input_ids`, `_segment_ids`)
        relation [B]               number of the relation, whose vector the head `relations` gives
        relation [B, S]            text of the relation: its vector takes the place of the head's
                                   (KEPLER-Rel)
        conditioned [B, 2, S]      head and tail each with the text of the relation (KEPLER-Cond):
                                   they stand for the entities of wrong triples, and a true triple
                                   has the mean of d(h_r, t) and d(h, t_r)

    An entity is the state of the first token of its text. A row of padding weighs 0. `ke_accuracy`
    is the share of wrong triples that are farther than the true one.

    norm   order of the norm: 1 in the paper, 2 in the published code (THU-KEG/KEPLER,
           fairseq/models/roberta/model.py)

    The published code halves the loss, which the paper does not.
    """

    tower: str = "main"
    head: str = "relations"
    gamma: float = 4.0
    norm: Literal[1, 2] = 1

    triples = "descriptions"

    def distance(self, h: Array, r: Array, t: Array) -> Array:
        """Returns |h + r - t| [..] of vectors [.., D]."""
        apart = h + r - t
        return (
            jnp.abs(apart).sum(-1)
            if self.norm == 1
            else jnp.sqrt(jnp.square(apart).sum(-1) + 1e-12)
        )

    def of(self, tower: Tower, encoded: Encoded, batch: Batch) -> Loss:
        entities = first_states(tower, batch, "described")
        h, t, wrong = entities[:, 0], entities[:, 1], entities[:, 2:]
        if "relation_input_ids" in batch:
            r = encode_view(tower, batch, "relation").hidden[:, 0].astype(jnp.float32)
        else:
            r = tower.head(self.head, batch["relation"], h)
        relation_vectors = (
            first_states(tower, batch, "conditioned")
            if "conditioned_input_ids" in batch
            else entities
        )
        hr, tr = relation_vectors[:, 0], relation_vectors[:, 1]
        true = (self.distance(hr, r, t) + self.distance(h, r, tr)) / 2
        heads, tails = jnp.split(wrong, 2, 1)

        def one(x):
            return x[:, None]

        far = jnp.concatenate(
            [self.distance(heads, one(r), one(tr)), self.distance(one(hr), one(r), tails)], 1
        )
        weights = (batch["described_segment_ids"][:, 0] > 0).any(1).astype(jnp.float32)
        nll = jax.nn.softplus(true - self.gamma) + jax.nn.softplus(self.gamma - far).mean(1)
        return token_loss(nll, weights, (true[:, None] < far).mean(1), "ke_nll")

    def refusal(self, system: System) -> str | None:
        encoder = slots.encoder_of(system, self.tower)
        if encoder is not None and encoder.direction != "bidirectional":
            return (
                "KE reads an entity from its text's first token, and this encoder is "
                f"{encoder.direction}; take BERT's"
            )
        return None


def first_states(tower: Tower, batch: Batch, name: str) -> Array:
    """Returns the states [B, M, D] float32 of the first tokens of texts.

    The texts are `{name}_input_ids` [B, M, S].
    """
    rows, many, _ = batch[f"{name}_input_ids"].shape
    flat = {
        field: batch[f"{name}_{field}"].reshape(rows * many, -1)
        for field in ("input_ids", "segment_ids")
    }
    flat["rows"] = (rows_of(batch)[:, None] * many + jnp.arange(many)).reshape(-1)
    key = batch.get("noise")
    states = tower(flat, None if key is None else named(key, name)).hidden[:, 0]
    return states.reshape(rows, many, -1).astype(jnp.float32)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TripleTruth(NSP, ScoresTriples):
    """Cross-entropy of whether a row's triple is true, from the pooled first token.

    Yao et al. 2019, arXiv 1909.03193, Eq. 1 and 2, as a softmax of two classes. Reads
    `triple_label` [B] (`corruptions.knowledge.triples.TripleText`); heads `pool`, `nsp`.
    """

    label: str = "triple_label"
    name: str = "triple"

    triples = "texts"


@dataclasses.dataclass(frozen=True, kw_only=True)
class PairRelation(NSP, ScoresTriples):
    """Cross-entropy of the relation of a pair of entities, from the pooled first token.

    Yao et al. 2019, arXiv 1909.03193, Eq. 3 and 4. Reads `relation_label` [B]
    (`corruptions.knowledge.triples.EntityPairs`); heads `pool`, `nsp`.
    """

    label: str = "relation_label"
    name: str = "relation"

    triples = "pairs"


@dataclasses.dataclass(frozen=True, kw_only=True)
class LRC(OnePass):
    """Classifies whether two words are in a lexical relation, from the pooled first token.

    The text is [CLS] w1 [SEP] w2 [SEP] (Lauscher et al. 2020, arXiv 1909.02339, Eq. 2). Reads
    `lexical_input_ids` [B, 3, S]; the first pair of each row is true. Heads `pool`, `lrc`.
    """

    tower: str = "main"
    head: str = "lrc"
    pool: str = "pool"

    def of(self, tower: Tower, encoded: Encoded, batch: Batch) -> Loss:
        fields = {
            f: batch[f"lexical_{f}"]
            for f in ("input_ids", "segment_ids", "token_type_ids")
            if f"lexical_{f}" in batch
        }
        count, pairs, _ = fields["input_ids"].shape
        view = {name: value.reshape(count * pairs, -1) for name, value in fields.items()}
        view["rows"] = (rows_of(batch)[:, None] * pairs + jnp.arange(pairs)).reshape(-1)
        key = batch.get("noise")
        states = tower(view, None if key is None else named(key, "lexical")).hidden
        scores = tower.head(self.head, tower.head(self.pool, states))
        right = jnp.tile(jnp.arange(pairs) == 0, count)
        return binary_loss(
            scores, right, (view["segment_ids"] > 0).any(1).astype(jnp.float32), "lrc_nll"
        )

    def refusal(self, system: System) -> str | None:
        encoder = slots.encoder_of(system, self.tower)
        if encoder is not None and encoder.reads_source:
            return (
                "LRC reads a pair from the first token of its text, and this encoder is a "
                "decoder; take BERT's"
            )
        return blind(system, self.tower, self.pool)
