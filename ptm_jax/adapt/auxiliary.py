"""The loss of a language model beside the task's (SiATL)."""

from __future__ import annotations

import dataclasses
from typing import Any

from ptm_jax.corruptions.token import TokenMasking
from ptm_jax.nn.heads import LMHead, MLMHead
from ptm_jax.objectives.auxiliary import FadingLanguage
from ptm_jax.objectives.language import LM, MLM


@dataclasses.dataclass(frozen=True, kw_only=True)
class AuxiliaryLanguage:
    """L = L_task + gamma L_LM over the task's own texts (Chronopoulou et al. 2019, arXiv 1902.10547, Eq. 1); beside
    `SequentialUnfreezing` it is their SiATL. gamma falls exponentially from `first` to `last` over the run.

    An encoder that sees one side is given the next word to tell, one that sees both sides masked words, a share `masked`
    of all, in a pass of their own; the head for it is drawn anew and reads the tied table.
    """

    first: float = 0.2
    last: float = 0.1
    masked: float = 0.15

    def rewrite(self, system: Any) -> Any:
        task = system.objective
        name = getattr(task, "tower", "main")
        tower = system.towers[name]
        vocab = getattr(getattr(tower.encoder, "embed", None), "vocab", None)
        if vocab is None:
            raise ValueError(f"{type(tower.encoder).__name__} has no vocabulary of words to tell")
        causal = getattr(tower.encoder, "sees", "") == "causal"
        head, language, corruption = ("lm", LM(tower=name), None) if causal else ("mlm", MLM(tower=name), None)
        if not causal:
            corruption = TokenMasking(vocab=vocab, rate=self.masked)
        if head not in tower.heads:
            made = LMHead(vocab=vocab) if causal else MLMHead(vocab=vocab)
            tower = dataclasses.replace(tower, heads={**tower.heads, head: made})
        objective = FadingLanguage(
            task=task, language=language, corruption=corruption, first=self.first, last=self.last, steps=system.recipe.steps
        )
        return dataclasses.replace(system, towers={**system.towers, name: tower}, objective=objective)
