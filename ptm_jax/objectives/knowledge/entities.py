"""Losses of entities in a text: denoising (ERNIE of THU), replaced or not (WKLM)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal, get_args

import jax
import jax.numpy as jnp

from ptm_jax.core import slots
from ptm_jax.core.errors import unknown
from ptm_jax.core.fields import gold_of
from ptm_jax.core.towers import Tower
from ptm_jax.core.types import Batch, Encoded, Loss, Ratio
from ptm_jax.objectives.base import OnePass, binary_loss, corruptions_of, gather, nll_of, token_loss

if TYPE_CHECKING:
    from ptm_jax.core.system import System


Linking = Literal["softmax", "margin"]


def needs(system: System, name: str, what: str) -> str | None:
    """Refuses a system without the corruption `name`, which writes `what`."""
    if any(type(part).__name__ == name for part in corruptions_of(system)):
        return None
    return f"there is no {what}, which {name} writes; add it to corruption"


class EntityLinker(slots.Encoder):
    """Trait: an encoder that links mentions to entities; the scores are in `extra["linking"]`.

    linkers    the modules that link, in order
    """

    linkers: tuple[Any, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class DEA(OnePass):
    """-log p(e) of the entity of every mention, among the entities of its row.

    The prediction reads the state of the mention's first token (Zhang et al. 2019, arXiv
    1905.07129, Eq. 7).

    Reads `entity_positions`, `entity_labels`, `entity_weights` [B, P]
    (`corruptions.knowledge.entities.EntityNoise`). The head `entities` scores candidates [B, P, C].
    `dea_guess` is the loss of a guess among the row's entities.
    """

    tower: str = "main"
    head: str = "entities"

    def of(self, tower: Tower, encoded: Encoded, batch: Batch) -> Loss:
        labels, weights = batch["entity_labels"], batch["entity_weights"]
        states = gather(encoded.hidden, batch["entity_positions"])
        same = (labels[:, :, None] == labels[:, None, :]) & (weights > 0)[:, None, :]
        place = same.argmax(
            -1
        )  # an entity that is mentioned again is the candidate of its first mention
        candidate = (place == jnp.arange(labels.shape[1])) & (weights > 0)
        asked = jnp.broadcast_to(labels[:, None, :], same.shape)
        scores = jnp.where(candidate[:, None, :], tower.head(self.head, states, asked), -1e9)
        nll = jnp.where(weights > 0, nll_of(scores, place), 0.0)
        loss = token_loss(nll, weights, scores.argmax(-1) == place, "dea_nll")
        guess = (jnp.log(jnp.maximum(candidate.sum(1, keepdims=True), 1)) * weights).sum()
        return dataclasses.replace(
            loss, metrics={**loss.metrics, "dea_guess": Ratio(guess, weights.sum())}
        )

    def refusal(self, system: System) -> str | None:
        return needs(system, "EntityNoise", "entity to predict")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ERD(OnePass):
    """Classifies whether the name of each mention was replaced.

    The prediction reads the states of the tokens before and after the mention (Xiong et al. 2019,
    arXiv 1912.09637, Eq. 1). Reads `erd_before`, `erd_after`, `erd_labels`, `erd_weights` [B, P].
    Head `erd`: [B, P, 2 D] to [B, P, 1].
    """

    tower: str = "main"
    head: str = "erd"

    def of(self, tower: Tower, encoded: Encoded, batch: Batch) -> Loss:
        both = [gather(encoded.hidden, batch[f"erd_{side}"]) for side in ("before", "after")]
        scores = tower.head(self.head, jnp.concatenate(both, -1))
        return binary_loss(scores, batch["erd_labels"], batch["erd_weights"], "erd_nll")

    def refusal(self, system: System) -> str | None:
        return needs(system, "EntityReplacement", "replaced name")


@dataclasses.dataclass(frozen=True, kw_only=True)
class EntityLinking(OnePass):
    """The loss of the true entity among the candidates of each mention.

    Peters et al. 2019, arXiv 1909.04164, Eq. 3 and 4. The scores come from linker number `source`
    of the encoder (`extra["linking"]` of `encoders.knowledge.knowbert`).

    loss   "softmax": -log softmax(score)[true], for mentions with the true entity as a candidate.
           "margin": the mean over candidates of max(0, margin - score) for the true entity and
           max(0, margin + score) for the others; mentions count even if no candidate is true
           (allenai/kb, kb/entity_linking.py)

    Reads `gold_of(source)` [B, L], the entity at the first token of every mention: 0: not known,
    -1: none. `linking_guess` is the loss of a guess among the candidates. The metrics of linker 1
    are `linking_1_nll`, and so on.
    """

    tower: str = "main"
    loss: Linking = "softmax"
    margin: float = 0.2
    source: int = 0

    def __post_init__(self):
        if self.loss not in get_args(Linking):
            raise unknown("loss", str(self.loss), get_args(Linking))

    def of(self, tower: Tower, encoded: Encoded, batch: Batch) -> Loss:
        linking = encoded.extra["linking"][self.source]
        scores, candidates = linking["scores"].astype(jnp.float32), linking["candidates"]
        gold = jnp.take_along_axis(batch[gold_of(self.source)], linking["first"], 1)
        true = (candidates == gold[..., None]) & (candidates > 0)
        known = true.any(-1) & linking["used"]
        count, name = (
            (candidates > 0).sum(-1),
            f"linking_{self.source}" if self.source else "linking",
        )
        if self.loss == "softmax":
            place, weights = true.argmax(-1), known.astype(jnp.float32)
            nll = jnp.where(known, nll_of(scores, place), 0.0)
            loss = token_loss(nll, weights, scores.argmax(-1) == place, f"{name}_nll")
        else:
            weights = ((linking["used"] & (gold != 0))[..., None] & (candidates > 0)).astype(
                jnp.float32
            )
            hinge = jax.nn.relu(self.margin - jnp.where(true, scores, -scores))
            loss = token_loss(jnp.where(weights > 0, hinge, 0.0), weights, (scores > 0) == true)
            both = loss.metrics["nll"], loss.metrics["accuracy"]
            loss = dataclasses.replace(
                loss, metrics={f"{name}_hinge": both[0], f"{name}_accuracy": both[1]}
            )
        guess = jnp.where(known, jnp.log(jnp.maximum(count, 1)), 0.0).sum()
        return dataclasses.replace(
            loss, metrics={**loss.metrics, f"{name}_guess": Ratio(guess, known.sum())}
        )

    def refusal(self, system: System) -> str | None:
        encoder = slots.encoder_of(system, self.tower)
        linkers = encoder.linkers if isinstance(encoder, EntityLinker) else ()
        if encoder is not None and len(linkers) <= self.source:
            return (
                "EntityLinking reads the scores of a linker, which this encoder has not; take "
                "KnowBERT's"
            )
        written = [
            part.source for part in corruptions_of(system) if type(part).__name__ == "GoldEntities"
        ]
        if written and self.source not in written:
            return (
                f"there is no known entity of linker {self.source}; add "
                f"GoldEntities(source={self.source}) to corruption"
            )
        return needs(system, "GoldEntities", "known entity")


def linking_of(objectives: Iterable[slots.Objective], source: int) -> EntityLinking | None:
    """Returns the first of some objectives that trains linker number `source`, or None."""
    linkings = (each for each in objectives if isinstance(each, EntityLinking))
    return next((each for each in linkings if each.source == source), None)
