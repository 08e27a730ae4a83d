"""NeoBERT: RMSNorm before each branch, rotary positions of neighbouring features, SwiGLU, and more
layers than BERT-base at its width."""

from __future__ import annotations

from collections.abc import Iterator

from ptm_jax.core.recipe import AdamW, Cosine, Phase, Recipe
from ptm_jax.core.system import System
from ptm_jax.core.types import Vocab
from ptm_jax.corruptions.masking.token import TokenMasking
from ptm_jax.data.rows.examples import Packed
from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec
from ptm_jax.encoders.model import Model
from ptm_jax.nn.attention.rotary import Rotary
from ptm_jax.nn.heads.vocabulary import LMHead
from ptm_jax.nn.initializers import Uniform
from ptm_jax.objectives.text.language import MLM
from ptm_jax.systems.transformers.modern.eurobert import encoder

VOCAB = Vocab(size=30_522, pad=0, unk=100, cls=101, sep=102, mask=103)
ROTARY = Rotary(theta=10_000.0, interleave=True)
INIT = Uniform(0.02)


def inner_width(hidden: int) -> int:
    """Returns the features of a gated layer with as many weights as a plain one of `hidden`.

    Two thirds of `hidden`, up to a multiple of 8 (Shazeer 2020, arXiv 2002.05202, section 2).
    """
    return -(-(2 * hidden // 3) // 8) * 8


def neobert(name: str, layers: int, width: int, heads: int, hidden: int) -> System:
    """NeoBERT (Le Breton et al. 2025).

    20% masks, all of them [MASK]; AdamW, a cosine to a tenth, as in the released configuration.

    The phases are 1 M steps of 2 M tokens at length 1,024 and 50,000 steps at 4,096. Deviation: the
    cosine ends with the last step (after 900,000 there).
    """
    core = encoder(
        vocab=VOCAB,
        layers=layers,
        width=width,
        heads=heads,
        hidden=inner_width(hidden),
        limit=4096,
        rotary=ROTARY,
        initializer=INIT,
    )
    head = LMHead(vocab=VOCAB, tied=False, bias=True, initializer=INIT)
    return System(
        name=name,
        paper="Le Breton et al. 2025, arXiv 2502.19587",
        section="3.1.2",
        group="Transformer encoders",
        rows=(),
        towers={"main": Model(encoder=core, heads={"mlm": head})},
        tokenizer=TokenizerSpec(kind="wordpiece", vocab=VOCAB.size),
        examples=Packed(),
        corruption=TokenMasking(vocab=VOCAB, rate=0.2, mask=1.0, random=0.0),
        objective=MLM(),
        recipe=Recipe(
            phases=(
                Phase(steps=1_000_000, batch=2048, length=1024),
                Phase(steps=50_000, batch=512, length=4096),
            ),
            lr=1e-4,
            optimizer=AdamW(b1=0.9, b2=0.95, eps=1e-8, weight_decay=0.01),
            schedule=Cosine(warmup=2000, end=0.1),
            clip=1.0,
        ),
    )


def systems() -> Iterator[System]:
    yield neobert("neobert", 28, 768, 12, 3072)
