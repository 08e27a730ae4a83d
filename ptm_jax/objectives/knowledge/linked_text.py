"""Language modelling in which a token may name an entity of a graph (KGLM)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from ptm_jax.core.batch import rows_of, segments_of
from ptm_jax.core.streams import named, row_keys
from ptm_jax.core.towers import Tower
from ptm_jax.core.types import Array, Batch, Encoded, Loss, Ratio
from ptm_jax.objectives.base import next_memory, token_loss
from ptm_jax.objectives.knowledge.entities import needs
from ptm_jax.objectives.text.language import RegularisedLM, followers

if TYPE_CHECKING:
    from ptm_jax.core.system import System


NEVER = -1e9


@dataclasses.dataclass(frozen=True, kw_only=True)
class LinkedText(RegularisedLM):
    """-log p(text, entities) of a text with known entities, and -log q of a proposal.

    Logan et al. 2019, arXiv 1906.07241, Eq. 3. q is the distribution of the entities in a second
    tower `proposal`, which has also read the token (section 4.2: the discriminative model).

    A token has no entity, a new entity, or an entity related to a `parent`, the entity of an
    earlier token of its document:

        p(e) = p(new) p(e | new) + p(related) sum_c p(parent c)
               sum_r p(r | c) [(c, r, e) is a fact] / (number of tails of c and r)
        p(x | e)    over the words and the tokens of the entity's name; a token of the name is a
                    second way to write its word

    Relation 0 leads from an entity to itself. Kinds, parents and relations are summed over; in the
    paper they are annotated. `nll` is the loss of tokens and entities, `entity_nll` the loss of
    entities alone. `activation` and `change` weight the penalties of `RegularisedLM` on the states.

    Reads for each row (`corruptions.knowledge.linked_text.LinkedNames`):

        linked_entities, linked_segments  [B, C]        candidates and their segments
        linked_names                      [B, C, A]     their names, ids + 1; 0 at the end
        linked_facts                      [B, C, F, 2]  their facts, relation and tail; 0: none
        linked                            [B, L]        candidate + 1 of a token; 0: none
    """

    activation: float = 0.0
    change: float = 0.0
    head: str = "linked"
    proposal: str = "proposal"

    def __call__(self, towers: Mapping[str, Tower], batch: Batch, key: Array) -> Loss:
        tower, other = towers[self.tower], towers[self.proposal]
        encoded = tower(batch, key)
        guessed = other(batch, None if key is None else named(key, self.proposal))
        loss, weights, linked = (
            self._joint(tower, encoded, batch),
            followers(batch),
            batch["linked"][:, 1:],
        )
        logs = entity_logs(
            other.head(self.head, guessed.hidden[:, 1:], batch["linked_entities"]), batch
        )
        guess = token_loss(
            -_chosen(logs(mentioned(linked, batch)), linked), weights, name="proposal_nll"
        )
        both = Loss(loss.sum + guess.sum, loss.weight, {**loss.metrics, **guess.metrics})
        return dataclasses.replace(
            self.penalised(both, encoded, batch), carry=next_memory(tower, encoded, batch)
        )

    def of(self, tower: Tower, encoded: Encoded, batch: Batch) -> Loss:
        return self.penalised(self._joint(tower, encoded, batch), encoded, batch)

    def _joint(self, tower: Tower, encoded: Encoded, batch: Batch) -> Loss:
        """-log p of tokens and entities."""
        linked, weights = batch["linked"][:, 1:], followers(batch)
        entities, words = _parts(tower, self.head, encoded, batch, linked)
        entity = -_chosen(entities(mentioned(linked, batch)), linked)
        loss = token_loss(entity - words, weights, name="nll")
        return dataclasses.replace(
            loss, metrics={**loss.metrics, **token_loss(entity, weights, name="entity_nll").metrics}
        )

    def refusal(self, system: System) -> str | None:
        if self.proposal not in system.towers:
            return f"LinkedText trains a second tower {self.proposal!r}; add it"
        return super().refusal(system) or needs(system, "LinkedNames", "entity of each token")


def _parts(tower: Tower, head: str, encoded: Encoded, batch: Batch, linked: Array):
    """Returns (`entity_logs` of the tokens but the first, log p(x | e) [B, T] for the candidates
    `linked` [B, T])."""
    index = jnp.maximum(linked - 1, 0)

    def pick(name):
        return jnp.take_along_axis(
            batch[name], index.reshape(*index.shape, *(1,) * (batch[name].ndim - 2)), 1
        )

    ids = jnp.where(linked > 0, pick("linked_entities"), 0)
    names = jnp.where((linked > 0)[..., None], pick("linked_names"), 0)
    inputs = encoded.hidden[:, :-1], batch["linked_entities"], ids, jnp.maximum(names - 1, 0)
    choices, readout, copies = tower.head(head, *inputs)
    return entity_logs(choices, batch), _written(readout, copies, names, batch["input_ids"][:, 1:])


def _written(readout: Any, copies: Array, names: Array, words: Array) -> Array:
    """log p(x | e): the word among words and the tokens `names` [B, T, A] (ids + 1) of the
    entity."""
    logits = readout.logits()
    total = jax.nn.logsumexp(logits, -1)
    copies = jnp.where(names > 0, copies, NEVER)
    word_logit = jnp.take_along_axis(logits, words[..., None], -1)[..., 0]
    copied = jax.nn.logsumexp(jnp.where(names == words[..., None] + 1, copies, NEVER), -1)
    return jnp.logaddexp(word_logit, copied) - jnp.logaddexp(total, jax.nn.logsumexp(copies, -1))


def entity_logs(choices: Any, batch: Batch):
    """Returns a function that gives the log-probabilities of entities, [B, T, 1 + C].

    It reads `known` [B, T, C], whether a candidate was mentioned before each token but the first.
    The numbers are for no entity and each candidate; NEVER for candidates of other documents.
    """
    entities, facts = batch["linked_entities"], batch["linked_facts"]
    itself = jnp.stack([jnp.zeros_like(entities), entities], -1)[:, :, None]
    facts = jnp.concatenate([itself, facts], 2)  # [B, C, F + 1, 2]
    present = facts[..., 1] > 0
    alike = (facts[..., :, None, 0] == facts[..., None, :, 0]) & present[..., None, :]
    # p(r | c) over the distinct relations of c, then uniform over tails: every fact has its share
    # of its relation
    share = jnp.log(jnp.maximum(alike.sum(-1), 1).astype(jnp.float32))
    rows = jnp.arange(len(entities))[:, None, None]
    relations = jnp.moveaxis(choices.relations, 1, 2)[rows, facts[..., 0]]  # [B, C, F + 1, T]
    of_fact = jax.nn.softmax(jnp.where(present[..., None], relations - share[..., None], NEVER), 2)
    leads = (facts[..., 1][..., None] == entities[:, None, None]) & present[
        ..., None
    ]  # [B, C, F + 1, C]
    to = jnp.einsum("bcft,bcfd->btcd", of_fact, leads.astype(jnp.float32))
    inside = batch["linked_segments"][:, None] == segments_of(batch)[:, 1:, None]
    open_ = inside & (entities > 0)[:, None]
    new = jax.nn.log_softmax(jnp.where(jnp.arange(choices.new.shape[-1]) > 0, choices.new, NEVER))
    new = jnp.take_along_axis(new, jnp.broadcast_to(entities[:, None], open_.shape), -1)

    def logs(known: Array) -> Array:
        known = known & open_
        related = known.any(-1, keepdims=True)
        types = choices.types.at[..., 2].add(jnp.where(related[..., 0], 0.0, NEVER))
        types = jax.nn.log_softmax(types)
        parents = jax.nn.softmax(jnp.where(known, choices.parents, NEVER)) * related
        reached = jnp.einsum("btc,btcd->btd", parents, to)
        by_relation = jnp.where(reached > 0, jnp.log(jnp.where(reached > 0, reached, 1.0)), NEVER)
        each = jnp.logaddexp(types[..., 1:2] + new, types[..., 2:] + by_relation)
        return jnp.concatenate([types[..., :1], jnp.where(open_, each, NEVER)], -1)

    return logs


def mentioned(linked: Array, batch: Batch) -> Array:
    """Returns which candidates were mentioned before each token, [B, T, C].

    The tokens' candidates + 1 are [B, T].
    """
    each = linked[..., None] == jnp.arange(1, batch["linked_entities"].shape[1] + 1)
    return (jnp.cumsum(each, 1) - each) > 0


def _chosen(logs: Array, linked: Array) -> Array:
    return jnp.take_along_axis(logs, linked[..., None], -1)[..., 0]


def sampled_nll(
    objective: LinkedText, towers: Mapping[str, Tower], batch: Batch, key: Array, samples: int = 100
):
    """Returns -log p(text) of every row [B] in nats, by importance sampling.

    Logan et al. 2019, section 4.2. p(text) is estimated by the mean of p(text, entities) /
    q(entities | text) over `samples` draws of the entities from the proposal. The estimate is
    unbiased if the row's candidates include all possible entities of its tokens; otherwise it is
    too low.
    """
    tower, other, weights = towers[objective.tower], towers[objective.proposal], followers(batch)
    encoded, head = tower(batch), objective.head
    choices = other.head(head, other(batch).hidden[:, 1:], batch["linked_entities"])
    size, guess = batch["linked_entities"].shape[1], entity_logs(choices, batch)
    noise = jax.vmap(lambda key: jax.random.gumbel(key, (weights.shape[1], 1 + size)))

    def sample(key: Array) -> Array:
        draws = jnp.moveaxis(noise(row_keys(key, rows_of(batch))), 1, 0)

        def step(linked, now):
            place, draw = now
            logs = guess(mentioned(linked, batch))[:, place]
            one = jnp.where(weights[:, place] > 0, (logs + draw).argmax(-1), 0)
            return linked.at[:, place].set(one), jnp.take_along_axis(logs, one[:, None], 1)[:, 0]

        empty = jnp.zeros(weights.shape, jnp.int32)
        linked, logs = jax.lax.scan(step, empty, (jnp.arange(weights.shape[1]), draws))
        entities, words = _parts(tower, head, encoded, batch, linked)
        joint = _chosen(entities(mentioned(linked, batch)), linked) + words
        return ((joint - logs.T) * weights).sum(1)

    ratios = jax.lax.map(sample, jax.random.split(key, samples))
    return jnp.log(float(samples)) - jax.nn.logsumexp(ratios, 0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SampledText(LinkedText):
    """-log p(text) without its entities: the perplexity of KGLM.

    Every row is estimated by importance sampling (`sampled_nll`).

    samples   draws of the entities of a row: 100 in the published code
              (kglm/commands/evaluate_perplexity.py)

    It serves to evaluate a run of `LinkedText`. The published code samples the entities of all text
    at once: its estimate varies more.
    """

    samples: int = 100

    def __post_init__(self):
        if self.samples < 1:
            raise ValueError(f"samples is {self.samples}; it must be at least 1")

    def __call__(self, towers: Mapping[str, Tower], batch: Batch, key: Array) -> Loss:
        tower, count = towers[self.tower], followers(batch).sum()
        total = sampled_nll(self, towers, batch, key, self.samples).sum()
        memory = next_memory(tower, tower(batch), batch)
        return Loss(total, count, {"nll": Ratio(total, count)}, memory)
