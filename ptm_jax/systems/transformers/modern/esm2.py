"""ESM-2: masked amino acids of proteins, rotary positions, pre-norm layers and token dropout."""

from __future__ import annotations

from collections.abc import Iterator

from ptm_jax.core.recipe import AdamW, Linear, Phase, Recipe
from ptm_jax.core.spec import override
from ptm_jax.core.system import System
from ptm_jax.core.types import Vocab
from ptm_jax.corruptions.masking.token import TokenMasking
from ptm_jax.data.rows.examples import Packed
from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec
from ptm_jax.encoders.model import Model
from ptm_jax.encoders.transformer.transformer import Transformer, transformer
from ptm_jax.nn.attention.rotary import Rotary
from ptm_jax.nn.embeddings.summed import Positions, RotaryPositions
from ptm_jax.nn.embeddings.token_dropout import TokenDropout
from ptm_jax.nn.heads.vocabulary import MLMHead
from ptm_jax.nn.initializers import Initializer, TruncatedNormal
from ptm_jax.objectives.text.language import MLM

VOCAB = Vocab(size=33, cls=0, pad=1, sep=2, eos=2, unk=3, mask=32, extra=(29, 30, 31))
"""Amino acids and special tokens; the extra ones are the gap symbols and <null_1>."""


def encoder(
    *,
    vocab: Vocab,
    layers: int,
    width: int,
    heads: int,
    hidden: int | None = None,
    positions: Positions,
    theta: float | None = 10_000.0,
    eps: float = 1e-5,
    embed_norm: bool = False,
    token_dropout: bool = True,
    dropout: float = 0.0,
    attention_dropout: float = 0.0,
    initializer: Initializer = TruncatedNormal(),
) -> Transformer:
    """Returns an encoder of pre-norm layers with a last norm.

    Queries and keys are turned with `theta`. ESM-1b has none (None), but `LearnedPositions` and a
    norm of the embeddings.
    """
    core = transformer(
        vocab=vocab,
        layers=layers,
        width=width,
        heads=heads,
        hidden=hidden,
        positions=positions,
        norm="pre",
        eps=eps,
        dropout=dropout,
        attention_dropout=attention_dropout,
        embed_norm=embed_norm,
        final_norm=True,
        initializer=initializer,
    )
    slots = {"embed.dropout": 0.0}  # the released code applies none
    if theta is not None:
        slots["stack.block.attention.rotary"] = Rotary(theta=theta)
    if token_dropout:
        slots["embed.expand"] = TokenDropout(vocab)
    return override(core, slots)


def esm2(name: str, layers: int, width: int) -> System:
    """ESM-2 (Lin et al. 2023): 20 heads; 15% masks, 80% of them mask tokens.

    Rows of 1,024 residues, 2 million tokens in a step, Adam with the rate 4e-4 after 2,000 steps
    and a tenth of it at the end (appendix A.2). The text has a blank between residues. Deviations:
    the rate falls until the last step, not until 90% of them; rows are packed.
    """
    core = encoder(
        vocab=VOCAB, layers=layers, width=width, heads=20, positions=RotaryPositions(limit=1026)
    )
    return System(
        name=name,
        paper="Lin et al. 2023, Science 379(6637), doi:10.1126/science.ade2574",
        section="4.1",
        group="Transformer encoders",
        rows=(),
        towers={"main": Model(encoder=core, heads={"mlm": MLMHead(vocab=VOCAB, eps=1e-5)})},
        tokenizer=TokenizerSpec(kind="spaced", vocab=VOCAB.size, lowercase=False),
        examples=Packed(),
        corruption=TokenMasking(vocab=VOCAB, rate=0.15),
        objective=MLM(),
        recipe=Recipe(
            phases=(Phase(steps=500_000, batch=1953, length=1024),),
            lr=4e-4,
            optimizer=AdamW(b1=0.9, b2=0.98, eps=1e-8, weight_decay=0.01),
            schedule=Linear(warmup=2000, end=0.1),
            clip=None,
        ),
    )


def systems() -> Iterator[System]:
    yield esm2("esm2_t6_8m", 6, 320)
    yield esm2("esm2_t12_35m", 12, 480)
    yield esm2("esm2_t30_150m", 30, 640)
    yield esm2("esm2_t33_650m", 33, 1280)
