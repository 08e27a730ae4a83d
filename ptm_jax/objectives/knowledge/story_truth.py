"""Classification of true and fake stories; language model of true stories (commonsense GPT-2)."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import jax.numpy as jnp

from ptm_jax.core.batch import segments_of
from ptm_jax.core.towers import Tower
from ptm_jax.core.types import Batch, Encoded, Loss
from ptm_jax.objectives.base import OnePass, nll_of, token_loss
from ptm_jax.objectives.knowledge.entities import needs
from ptm_jax.objectives.text.language import LM, followers

if TYPE_CHECKING:
    from ptm_jax.core.system import System


@dataclasses.dataclass(frozen=True, kw_only=True)
class StoryTruth(OnePass):
    """Cross-entropy of the kind of a row's first document: true, or one of three fakes.

    The head `truth`, [B, D] to [B, 4], reads the mean of the document's states (Guan et al. 2020,
    arXiv 2001.05139, Eq. 6 and 7). Reads `truth_labels` and `truth_weights` [B].
    """

    tower: str = "main"
    head: str = "truth"

    def of(self, tower: Tower, encoded: Encoded, batch: Batch) -> Loss:
        story = (segments_of(batch) == 1).astype(jnp.float32)
        total = jnp.einsum("bl,bld->bd", story, encoded.hidden.astype(jnp.float32))
        states = (total / jnp.maximum(story.sum(1), 1.0)[:, None]).astype(encoded.hidden.dtype)
        scores, labels = tower.head(self.head, states).astype(jnp.float32), batch["truth_labels"]
        right = scores.argmax(-1) == labels
        return token_loss(nll_of(scores, labels), batch["truth_weights"], right, "truth_nll")

    def refusal(self, system: System) -> str | None:
        return needs(system, "FakeStories", "true or fake story")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrueText(LM):
    """`LM` without the tokens of fake stories (Guan et al. 2020, section 3.4)."""

    def of(self, tower: Tower, encoded: Encoded, batch: Batch) -> Loss:
        fake = (segments_of(batch)[:, 1:] == 1) & (batch["truth_labels"] > 0)[:, None]
        nll = tower.head(self.head, encoded.hidden[:, :-1]).nll(batch["input_ids"][:, 1:])
        return token_loss(nll, jnp.where(fake, 0.0, followers(batch)), name="nll")

    def refusal(self, system: System) -> str | None:
        return super().refusal(system) or needs(system, "FakeStories", "true or fake story")
