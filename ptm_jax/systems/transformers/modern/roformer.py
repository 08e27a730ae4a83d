"""RoFormer: BERT with rotary positions in the place of a table of positions."""

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
from ptm_jax.nn.embeddings.summed import RotaryPositions
from ptm_jax.nn.heads.vocabulary import MLMHead
from ptm_jax.objectives.text.language import MLM

VOCAB = Vocab(size=50_000, pad=0, unk=1, cls=2, sep=3, mask=4)
"""The size of the published vocabulary of Chinese words, the ids of a tokenizer trained here."""


def rotary(core: Transformer, limit: int, *, values: bool = False) -> Transformer:
    """Returns an encoder whose positions are rotary, in rows of at most `limit` tokens.

    Neighbouring features are pairs (Su et al. 2021, Eq. 34). `values`: values are turned too.
    """
    turning = Rotary(interleave=True, values=values)
    slots = {
        "stack.block.attention.rotary": turning,
        "embed.position": RotaryPositions(limit=limit),
    }
    return override(core, slots)


def roformer(name: str) -> System:
    """RoFormer (Su et al. 2021): the sizes of BERT-base, rows of up to 1,536 tokens.

    Six phases on Chinese text with lengths 512, 1,536, 256, 128, 1,536, 512 (section 4.5).
    Deviations: masks are of single tokens, not of words; a rate of 1e-4 with linear decay, which
    the paper does not state.
    """
    core = transformer(vocab=VOCAB, layers=12, width=768, heads=12, types=2)
    sizes = (
        (200_000, 256, 512),
        (12_500, 256, 1536),
        (120_000, 256, 256),
        (80_000, 512, 128),
        (10_000, 256, 1536),
        (30_000, 512, 512),
    )
    return System(
        name=name,
        paper="Su et al. 2021, arXiv 2104.09864",
        section="3.1.2",
        group="Transformer encoders",
        rows=(),
        towers={"main": Model(encoder=rotary(core, 1536), heads={"mlm": MLMHead(vocab=VOCAB)})},
        tokenizer=TokenizerSpec(kind="wordpiece", vocab=VOCAB.size),
        examples=Packed(),
        corruption=TokenMasking(vocab=VOCAB, rate=0.15),
        objective=MLM(),
        recipe=Recipe(
            phases=tuple(Phase(steps=steps, batch=b, length=length) for steps, b, length in sizes),
            lr=1e-4,
            optimizer=AdamW(b1=0.9, b2=0.999, eps=1e-6, weight_decay=0.01),
            schedule=Linear(warmup=10_000),
            clip=1.0,
        ),
    )


def systems() -> Iterator[System]:
    yield roformer("roformer_base")
