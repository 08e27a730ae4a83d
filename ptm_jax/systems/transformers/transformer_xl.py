"""Segment recurrence: Transformer-XL over words and characters, and XLNet."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Literal

from ptm_jax.core.recipe import AdamW, Cosine, Linear, Phase, Recipe
from ptm_jax.core.spec import respell
from ptm_jax.core.system import System
from ptm_jax.core.types import Vocab
from ptm_jax.corruptions.masking.orders import PermutationOrder
from ptm_jax.data.rows.examples import Contiguous
from ptm_jax.data.rows.sentences.sentence_pairs import XLNetPairs
from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec
from ptm_jax.encoders.model import Model
from ptm_jax.encoders.transformer.xl import TransformerXL
from ptm_jax.encoders.transformer.xlnet import XLNetEncoder
from ptm_jax.nn.attention.directed import DirectedScores
from ptm_jax.nn.attention.multihead import Attention
from ptm_jax.nn.attention.relative import ShiftedScores
from ptm_jax.nn.blocks import Block, FeedForward, Recurrence, Stack
from ptm_jax.nn.embeddings.adaptive import AdaptiveEmbeddings, AdaptiveHead
from ptm_jax.nn.embeddings.summed import Embeddings
from ptm_jax.nn.heads.vocabulary import LMHead
from ptm_jax.nn.initializers import Normal
from ptm_jax.nn.layers import LayerNorm
from ptm_jax.objectives.text.language import LM, PLM
from ptm_jax.systems.transformers.bert_gpt import miniature

XLNET = Vocab(size=32_000, unk=0, bos=1, eos=2, cls=3, sep=4, pad=5, mask=6, extra=(7, 8))
"""zihangdai/xlnet, spiece.model; 7 and 8 are <eod> and <eop>."""


def recurrent(
    layers: int,
    width: int,
    heads: int,
    hidden: int,
    *,
    dropout: float,
    attention_dropout: float,
    **kinds,
):
    """Returns the stack of both models, with relative positions and memory.
    Its blocks have no attention biases.

    `kinds` must have `activation` and `inner` (dropout) of the feed-forward layer, `eps` of the
    norms, `scores` (relative attention) and `segments` (XLNet). It may have `initializer`, `clamp`
    (the largest encoded distance), `norm` (its placement, default "post") and `head_width`.
    """
    init, eps, head_width = (
        kinds.get("initializer", Normal(0.02)),
        kinds["eps"],
        kinds.get("head_width"),
    )
    scores = kinds["scores"](
        segments=kinds["segments"],
        clamp=kinds.get("clamp"),
        width=None if head_width is None else width,
        initializer=init,
    )
    block = Block(
        attention=Attention(
            heads=heads,
            width=width,
            dropout=attention_dropout,
            head_width=head_width,
            bias=False,
            initializer=init,
            relative=scores,
        ),
        ffn=FeedForward(
            hidden=hidden, activation=kinds["activation"], dropout=kinds["inner"], initializer=init
        ),
        norm=kinds.get("norm", "post"),
        dropout=dropout,
        attention_norm=LayerNorm(eps),
        ffn_norm=LayerNorm(eps),
    )
    return Stack(block=Recurrence(block), layers=layers)


def xlnet(name: str, layers: int, width: int, heads: int, memory: int = 384) -> System:
    """XLNet (Yang et al. 2019): permutation language modelling; section 2.
    It has two streams and a memory.

    Row 49. Base and large have the recipe of Table 7 (XLNet-Large); clipping, end of the decay and
    no bias correction are from zihangdai/xlnet, train.py and model_utils.py. GELU has its tanh
    form, as there. A row is text that goes into the memory, followed by a pair, distinguished by
    relative segments; half of the text is read from right to left. Deviations: see `XLNetPairs` and
    `PermutationOrder`.
    """
    init = Normal(0.02)
    stack = recurrent(
        layers, width, heads, 4 * width,
        dropout=0.1, attention_dropout=0.1, activation="gelu_tanh", inner=0.0, eps=1e-12,
        scores=DirectedScores, segments=True,
    )  # fmt: skip
    return System(
        name=name,
        paper="Yang et al. 2019, arXiv 1906.08237",
        section="3.1.3",
        group="Transformer encoders",
        rows=(49,),
        towers={
            "main": Model(
                encoder=XLNetEncoder(
                    embed=Embeddings(vocab=XLNET, width=width, dropout=0.1, initializer=init),
                    stack=stack,
                    memory=memory,
                    direction="bidirectional",
                    query=init,
                    dropout=0.1,
                    reuse=0.5,
                ),
                heads={"lm": LMHead(bias=True)},
            )
        },
        tokenizer=TokenizerSpec(kind="unigram", vocab=32_000, lowercase=False, specials="xlnet"),
        examples=XLNetPairs(reuse=0.5),
        corruption=PermutationOrder(vocab=XLNET, k=6, longest=5, specials="ranked", blocks=2),
        objective=PLM(),
        recipe=Recipe(
            phases=(Phase(steps=500_000, batch=8192, length=512),),
            lr=4e-4,
            optimizer=AdamW(b1=0.9, b2=0.999, eps=1e-6, weight_decay=0.01, bias_correction=False),
            schedule=Linear(warmup=40_000, end=0.001),
            clip=1.0,
        ),
    )


ENWIK8 = Vocab(size=204)
TEXT8 = Vocab(size=27)
WIKITEXT103 = Vocab(size=267_735, eos=0)
CUTOFFS = (20_000, 40_000, 200_000)
PAPER = "Dai et al. 2019, arXiv 1901.02860"


@dataclasses.dataclass(frozen=True)
class Training:
    """Settings that differ between the training scripts of Transformer-XL.
    kimiyoung/transformer-xl, pytorch/run_*.sh."""

    length: int
    batch: int
    steps: int
    warmup: int = 0
    dropout: float = 0.1
    attention_dropout: float = 0.0


@dataclasses.dataclass(frozen=True)
class Words:
    """A word vocabulary and its adaptive softmax.

    cutoffs        boundaries of the clusters
    projections    clusters in which the softmax shares the embeddings' projections
                   (pytorch/train.py): all but the first ("tail"), or "none"
    text           bytes of text from which words are counted, the whole corpus; None: trains
                   subword pieces instead
    """

    vocab: Vocab = WIKITEXT103
    cutoffs: tuple[int, ...] = CUTOFFS
    projections: Literal["tail", "none"] = "tail"
    text: int | None = 550_000_000


BILLION = Words(Vocab(size=793_470, eos=0), (60_000, 100_000, 640_000), "none", text=4_500_000_000)
"""The vocabulary of the One Billion Word benchmark, from rafaljozefowicz/lm."""


def transformer_xl(
    name: str, embed, head, layers: int, heads: int, *, hidden: int, training: Training
) -> System:
    """Transformer-XL (Dai et al. 2019, section 3): a causal model with relative positions.
    The previous row is in memory.

    Row 48. All layers share one pair u and v, as in the paper. The memory has the length of a row
    in training; in evaluation the paper's is longer (`memory`). Deviations: no dropout on the
    sinusoids; the cosine ends at 0 on the last step.
    """
    width, rate = embed.width, training.dropout
    stack = recurrent(
        layers, width, heads, hidden,
        dropout=rate, attention_dropout=training.attention_dropout,
        activation="relu", inner=rate, eps=1e-5,
        scores=ShiftedScores, segments=False,
    )  # fmt: skip
    encoder = TransformerXL(
        embed=dataclasses.replace(embed, scale=width**0.5, dropout=rate),
        stack=dataclasses.replace(stack, shared="relative/[uv]$"),
        memory=training.length,
        dropout=rate,
    )
    return System(
        name=name,
        paper=PAPER,
        section="2.4.2",
        group="Transformer decoders",
        rows=(48,),
        towers={"main": Model(encoder=encoder, heads={"lm": head})},
        tokenizer=TokenizerSpec(
            kind="bytebpe", vocab=embed.vocab.size, lowercase=False, specials="gpt2"
        ),
        examples=Contiguous(separator="eos", continuing=True),
        objective=LM(),
        recipe=Recipe(
            phases=(Phase(steps=training.steps, batch=training.batch, length=training.length),),
            lr=2.5e-4,
            optimizer=AdamW(b1=0.9, b2=0.999, eps=1e-8, weight_decay=0.0),
            schedule=Cosine(warmup=training.warmup),
            clip=0.25,
        ),
    )


def of_words(
    name: str,
    layers: int,
    width: int,
    heads: int,
    hidden: int,
    *,
    divide: int,
    training: Training,
    words: Words = Words(),
) -> System:
    """Transformer-XL over words sorted by frequency, with adaptive input and softmax.

    The base model on the One Billion Word benchmark has the sizes of pytorch/run_lm1b_base.sh, 0.36
    B parameters. The paper's Table 4 prints 0.46 B; with a second table for the softmax the model
    would have 0.467 B.

    Deviations: punctuation marks are separate words; there is one separator, not two, between
    sentences of the One Billion Word benchmark; its TensorFlow program, from which the large model
    was released, omits the first cluster's projections if they would be square.
    """
    cut = {"vocab": words.vocab, "cutoffs": words.cutoffs, "divide": divide}
    embed, head = (
        AdaptiveEmbeddings(width=width, **cut),
        AdaptiveHead(projections=words.projections, **cut),
    )
    parent = transformer_xl(name, embed, head, layers, heads, hidden=hidden, training=training)
    if words.text is None:
        return parent
    tokenizer = TokenizerSpec(
        kind="word", vocab=words.vocab.size, lowercase=False, specials="t5", train_bytes=words.text
    )
    return dataclasses.replace(parent, tokenizer=tokenizer)


def of_characters(
    name: str,
    layers: int,
    width: int,
    heads: int,
    hidden: int,
    *,
    training: Training,
    vocab: Vocab = ENWIK8,
) -> System:
    """Transformer-XL over the characters of enwik8 or text8 (Tables 2 and 3).

    It has a plain table and an output bias. A tokenizer trained here has all bytes.

    text8 has the settings tuned on enwik8 (section 4.1); only pytorch/run_text8_large.sh omits the
    warm-up. The sizes of the 88 M model with 18 layers (Table 2) and of the 24 M model on Penn
    Treebank (Table 5) were not published.
    """
    embed = Embeddings(vocab=vocab, width=width, initializer=Normal(0.02))
    parent = transformer_xl(
        name, embed, LMHead(bias=True), layers, heads, hidden=hidden, training=training
    )
    return dataclasses.replace(
        parent,
        tokenizer=dataclasses.replace(parent.tokenizer, vocab=257),
        examples=Contiguous(separator=None, continuing=True),
    )


def untied(system: System) -> System:
    """Returns the system with separate u and v in each layer (`untie_r`).
    The released models (transfo-xl-wt103) have them.

    The large release on WikiText-103 has 285.2 M parameters in 18 layers, like this system. The
    paper prints 257 M, the size of 16 layers.
    """
    return respell(system, Stack, lambda stack: dataclasses.replace(stack, shared=None))


def systems() -> Iterator[System]:
    yield xlnet("xlnet_base", 12, 768, 12)
    yield xlnet("xlnet_large", 24, 1024, 16)
    yield miniature(xlnet("", 2, 128, 2, memory=64), "xlnet_mini", steps=140, lr=2e-3, std=0.08)
    yield of_words(
        "transformer_xl_wt103",
        16,
        410,
        10,
        2100,
        divide=1,
        training=Training(length=150, batch=60, steps=200_000),
    )
    long = Training(
        length=384, batch=128, steps=4_000_000, warmup=16_000, dropout=0.2, attention_dropout=0.2
    )
    yield untied(
        of_words("transformer_xl_wt103_large", 18, 1024, 16, 4096, divide=4, training=long)
    )
    yield of_characters(
        "transformer_xl_enwik8",
        12,
        512,
        8,
        2048,
        training=Training(length=512, batch=22, steps=400_000),
    )
    long = Training(
        length=768, batch=64, steps=400_000, warmup=4000, dropout=0.15, attention_dropout=0.15
    )
    yield of_characters("transformer_xl_enwik8_large", 24, 1024, 8, 3072, training=long)
    yield of_characters(
        "transformer_xl_text8",
        12,
        512,
        8,
        2048,
        training=Training(length=512, batch=22, steps=400_000),
        vocab=TEXT8,
    )
    yield of_characters("transformer_xl_text8_large", 24, 1024, 8, 3072, training=long, vocab=TEXT8)
    short = Training(length=32, batch=224, steps=500_000, warmup=20_000, dropout=0.0)
    yield of_words(
        "transformer_xl_lm1b", 18, 1024, 8, 4096, divide=4, training=short, words=BILLION
    )
    short = Training(
        length=32, batch=512, steps=1_200_000, warmup=30_000, dropout=0.05, attention_dropout=0.05
    )
    yield untied(
        of_words(
            "transformer_xl_lm1b_large", 24, 1280, 16, 8192, divide=4, training=short, words=BILLION
        )
    )
    yield from _miniatures()


def _miniatures() -> Iterator[System]:
    short = Training(length=64, batch=16, steps=1)
    small = of_words(
        "", 2, 128, 2, 512, divide=1, training=short, words=Words(cutoffs=(1000, 2000), text=None)
    )
    yield miniature(small, "transformer_xl_words_mini", steps=120, lr=2e-3)
    # A plain embedding table, which the heads of all other systems can use.
    small = dataclasses.replace(
        of_characters("", 2, 128, 2, 512, training=short), examples=small.examples
    )
    small = respell(small, Vocab, WIKITEXT103)
    yield miniature(small, "transformer_xl_mini", steps=120, lr=2e-3)
