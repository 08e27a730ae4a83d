"""Language modelling over spans, words or entity names, summed over all segmentations (LRLM)."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

from ptm_jax.core.batch import segments_of
from ptm_jax.core.towers import Tower
from ptm_jax.core.types import Array, Batch, Encoded, Loss
from ptm_jax.objectives.base import token_loss
from ptm_jax.objectives.knowledge.entities import needs
from ptm_jax.objectives.text.language import LM, followers

if TYPE_CHECKING:
    from ptm_jax.core.system import System


NEVER = -1e9


@dataclasses.dataclass(frozen=True, kw_only=True)
class LatentRelations(LM):
    """-log p(text), summed over all segmentations of the text into spans.

    Hayashi et al. 2020, arXiv 1908.07690, Eq. 2 to 4. The forward algorithm computes the sum. A
    span is one of two kinds, with h the state of the token before the span:

        a word                                         p(word) p(x | h)
        a name of an entity of the row's graph         p(relation) p(e | h)

    Reads `span_entities` [B, L, N] and `graph_entities` [B, C]
    (`corruptions.knowledge.entities.GraphOfText`). The heads are `lm`, `latent` with the logit of a
    relation, and `entities` with scores of candidates. `nll` is the mean over tokens, comparable
    with a language model's.
    """

    gate: str = "latent"
    entities: str = "entities"

    def of(self, tower: Tower, encoded: Encoded, batch: Batch) -> Loss:
        states, weights = encoded.hidden[:, :-1], followers(batch)
        words = -tower.head(self.head, states).nll(batch["input_ids"][:, 1:])
        gate = tower.head(self.gate, states)[..., 0].astype(jnp.float32)
        graph, spans = batch["graph_entities"], batch["span_entities"][:, 1:]
        asked = jnp.broadcast_to(graph[:, None], (*states.shape[:2], graph.shape[1]))
        scores = jnp.where(asked > 0, tower.head(self.entities, states, asked), NEVER)
        scores = jax.nn.log_softmax(scores)
        same = (spans[..., None] == graph[:, None, None]) & (spans > 0)[..., None]
        named = jnp.where(same, scores[:, :, None], 0.0).sum(-1)
        present = same.any(-1) & (weights > 0)[..., None]
        relations = jnp.where(present, jax.nn.log_sigmoid(gate)[..., None] + named, NEVER)
        logs = forward(jax.nn.log_sigmoid(-gate) + words, relations, weights)
        segments = segments_of(batch)
        last = jnp.pad(segments[:, 1:] != segments[:, :-1], ((0, 0), (0, 1)), constant_values=True)[
            :, 1:
        ]
        total = -jnp.where(last & (weights > 0), logs, 0.0).sum()
        loss = token_loss(jnp.zeros_like(weights), weights, name="nll")
        metrics = {"nll": dataclasses.replace(loss.metrics["nll"], sum=total)}
        return Loss(total, loss.weight, metrics)

    def refusal(self, system: System) -> str | None:
        return super().refusal(system) or needs(system, "GraphOfText", "graph of the text")


def forward(words: Array, relations: Array, weights: Array) -> Array:
    """Returns the log-probability of the text up to and including each token, [B, T].

    words        [B, T] log-probability of the token as a word, given the text before
    relations    [B, T, N] log-probability of the name of n tokens that begins at it, likewise

    A token of weight 0 starts a new text, with probability 1.
    """
    spans = relations.shape[-1]

    # by the last token of a name: it began n - 1 tokens earlier
    def later(names, n):
        return jnp.pad(names[:, : names.shape[1] - n], ((0, 0), (n, 0)), constant_values=NEVER)

    ends = [later(relations[..., n], n) for n in range(spans)]

    def step(past, now):
        """past [B, N]: the logs before the last 1, 2, ... tokens."""
        word, ends, weight = now
        log = jnp.logaddexp(past[:, 0] + word, jax.nn.logsumexp(past + ends, -1))
        log = jnp.where(weight > 0, log, 0.0)
        past = jnp.where(
            (weight > 0)[:, None], past, NEVER
        )  # no name reaches over the beginning of a text
        return jnp.concatenate([log[:, None], past[:, :-1]], -1), log

    first = jnp.full((len(words), spans), NEVER).at[:, 0].set(0.0)
    _, logs = jax.lax.scan(step, first, (words.T, jnp.stack(ends, -1).swapaxes(0, 1), weights.T))
    return logs.T
