"""DeBERTa: words and distances have vectors of their own in the attention; replaced token
detection with embeddings that share no gradient (version 3)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from ptm_jax.core.recipe import AdamW, ClipByTower, Linear, Phase, Recipe
from ptm_jax.core.system import Difference, System
from ptm_jax.core.types import Vocab
from ptm_jax.corruptions.masking.token import TokenMasking
from ptm_jax.data.rows.examples import FullSentences
from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec
from ptm_jax.encoders.model import Model
from ptm_jax.encoders.transformer.mask_decoder import MaskDecoder
from ptm_jax.encoders.transformer.transformer import Transformer
from ptm_jax.nn.attention.disentangled import (
    TERMS,
    DisentangledAttention,
    DisentangledStack,
    Distances,
    DistanceVectors,
    FirstConvolution,
    VectorDropout,
)
from ptm_jax.nn.blocks import Block, FeedForward
from ptm_jax.nn.embeddings.parts import Types
from ptm_jax.nn.embeddings.summed import Embeddings, LearnedPositions, RelativePositions
from ptm_jax.nn.heads.pretraining import FirstTokenDetector
from ptm_jax.nn.heads.vocabulary import MLMHead
from ptm_jax.nn.initializers import Initializer, TruncatedNormal
from ptm_jax.nn.layers import Activation, Identity, LayerNorm
from ptm_jax.objectives.text.detection import RTD
from ptm_jax.objectives.text.language import MLM
from ptm_jax.systems.transformers.bert_gpt import miniature

EPS = 1e-7
BYTES = Vocab(size=50265, pad=0, unk=3, cls=1, sep=2, mask=50264)
"""GPT-2's byte-level BPE with BERT's special tokens."""
PIECES = Vocab(size=128100, pad=0, unk=3, cls=1, sep=2, mask=128000)
"""A SentencePiece model of 128,000 pieces; the rows after [MASK] are unused."""


def attention(
    *,
    width: int,
    heads: int,
    terms: tuple[str, ...] = TERMS,
    distances: Distances = Distances(buckets=256),
    shared: bool = True,
    key_bias: bool = True,
    dropout: float = 0.1,
    noise: float = 0.1,
    initializer: Initializer = TruncatedNormal(),
) -> DisentangledAttention:
    """Returns the attention of a layer. The defaults are DeBERTa-v2's, and v3's."""
    return DisentangledAttention(
        heads=heads,
        width=width,
        dropout=dropout,
        terms=terms,
        distances=distances,
        shared=shared,
        key_bias=key_bias,
        noise=VectorDropout(noise),
        initializer=initializer,
    )


def encoder(
    attention: DisentangledAttention,
    *,
    vocab: Vocab,
    layers: int,
    hidden: int,
    limit: int = 512,
    types: int = 0,
    absolute: bool = False,
    relative: bool = True,
    normed: bool = True,
    conv: FirstConvolution | Identity = Identity(),
    eps: float = EPS,
    activation: Activation = "gelu",
    dropout: float = 0.1,
) -> Transformer:
    """Returns an encoder of rows of at most `limit` tokens.

    `absolute` adds vectors of positions to the words (BERT), `relative` has vectors of distances,
    `normed` normalises them (DeBERTa-v2).
    """
    init, width = attention.initializer, attention.width
    position = LearnedPositions(limit, initializer=init) if absolute else RelativePositions(limit)
    vectors = DistanceVectors(
        attention.distances, width, LayerNorm(eps) if normed else Identity(), init
    )
    return Transformer(
        embed=Embeddings(
            vocab=vocab,
            width=width,
            position=position,
            parts=(Types(types),) if types else (),
            norm=LayerNorm(eps),
            dropout=dropout,
            initializer=init,
        ),
        stack=DisentangledStack(
            block=Block(
                attention=attention,
                ffn=FeedForward(hidden=hidden, activation=activation, initializer=init),
                dropout=dropout,
                attention_norm=LayerNorm(eps),
                ffn_norm=LayerNorm(eps),
            ),
            layers=layers,
            vectors=vectors if relative else Identity(),
            conv=conv,
        ),
    )


def decoding(core: Transformer) -> MaskDecoder:
    """Returns the encoder with the enhanced mask decoder."""
    init, limit = core.embed.initializer, core.embed.position.longest
    fields = {name: vars(core)[name] for name in ("embed", "stack", "direction")}
    return MaskDecoder(places=LearnedPositions(limit, initializer=init), **fields)


def words(vocab: Vocab) -> MLMHead:
    """Returns the vocabulary head."""
    return MLMHead(vocab=vocab, eps=EPS)


def deberta(name: str, core: Transformer, **fields: object) -> System:
    """DeBERTa (He et al. 2021, arXiv 2006.03654): masked words, predicted by the enhanced mask
    decoder. Steps and warm-up are the released script's; batch and rate are not checked against
    the paper's table.

    Deviation: rows are whole sentences, and single words are masked (spans of at most three there).
    """
    vocab = core.embed.vocab
    system = {
        "paper": "He et al. 2021, arXiv 2006.03654",
        "section": "3.1.2",
        "tokenizer": TokenizerSpec(kind="bytebpe", vocab=vocab.size, lowercase=False),
        "corruption": TokenMasking(vocab=vocab),
        "objective": MLM(),
        "towers": {"main": Model(encoder=decoding(core), heads={"mlm": words(vocab)})},
        "recipe": Recipe(
            phases=(Phase(steps=1_000_000, batch=2048, length=512),),
            lr=2e-4,
            optimizer=AdamW(b1=0.9, b2=0.999, eps=1e-6, weight_decay=0.01),
            schedule=Linear(warmup=10_000),
            clip=1.0,
        ),
    }
    return System(
        name=name,
        group="Transformer encoders",
        rows=(),
        examples=FullSentences(),
        **{**system, **fields},
    )


def first(name: str, layers: int, width: int, heads: int) -> System:
    """DeBERTa-v1: a vector for each distance below 512, projected by layers of its own."""
    attend = attention(
        width=width, heads=heads, distances=Distances(), shared=False, key_bias=False
    )
    core = encoder(attend, vocab=BYTES, layers=layers, hidden=4 * width, normed=False)
    return deberta(name, core)


def second(name: str, layers: int, width: int, heads: int) -> System:
    """DeBERTa-v2: buckets of distances, projected by the layers of the words, and a convolution.

    Of its recipe only the sizes are published; the other values are DeBERTa-1.5B's.
    """
    core = encoder(
        attention(width=width, heads=heads),
        vocab=PIECES,
        layers=layers,
        hidden=4 * width,
        conv=FirstConvolution(activation="gelu", dropout=0.1),
    )
    pieces = TokenizerSpec(kind="unigram", vocab=PIECES.size, lowercase=False)
    system = deberta(name, core, tokenizer=pieces)
    return dataclasses.replace(system, recipe=dataclasses.replace(system.recipe, lr=1.5e-4))


def detecting(name: str, judge: Transformer, generator: Transformer, *, lr: float) -> System:
    """DeBERTa-v3 (He et al. 2021, arXiv 2111.09543): replaced tokens.

    Sizes and the weight 10 are the released configuration's; steps, batch and rates are not checked
    against the paper's table.

    The generator has half of the layers. The discriminator's word vectors are the generator's,
    without their gradient, plus vectors of its own that begin at 0. The two towers are updated as
    by two optimizers, each with its own norm of the gradient. `RTD(weight=50.0)` and
    `recipe.clip=1.0` are the paper's. Deviations: rows are whole sentences; the
    discriminator sees the word vectors before the generator's update.
    """
    vocab, table = judge.embed.vocab, "encoder/embed/token"
    return deberta(
        name,
        judge,
        paper="He et al. 2021, arXiv 2111.09543",
        section="3.1.5",
        towers={
            "main": Model(encoder=judge, heads={"rtd": FirstTokenDetector(eps=EPS)}),
            "generator": Model(encoder=decoding(generator), heads={"mlm": words(vocab)}),
        },
        ties=(Difference(path=f"main/{table}", source=f"generator/{table}"),),
        tokenizer=TokenizerSpec(kind="unigram", vocab=vocab.size, lowercase=False),
        corruption=TokenMasking(vocab=vocab, mask=1.0, random=0.0),
        objective=RTD(weight=10.0),
        recipe=Recipe(
            phases=(Phase(steps=500_000, batch=8192, length=512),),
            lr=lr,
            optimizer=AdamW(b1=0.9, b2=0.98, eps=1e-6, weight_decay=0.01),
            schedule=Linear(warmup=10_000),
            clip=ClipByTower(),
        ),
    )


def third(name: str, layers: int, width: int, heads: int, *, lr: float) -> System:
    """DeBERTa-v3 of a size; v2's attention without the convolution."""

    def tower(depth: int) -> Transformer:
        attend = attention(width=width, heads=heads)
        return encoder(attend, vocab=PIECES, layers=depth, hidden=4 * width)

    return detecting(name, tower(layers), tower(layers // 2), lr=lr)


def systems() -> Iterator[System]:
    yield first("deberta_base", 12, 768, 12)
    yield first("deberta_large", 24, 1024, 16)
    yield second("deberta_v2_xlarge", 24, 1536, 24)
    yield third("deberta_v3_small", 6, 768, 12, lr=6e-4)
    yield third("deberta_v3_base", 12, 768, 12, lr=6e-4)
    yield third("deberta_v3_large", 24, 1024, 16, lr=3e-4)
    mini = third("", 2, 128, 4, lr=1e-3)
    mini = miniature(mini, "deberta_v3_mini", steps=800, lr=3e-3, std=0.08, length=64)
    yield dataclasses.replace(mini, recipe=dataclasses.replace(mini.recipe, clip=ClipByTower()))
