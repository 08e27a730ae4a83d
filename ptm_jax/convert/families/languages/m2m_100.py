"""M2M100 (Fan et al. 2020, arXiv 2010.11125): mBART's layers without a norm of the embeddings, and
fairseq's fixed positions, which count tokens.

A source begins with the token of its language, an answer with that of its own (`forced_bos`).
"""

from __future__ import annotations

import dataclasses

from ptm_jax.convert.config import Config
from ptm_jax.convert.families import bart
from ptm_jax.convert.family import classes, families
from ptm_jax.nn.embeddings.summed import Positions, TokenSinusoids
from ptm_jax.nn.initializers import Normal
from ptm_jax.systems.sequence_to_sequence.bart import vaswani


class M2M100Kind(bart.BartKind):
    """BART's kind with positions that count tokens from the one after the padding's."""

    @property
    def old(self) -> dict[str, bool]:
        return {}

    @property
    def heads(self) -> dict[str, tuple[str, ...]]:
        return classes(self.prefix, {self.generator: ("lm",)}, ())

    def positions(self, config: Config, width: int, init: Normal) -> Positions:
        limit = super().positions(config, width, init).limit
        if width < 4:
            raise ValueError(f"d_model {width} has no sinusoids; at least 4 are needed")
        pad = bart.vocab_of(config, **self.special).pad
        return TokenSinusoids(limit, pad + 1)

    def constants(self, config: Config, architecture: str) -> dict:
        """Returns nothing: the published files do not hold the table."""
        return {}


PARENT = dataclasses.replace(
    vaswani("", 2, 128, 4, dropout=0.1, steps=100_000),
    paper="Fan et al. 2020, arXiv 2010.11125",
    rows=(),
)
DEFAULTS = {
    "activation_function": "relu",
    "attention_dropout": 0.1,
    "scale_embedding": True,
    "encoder_layerdrop": 0.05,
    "decoder_layerdrop": 0.05,
}
KIND = M2M100Kind(
    prefix="M2M100",
    parent=PARENT,
    pre=True,
    embed_norm=False,
    waves=True,
    bias=False,
    defaults=DEFAULTS,
)
WEIGHTS = (r"(^|\.)embed_positions\.weights$",)

families.add(bart.family("m2m_100", KIND, ignore=(*bart.IGNORE, *WEIGHTS), halves=()))
