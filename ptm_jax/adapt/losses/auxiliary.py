"""A language model's loss in addition to the task's (SiATL)."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from ptm_jax.core import slots
from ptm_jax.corruptions.masking.token import TokenMasking
from ptm_jax.nn.heads.vocabulary import LMHead, MLMHead
from ptm_jax.objectives.regularisation.auxiliary import FadingLanguage
from ptm_jax.objectives.text.language import LM, MLM

if TYPE_CHECKING:
    from ptm_jax.core.system import System


@dataclasses.dataclass(frozen=True, kw_only=True)
class AuxiliaryLanguage(slots.Wrapper):
    """Adds a language model's loss on the task's texts: L = L_task + gamma L_LM.

    Chronopoulou et al. 2019, arXiv 1902.10547, Eq. 1; with `SequentialUnfreezing` this is their
    SiATL. gamma falls exponentially from `first` to `last` over the run.

    A causal encoder predicts the next word. A bidirectional encoder predicts masked words, a
    fraction `masked` of all, in a separate pass. If the model has no language model head, a new one
    is added; it uses the tied table.
    """

    first: float = 0.2
    last: float = 0.1
    masked: float = 0.15

    def rewrite(self, system: System) -> Any:
        task = system.objective
        name = slots.objective(task).tower
        tower = system.towers[name]
        if tower.encoder.embeddings is None:
            raise ValueError(
                f"{type(tower.encoder).__name__} has no vocabulary of words to predict"
            )
        vocab, causal = tower.encoder.embeddings.vocab, tower.encoder.direction == "causal"
        head, language, corruption = (
            ("lm", LM(tower=name), None) if causal else ("mlm", MLM(tower=name), None)
        )
        if not causal:
            corruption = TokenMasking(vocab=vocab, rate=self.masked)
        if head not in tower.heads:
            made = LMHead(vocab=vocab) if causal else MLMHead(vocab=vocab)
            tower = dataclasses.replace(tower, heads={**tower.heads, head: made})
        objective = FadingLanguage(
            task=task,
            language=language,
            corruption=corruption,
            first=self.first,
            last=self.last,
            steps=system.recipe.steps,
        )
        return dataclasses.replace(
            system, towers={**system.towers, name: tower}, objective=objective
        )
