"""UniLMv2's [P] as a token of its own."""

from __future__ import annotations

import dataclasses
from typing import Any

from ptm_jax.core.types import Array, Batch
from ptm_jax.corruptions.orders import PseudoMasks


@dataclasses.dataclass(frozen=True, kw_only=True)
class PseudoTokens(PseudoMasks):
    """`PseudoMasks` in which [P] is not [MASK] but the first of `vocab.extra`, as the paper has it (Bao et al. 2020,
    section 3.2): a tokenizer with a sentinel has it. `pseudo`, where given, is its id instead."""

    def __call__(self, key: Array, batch: Batch) -> Batch:
        if self.pseudo is None and not self.vocab.extra:
            raise ValueError("this vocabulary has no extra token for [P]; set tokenizer.sentinels=1")
        own = self.vocab.extra[0] if self.pseudo is None else self.pseudo
        return PseudoMasks.__call__(dataclasses.replace(self, pseudo=own), key, batch)

    def refusal(self, system: Any) -> str | None:
        if self.pseudo is None and not self.vocab.extra:
            return "PseudoTokens needs a token for [P], and the vocabulary has no extra one; set tokenizer.sentinels=1"
        return PseudoMasks.refusal(self, system)
