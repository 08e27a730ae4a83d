"""Marian (Junczys-Dowmunt et al. 2018, arXiv 1804.00344): the Transformer of OPUS-MT.

BART's layers without a norm of the embeddings, fixed positions, one table of tokens for both
halves. An answer begins with the padding.
"""

from __future__ import annotations

import dataclasses

from ptm_jax.convert.config import Config
from ptm_jax.convert.families import bart
from ptm_jax.convert.family import families
from ptm_jax.core.system import System
from ptm_jax.systems.sequence_to_sequence.bart import vaswani


class MarianKind(bart.BartKind):
    """BART's kind with one vocabulary for both halves."""

    def build(self, config: Config, architecture: str) -> System:
        reason = "two vocabularies are not supported"
        config.refuse("share_encoder_decoder_embeddings", True, reason)
        config.refuse("decoder_vocab_size", config("vocab_size", int, 58101), reason)
        return super().build(config, architecture)


KIND = MarianKind(
    prefix="Marian",
    parent=dataclasses.replace(
        vaswani("", 2, 128, 4, dropout=0.1, steps=100_000),
        paper="Junczys-Dowmunt et al. 2018, arXiv 1804.00344",
        rows=(),
    ),
    pre=False,
    embed_norm=False,
    waves=True,
    special={"pad": 58100, "eos": 0},
    start=58100,
    generator="MTModel",
)

families.add(bart.family("marian", KIND))
