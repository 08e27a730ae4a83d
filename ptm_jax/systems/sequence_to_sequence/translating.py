"""Networks that translate: XLM's encoder with a decoder like it, and a small Transformer."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from ptm_jax.core.system import System
from ptm_jax.encoders.model import Model
from ptm_jax.encoders.transformer.seq2seq import EncoderDecoder
from ptm_jax.encoders.transformer.transformer import Transformer
from ptm_jax.nn.heads.vocabulary import LMHead
from ptm_jax.systems.sequence_to_sequence.bart import denoising, mass, vaswani
from ptm_jax.systems.transformers.bert_gpt import miniature


def xlm_translation(name: str, layers: int, width: int, heads: int) -> System:
    """XLM's translation model (Conneau and Lample 2019, arXiv 1901.07291, sections 4.2 and 5.1).

    Row 226. Encoder and decoder have the layers of XLM: `--init encoder=RUN decoder=RUN` begins
    both with a masked or causal language model, and the attention between them at random. The sizes
    are those of MASS, whose code is XLM's: 6 layers of width 1,024 with 8 heads. `ptm train NAME
    --task translation` trains translation; without a task it restores text, as `transformer_base`.

    Deviations: no language embeddings, which the model's two sides can tell apart without; one
    token table for both sides.
    """
    parent = mass(name, layers, width, heads)
    both = parent.towers["main"].encoder
    decoder = Transformer(**{field: vars(both.decoder)[field] for field in _PLAIN})
    return dataclasses.replace(
        parent,
        paper="Conneau and Lample 2019, arXiv 1901.07291",
        rows=(226,),
        towers={
            "main": Model(
                encoder=EncoderDecoder(encoder=both.encoder, decoder=decoder),
                heads={"lm": LMHead(bias=True)},
            )
        },
        corruption=denoising(both.embed.vocab),
        examples=vaswani("", 1, 8, 1, 0.0, steps=1).examples,
    )


_PLAIN = ("embed", "stack", "direction")


def systems() -> Iterator[System]:
    yield xlm_translation("xlm_translation", 6, 1024, 8)
    yield miniature(xlm_translation("", 2, 128, 2), "xlm_translation_mini", steps=170, lr=2e-3)
    yield miniature(
        vaswani("", 2, 128, 4, dropout=0.1, steps=1), "transformer_mini", steps=170, lr=2e-3
    )
