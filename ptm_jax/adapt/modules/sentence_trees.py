"""A graph's triples as branches of the sentences that a model reads (K-BERT)."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from ptm_jax.core import slots, spec
from ptm_jax.encoders.knowledge.sentence_trees import TreeTransformer
from ptm_jax.encoders.transformer.transformer import Transformer
from ptm_jax.knowledge.lexicons import Branches

if TYPE_CHECKING:
    from ptm_jax.core.networks import Network


@dataclasses.dataclass(frozen=True, kw_only=True)
class SentenceTrees(slots.Wrapper):
    """Gives a pre-trained Transformer the sentence trees of K-BERT.

    Liu et al. 2020, arXiv 1909.07606, section 3; `encoders.knowledge.sentence_trees`. It adds no
    parameters: the graph is first used in fine-tuning.

    branches   the triples of names, a file of lines of head, relation and tail: `--set
               system.adapt.0.branches.file=PATH`
    room       slots for the tokens of branches in each row
    """

    branches: Branches = Branches(width=16)
    room: int = 64
    towers: tuple[str, ...] = ("main",)

    def wrap(self, module: Network) -> Any:
        def trees(part):
            return TreeTransformer(
                **spec.values_of(part) | {"branches": self.branches, "room": self.room}
            )

        network = spec.respell(module, Transformer, trees)
        if network is module or slots.encoder_in(module).direction != "bidirectional":
            kind = type(slots.encoder_in(module)).__name__
            raise ValueError(f"{kind} is no Transformer that reads both sides; take one like BERT")
        return network
