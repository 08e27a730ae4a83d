"""T5 1.0 and 1.1 in every published size."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Literal

from ptm_jax.core.recipe import Adafactor, InverseSqrt, Phase, Recipe
from ptm_jax.core.system import System
from ptm_jax.core.types import Vocab
from ptm_jax.corruptions.masking.sentinels import SentinelSpans
from ptm_jax.data.rows.examples import Contiguous
from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec
from ptm_jax.encoders.model import Model
from ptm_jax.encoders.transformer.seq2seq import EncoderDecoder
from ptm_jax.encoders.transformer.transformer import Transformer
from ptm_jax.nn.attention.multihead import Attention
from ptm_jax.nn.attention.relative import Buckets
from ptm_jax.nn.blocks import Block, FeedForward, Stack
from ptm_jax.nn.embeddings.summed import Embeddings
from ptm_jax.nn.heads.vocabulary import LMHead
from ptm_jax.nn.initializers import Normal
from ptm_jax.nn.layers import RMSNorm
from ptm_jax.objectives.text.seq2seq import Seq2Seq
from ptm_jax.systems.sequence_to_sequence.bart import GROUP, with_decoder
from ptm_jax.systems.transformers.bert_gpt import miniature

Version = Literal["1.0", "1.1"]

# 32,000 pieces, 100 sentinels counted down from 32,099 (number 0 first), and 28 unused rows.
T5_VOCAB = Vocab(size=32128, pad=0, eos=1, unk=2, extra=tuple(range(32099, 31999, -1)))


def t5_network(
    version: Version,
    vocab: Vocab,
    *,
    layers: int,
    width: int,
    heads: int,
    head_width: int,
    hidden: int,
) -> EncoderDecoder:
    """Returns T5's network: RMSNorm before every branch and after each stack.
    No biases, no attention scale, one relative bias per stack.

    Initial standard deviations are mesh-tensorflow's: 1 for the table, fan-in^-0.5 for matrices. T5
    scales the initial queries by K^-0.5 instead of scaling attention. Here queries, keys and values
    each have the factor K^-0.25, and the output matrix has its inverse: the same function, and
    under Adafactor's relative steps the same training.
    """
    dropout = 0.1 if version == "1.0" else 0.0
    share = head_width**-0.25
    attention = Attention(
        heads=heads,
        width=width,
        head_width=head_width,
        dropout=dropout,
        bias=False,
        scale=1.0,
        initializer=Normal(width**-0.5 * share),
        out_init=Normal((heads * head_width) ** -0.5 / share),
    )
    ffn = FeedForward(
        hidden=hidden,
        activation="relu" if version == "1.0" else "gelu_tanh",
        gated=version == "1.1",
        bias=False,
        dropout=dropout,
        initializer=Normal(width**-0.5),
        out_init=Normal(hidden**-0.5),
    )
    block = Block(
        attention=attention,
        ffn=ffn,
        norm="pre",
        dropout=dropout,
        attention_norm=RMSNorm(),
        ffn_norm=RMSNorm(),
    )
    encoder = Transformer(
        embed=Embeddings(vocab=vocab, width=width, dropout=dropout, initializer=Normal(1.0)),
        stack=Stack(block=block, layers=layers, final_norm=RMSNorm()),
        relative=Buckets(heads=heads, initializer=Normal(width**-0.5)),
    )
    return with_decoder(encoder, positions=None)


def t5(
    name: str,
    version: Version,
    layers: int,
    width: int,
    heads: int,
    *,
    head_width: int,
    hidden: int,
) -> System:
    """T5 (Raffel et al. 2020) and its version 1.1.
    Version 1.1 (Shazeer 2020) has GEGLU, an untied output and no dropout in pre-training.

    Row 56. Spans of mean 3 over 15% of 568 tokens give 512 tokens to the encoder and 114 to the
    decoder; documents are concatenated without a separator. Adafactor at 1/sqrt(max(step, 10^4)); a
    million steps of 2048 rows (section 3.7). Sizes are from the same section and
    google-research/text-to-text-transfer-transformer, t5/models/gin/models. The released version
    1.0 was trained on a mixture of this task and supervised tasks, version 1.1 only on this task,
    as here. Deviations: no dropout after the final norm of each stack; no z-loss, which the code
    has.
    """
    tied = version == "1.0"
    encoder = t5_network(
        version, T5_VOCAB,
        layers=layers, width=width, heads=heads, head_width=head_width, hidden=hidden,
    )  # fmt: skip
    # The tied table has initial deviation 1, so features are scaled; an untied output matrix has
    # D^-0.5.
    head = (
        LMHead(scale=width**-0.5)
        if tied
        else LMHead(vocab=T5_VOCAB, tied=False, initializer=Normal(width**-0.5))
    )
    return System(
        name=name,
        paper="Raffel et al. 2020, arXiv 1910.10683"
        if tied
        else "Raffel et al. 2020; Shazeer 2020, arXiv 2002.05202",
        section="3.1.2",
        group=GROUP,
        rows=(56,),
        towers={"main": Model(encoder=encoder, heads={"lm": head})},
        tokenizer=TokenizerSpec(
            kind="unigram", vocab=32100, lowercase=False, specials="t5", sentinels=100
        ),
        examples=Contiguous(separator=None),
        corruption=SentinelSpans(vocab=T5_VOCAB, rate=0.15, mean=3.0),
        objective=Seq2Seq(),
        recipe=Recipe(
            phases=(Phase(steps=1_000_000, batch=2048, length=568),),
            lr=0.01,
            optimizer=Adafactor(decay_rate=0.8),
            schedule=InverseSqrt(warmup=10_000, ramp=False),
            clip=None,
        ),
    )


def small(name: str, version: Version, hidden: int) -> System:
    """Returns a miniature that keeps Adafactor.
    Its steps scale with the parameters, and T5's table has initial deviation 1 (measured: AdamW at
    1e-3 has a higher loss after the same number of steps, at twice the width)."""
    value = miniature(
        t5("", version, 2, 128, 4, head_width=32, hidden=hidden), name, steps=400, lr=0.05
    )
    recipe = dataclasses.replace(value.recipe, optimizer=Adafactor(decay_rate=0.8))
    return dataclasses.replace(value, recipe=recipe)


def systems() -> Iterator[System]:
    yield t5("t5_small", "1.0", 6, 512, 8, head_width=64, hidden=2048)
    yield t5("t5_base", "1.0", 12, 768, 12, head_width=64, hidden=3072)
    yield t5("t5_large", "1.0", 24, 1024, 16, head_width=64, hidden=4096)
    yield t5("t5_3b", "1.0", 24, 1024, 32, head_width=128, hidden=16384)
    yield t5("t5_11b", "1.0", 24, 1024, 128, head_width=128, hidden=65536)
    yield t5("t5_1_1_small", "1.1", 8, 512, 6, head_width=64, hidden=1024)
    yield t5("t5_1_1_base", "1.1", 12, 768, 12, head_width=64, hidden=2048)
    yield t5("t5_1_1_large", "1.1", 24, 1024, 16, head_width=64, hidden=2816)
    yield t5("t5_1_1_xl", "1.1", 24, 2048, 32, head_width=64, hidden=5120)
    yield t5("t5_1_1_xxl", "1.1", 24, 4096, 64, head_width=64, hidden=10240)
    yield small("t5_mini", "1.0", 512)
    yield small("t5_1_1_mini", "1.1", 256)
