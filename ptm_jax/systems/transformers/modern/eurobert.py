"""EuroBERT: a Llama block that reads in both directions: RMSNorm before each branch, rotary
positions, SwiGLU, no biases, and in the larger sizes three queries for each head of keys."""

from __future__ import annotations

from collections.abc import Iterator

from ptm_jax.core.recipe import AdamW, Phase, Recipe, WarmupStableDecay
from ptm_jax.core.spec import override, values_of
from ptm_jax.core.system import System
from ptm_jax.core.types import Vocab
from ptm_jax.corruptions.masking.token import TokenMasking
from ptm_jax.data.rows.examples import Packed
from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec
from ptm_jax.encoders.model import Model
from ptm_jax.encoders.transformer.transformer import Transformer, transformer
from ptm_jax.nn.attention.depth import NumberedStack
from ptm_jax.nn.attention.rotary import LocalLayers, Rotary
from ptm_jax.nn.embeddings.summed import RotaryPositions
from ptm_jax.nn.heads.vocabulary import LMHead
from ptm_jax.nn.initializers import Initializer, Normal
from ptm_jax.nn.layers import Activation, RMSNorm
from ptm_jax.objectives.text.language import MLM

VOCAB = Vocab(size=128_256, pad=128_001, cls=128_000, sep=128_001, mask=128_002)
"""The byte-level BPE of Llama 3 (section 2.1)."""


def encoder(
    *,
    vocab: Vocab,
    layers: int,
    width: int,
    heads: int,
    hidden: int,
    limit: int,
    rotary: Rotary,
    key_heads: int | None = None,
    local: LocalLayers | None = None,
    eps: float = 1e-5,
    activation: Activation = "silu",
    initializer: Initializer = Normal(0.02),
) -> Transformer:
    """Returns an encoder of Llama's blocks for rows of at most `limit` tokens.

    With `local`, the stack's layers know their numbers.
    """
    core = transformer(
        vocab=vocab,
        layers=layers,
        width=width,
        heads=heads,
        hidden=hidden,
        positions=RotaryPositions(limit=limit),
        norm="pre",
        activation=activation,
        dropout=0.0,
        embed_norm=False,
        final_norm=True,
        initializer=initializer,
    )
    norms = ("block.attention_norm", "block.ffn_norm", "final_norm")
    attention = {"rotary": rotary, "local": local, "key_heads": key_heads, "bias": False}
    fields = {f"block.attention.{name}": value for name, value in attention.items()}
    fields |= {"block.ffn.gated": True, "block.ffn.bias": False}
    stack = override(core.stack, fields | {norm: RMSNorm(eps) for norm in norms})
    stack = stack if local is None else NumberedStack(**values_of(stack))
    return override(core, {"stack": stack})


def eurobert(
    name: str, layers: int, width: int, heads: int, hidden: int, *, key_heads: int | None = None
) -> System:
    """EuroBERT (Boizard et al. 2025).

    50% masks, all of them [MASK], AdamW, a stable rate and a last decay; its sizes. The
    recipe is not checked against the paper.

    The phases are 4.8 T tokens at length 2,048 and 200 B (the decay) at 8,192. Deviations: theta is
    250,000 from the start (10,000 at length 2,048 there), 50% masks in the last phase too (10%
    there), and the decay is linear (a cosine there).
    """
    core = encoder(
        vocab=VOCAB,
        layers=layers,
        width=width,
        heads=heads,
        hidden=hidden,
        limit=8192,
        rotary=Rotary(theta=250_000.0),
        key_heads=key_heads,
    )
    head = LMHead(vocab=VOCAB, tied=False, initializer=Normal(0.02))
    return System(
        name=name,
        paper="Boizard et al. 2025, arXiv 2503.05500",
        section="3.1.2",
        group="Transformer encoders",
        rows=(),
        towers={"main": Model(encoder=core, heads={"mlm": head})},
        tokenizer=TokenizerSpec(kind="bytebpe", vocab=VOCAB.size, lowercase=False),
        examples=Packed(),
        corruption=TokenMasking(vocab=VOCAB, rate=0.5, mask=1.0, random=0.0),
        objective=MLM(),
        recipe=Recipe(
            phases=(
                Phase(steps=508_000, batch=4608, length=2048),
                Phase(steps=21_000, batch=1152, length=8192),
            ),
            lr=1e-4,
            optimizer=AdamW(b1=0.9, b2=0.95, eps=1e-5, weight_decay=0.1),
            schedule=WarmupStableDecay(warmup=2000, decay=21_000, shape="linear"),
        ),
    )


def systems() -> Iterator[System]:
    yield eurobert("eurobert_210m", 12, 768, 12, 3072)
    yield eurobert("eurobert_610m", 26, 1152, 18, 4096, key_heads=6)
    yield eurobert("eurobert_2_1b", 32, 2304, 18, 6144, key_heads=6)
