"""UniLMv2's pseudo masks with a separate token [P]."""

from __future__ import annotations

import dataclasses
from typing import Any

from ptm_jax.core.types import Array, Batch
from ptm_jax.corruptions.orders import PseudoMasks


@dataclasses.dataclass(frozen=True, kw_only=True)
class PseudoTokens(PseudoMasks):
    """`PseudoMasks` with a separate token [P], as in the paper (Bao et al. 2020, section 3.2).

    [P] is `pseudo` if given, else the first id of `vocab.extra`, which a tokenizer with a sentinel provides."""

    def __call__(self, key: Array, batch: Batch) -> Batch:
        if self.pseudo is None and not self.vocab.extra:
            raise ValueError("this vocabulary has no extra token for [P]; set tokenizer.sentinels=1")
        own = self.vocab.extra[0] if self.pseudo is None else self.pseudo
        return PseudoMasks.__call__(dataclasses.replace(self, pseudo=own), key, batch)

    def refusal(self, system: Any) -> str | None:
        if self.pseudo is None and not self.vocab.extra:
            return "PseudoTokens needs a token for [P], and the vocabulary has no extra one; set tokenizer.sentinels=1"
        return PseudoMasks.refusal(self, system)
