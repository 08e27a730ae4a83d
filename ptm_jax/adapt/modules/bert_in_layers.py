"""BERT-fused translation as an adaptation: `--init main=TRANSLATION bert=BERT --adapt bert_fused`.

Zhu et al. 2020, arXiv 2002.06823.
"""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING, Any

from ptm_jax.adapt.base import KeepsWords
from ptm_jax.core.spec import respell
from ptm_jax.core.types import Vocab
from ptm_jax.encoders.transformer.bert_fused import fused

if TYPE_CHECKING:
    from ptm_jax.core.system import System
    from ptm_jax.core.types import Step

BERT = "bert"


@dataclasses.dataclass(frozen=True, kw_only=True)
class BertFused(KeepsWords):
    """Lets each layer of an encoder-decoder attend to the output of the model in the tower `bert`,
    which is frozen (`encoders.transformer.bert_fused`).

    The paper begins with a trained translation model, and the new attention at random. `weights`
    and `drop_net` are those of `FusedAttention`: the defaults are the paper's. `words` is the size
    of the model's vocabulary, which the run fills in.
    """

    weights: tuple[float, float] = (0.5, 0.5)
    drop_net: float = 1.0
    words: int = 0
    towers: tuple[str, ...] = ("main", BERT)

    owns = r"/encoder/bert/|/other/"

    def __post_init__(self):
        if len(self.weights) != 2 or not 0 <= self.drop_net <= 1:
            raise ValueError(
                f"weights are {self.weights} and drop_net {self.drop_net}; expected two weights "
                "and a probability"
            )

    def with_words(self, system: System) -> BertFused:
        if BERT not in system.towers:
            return self
        vocab = system.towers[BERT].encoder.embeddings.vocab
        return dataclasses.replace(self, words=vocab.size)

    def rewrite(self, system: System) -> Any:
        """Returns the system with BERT inside the main tower."""
        towers = dict(system.towers)
        if BERT not in towers:
            raise ValueError("it reads another model; give both, as --init main=MODEL bert=BERT")
        main, bert = towers["main"], towers.pop(BERT).encoder
        if self.words:
            bert = respell(bert, Vocab, Vocab(size=self.words))
        encoder = fused(main.encoder, bert, weights=self.weights, drop_net=self.drop_net)
        towers["main"] = dataclasses.replace(main, encoder=encoder)
        return dataclasses.replace(system, towers=towers)

    def trainable(self, path: str, step: Step) -> bool:
        return not re.search(r"/encoder/bert/", path)
