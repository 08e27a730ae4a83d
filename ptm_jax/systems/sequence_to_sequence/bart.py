"""Encoder-decoders: the original Transformer, BART, MASS and PEGASUS.
T5 is in `t5.py`, HIBERT in `hibert.py`.

All use `EncoderDecoder`: encoder and decoder share one token table, and the vocabulary head is tied
to it. Vocabularies are the published ones; if a paper publishes no ids, a comment names the style
used instead.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, Literal

from ptm_jax.core.recipe import Adafactor, AdamW, InverseSqrt, Linear, Phase, Recipe
from ptm_jax.core.spec import values_of
from ptm_jax.core.system import System
from ptm_jax.core.types import Vocab
from ptm_jax.corruptions.base import Chain
from ptm_jax.corruptions.masking.gaps import GapSentences
from ptm_jax.corruptions.masking.noise import Reconstruct, SentencePermutation, TextInfilling
from ptm_jax.corruptions.masking.spans import MASSSpan
from ptm_jax.data.rows.annotated import Annotated
from ptm_jax.data.rows.examples import Packed
from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec
from ptm_jax.encoders.model import Model
from ptm_jax.encoders.transformer.hiding import HidingDecoder
from ptm_jax.encoders.transformer.seq2seq import EncoderDecoder
from ptm_jax.encoders.transformer.transformer import Transformer, transformer
from ptm_jax.nn.attention.multihead import CrossAttention
from ptm_jax.nn.embeddings.summed import LearnedPositions, Positions, Sinusoids
from ptm_jax.nn.heads.vocabulary import LMHead
from ptm_jax.nn.initializers import Initializer, Normal, Uniform
from ptm_jax.nn.layers import Activation
from ptm_jax.objectives.text.seq2seq import Seq2Seq
from ptm_jax.systems.transformers.bert_gpt import BYTE_BPE, ROBERTA, miniature

GROUP = "Encoder-decoders"

# The paper states 37,000 shared BPE entries but no ids; the specials have the order of
# `data.tokenizers.tokenizing.STYLES["roberta"]`.
WMT14 = Vocab(size=37000, bos=0, cls=0, pad=1, eos=2, sep=2, unk=3, mask=4)
# XLM's English-French vocabulary (facebookresearch/XLM, vocab_enfr): 14 specials, the mask is
# <special1>.
XLM_ENFR = Vocab(
    size=64139, bos=0, cls=0, eos=1, sep=1, pad=2, unk=3, mask=5, extra=(4, *range(6, 14))
)
# google-research/pegasus: ids below 105 are reserved; 2 masks a sentence, 3 masks a word (not used,
# see `pegasus`).
PEGASUS = Vocab(size=96103, pad=0, eos=1, mask=2, unk=105, extra=tuple(range(3, 105)))
PEGASUS_32K = dataclasses.replace(PEGASUS, size=32000)


def with_decoder(encoder: Transformer, positions: Positions) -> EncoderDecoder:
    """Returns the encoder with a causal decoder of the same size and token table.
    The decoder attends to the encoder.

    Cross-attention has the norm placement, initializer and dropout of the self-attention (Vaswani
    et al. 2017, Figure 1).
    """
    block = encoder.stack.block
    cross = CrossAttention(
        attention=block.attention,
        norm=block.norm,
        dropout=block.dropout,
        attention_norm=block.attention_norm,
    )
    replace = dataclasses.replace
    stack = replace(encoder.stack, block=replace(block, cross=cross))
    embed = replace(encoder.embed, given=True, position=positions)
    relative = encoder.relative and replace(encoder.relative, both_ways=False)
    return EncoderDecoder(
        encoder=encoder,
        decoder=replace(encoder, embed=embed, stack=stack, direction="causal", relative=relative),
    )


def seq2seq(
    *,
    vocab: Vocab,
    layers: int,
    width: int,
    heads: int,
    positions: Positions,
    initializer: Initializer,
    norm: Literal["post", "pre"] = "post",
    eps: float = 1e-5,
    activation: Activation = "gelu",
    embed_norm: bool = True,
    scale: float = 1.0,
    dropout: float = 0.1,
    attention_dropout: float = 0.1,
    hidden_dropout: float = 0.0,
    ffn_init: tuple[Any, Any] | None = None,
) -> EncoderDecoder:
    """Returns an encoder-decoder with N + N layers and feed-forward width 4 D.

    `norm="pre"` adds a final norm to both stacks. `scale` multiplies token embeddings. `ffn_init`
    holds the initializers of the two feed-forward layers.
    """
    encoder = transformer(
        vocab=vocab,
        layers=layers,
        width=width,
        heads=heads,
        positions=positions,
        norm=norm,
        eps=eps,
        activation=activation,
        dropout=dropout,
        embed_norm=embed_norm,
        final_norm=norm == "pre",
        initializer=initializer,
    )
    block = encoder.stack.block
    up, down = ffn_init or (initializer, None)
    block = dataclasses.replace(
        block,
        attention=dataclasses.replace(block.attention, dropout=attention_dropout),
        ffn=dataclasses.replace(block.ffn, dropout=hidden_dropout, initializer=up, out_init=down),
    )
    encoder = dataclasses.replace(
        encoder,
        embed=dataclasses.replace(encoder.embed, scale=scale),
        stack=dataclasses.replace(encoder.stack, block=block),
    )
    return with_decoder(encoder, positions)


def hiding(both: EncoderDecoder) -> EncoderDecoder:
    """Returns `both` with a decoder that does not attend to positions masked in the encoder."""
    return dataclasses.replace(both, decoder=HidingDecoder(**values_of(both.decoder)))


def vaswani(
    name: str,
    layers: int,
    width: int,
    heads: int,
    dropout: float,
    *,
    steps: int,
    norm: Literal["post", "pre"] = "post",
) -> System:
    """The Transformer (Vaswani et al. 2017): post-norm, ReLU, sinusoids.
    Both sides and the output share one table.

    Row 26; sizes of Table 3, recipe of section 5: Adam (0.9, 0.98, 1e-9), d^-0.5 min(s^-0.5, s
    4000^-1.5), label smoothing 0.1, batches of about 25,000 tokens. `norm="pre"` is tensor2tensor's
    later placement, with a final norm.

    Deviations: the paper translates WMT 2014; this catalogue trains on one text, so the network
    restores infilled and permuted text (BART's task). Attention has biases here and none in
    tensor2tensor. With the "about 37,000" entries of section 5.1 the models have 63.1 M and 214.2 M
    parameters; Table 3 prints 65 M and 213 M. The printed sizes need 41,003 to 41,208 entries for
    all rows but big's, and 35,368 to 36,344 for big's (`tests/systems/test_sizes.py`).
    """
    rate = width**-0.5
    encoder = seq2seq(
        vocab=WMT14,
        layers=layers,
        width=width,
        heads=heads,
        positions=Sinusoids(interleave=True),
        norm=norm,
        eps=1e-6,
        activation="relu",
        embed_norm=False,
        scale=width**0.5,
        dropout=dropout,
        attention_dropout=0.0,
        initializer=Normal(rate),
        # Glorot's standard deviation for [D, 4 D] and [4 D, D]; for [D, D] it equals the table's.
        ffn_init=(Normal((2 / 5) ** 0.5 * rate),) * 2,
    )
    return System(
        name=name,
        paper="Vaswani et al. 2017, arXiv 1706.03762",
        section="2.3",
        group=GROUP,
        rows=(26,),
        towers={"main": Model(encoder=encoder, heads={"lm": LMHead()})},
        tokenizer=TokenizerSpec(kind="bpe", vocab=37000, lowercase=False, specials="roberta"),
        examples=Annotated(examples=Packed(), fields=("sentences",)),
        corruption=denoising(WMT14),
        objective=Seq2Seq(label_smoothing=0.1),
        recipe=Recipe(
            phases=(Phase(steps=steps, batch=98, length=256),),
            lr=rate * 4000**-0.5,
            optimizer=AdamW(b1=0.9, b2=0.98, eps=1e-9, weight_decay=0.0),
            schedule=InverseSqrt(warmup=4000),
            clip=None,
        ),
    )


def denoising(vocab: Vocab) -> Reconstruct:
    """Returns BART's final noise: sentence permutation and 30% text infilling.
    Lewis et al. 2020, section 5.1."""
    noise = Chain(
        parts=(SentencePermutation(vocab=vocab), TextInfilling(vocab=vocab, rate=0.3, mean=3.0))
    )
    return Reconstruct(vocab=vocab, noise=noise)


def bart(name: str, layers: int, width: int, heads: int, lr: float, *, warmup: int) -> System:
    """BART (Lewis et al. 2020): post-norm, GELU; text infilling and permutation.
    Embeddings and vocabulary are RoBERTa's.

    Row 55. `layers` on each side; 8000 rows, 500,000 steps (section 5.1). The paper gives no
    optimiser. Large has the rate, warm-up, decay, clipping and epsilon of the authors' command, as
    copied in other repositories. Base has RoBERTa's rate and warm-up, since its recipe is not
    published. Released configurations have `activation_dropout` 0.1. The tied output has no dense
    layer before it and no bias: `final_logits_bias` of the Hugging Face class is a buffer of zeros.
    Deviations: dropout stays on in the last 10% of the steps (off in the paper); spans have mean 3
    and only masks, as in the paper (in the command: mean 3.5, and 10% of the masks are random
    words).
    """
    init = Normal(0.02)
    return System(
        name=name,
        paper="Lewis et al. 2020, arXiv 1910.13461",
        section="3.1.4",
        group=GROUP,
        rows=(55,),
        towers={
            "main": Model(
                encoder=seq2seq(
                    vocab=ROBERTA,
                    layers=layers,
                    width=width,
                    heads=heads,
                    positions=LearnedPositions(1026, offset=2, initializer=init),
                    hidden_dropout=0.1,
                    initializer=init,
                ),
                heads={"lm": LMHead()},
            )
        },
        tokenizer=BYTE_BPE,
        examples=Annotated(examples=Packed(), fields=("sentences",)),
        corruption=denoising(ROBERTA),
        objective=Seq2Seq(),
        recipe=Recipe(
            phases=(Phase(steps=500_000, batch=8000, length=512),),
            lr=lr,
            optimizer=AdamW(b1=0.9, b2=0.999, eps=1e-8, weight_decay=0.01),
            schedule=Linear(warmup=warmup),
            clip=0.1,
        ),
    )


def mass(name: str, layers: int, width: int, heads: int) -> System:
    """MASS (Song et al. 2019): the decoder predicts a fragment masked in the encoder.
    The fragment is half of the text.

    Row 54. Network and recipe are from microsoft/MASS (XLM's post-norm Transformer with 512 learned
    positions and a norm on the embeddings; Adam 1e-4, 3000 tokens on each of 8 devices), with the
    English-French vocabulary. Its command runs 100 epochs of 200,000 sentences, counted here as
    200,000 steps. As with the code's `english_only`, there is one language: no language embeddings
    and no cross-attention output matrix per language. As in the code, the decoder does not attend
    to masked positions of the encoder, and its input begins with the token before the fragment.
    Deviations: one token table for both sides (the code trains two); rows are packed documents, not
    sentences.
    """
    table, near, far = Normal(width**-0.5), Uniform(width**-0.5), Uniform((4 * width) ** -0.5)
    encoder = seq2seq(
        vocab=XLM_ENFR,
        layers=layers,
        width=width,
        heads=heads,
        positions=LearnedPositions(512, initializer=table),
        eps=1e-12,
        initializer=table,
        ffn_init=(near, far),
    )
    return System(
        name=name,
        paper="Song et al. 2019, arXiv 1905.02450",
        section="3.1.2",
        group=GROUP,
        rows=(54,),
        towers={"main": Model(encoder=hiding(encoder), heads={"lm": LMHead(bias=True)})},
        tokenizer=TokenizerSpec(kind="bpe", vocab=64139, lowercase=False, specials="roberta"),
        examples=Packed(begin="eos", end="eos"),
        corruption=MASSSpan(vocab=XLM_ENFR, rate=0.5, previous=True),
        objective=Seq2Seq(),
        recipe=Recipe(
            phases=(Phase(steps=200_000, batch=96, length=256),),
            lr=1e-4,
            optimizer=AdamW(b1=0.9, b2=0.98, eps=1e-8, weight_decay=0.0),
            schedule=InverseSqrt(warmup=4000),
            clip=5.0,
        ),
    )


def pegasus(name: str, layers: int, width: int, heads: int, vocab: Vocab, *, batch: int) -> System:
    """PEGASUS (Zhang et al. 2020): a pre-norm Transformer that generates masked sentences.
    The sentences are masked in its input.

    Row 64, section 6: 512 tokens, 30% of the sentences, 500,000 steps, Adafactor at max(step,
    10,000)^-0.5 (google-research/ pegasus, params/estimator_utils.py; its pegasus_params.py is a
    later model, 1.5 million steps and 15 to 45%). Base has 223 M parameters with the 32k vocabulary
    of the ablations, large 568 M with the 96k unigram vocabulary. The second reserved mask (words,
    MLM) is not used: the paper's large model has no MLM.

    Deviations: `GapSentences` scores sentences by token ids, not by stemmed words; parameters are
    initialised from N(0, 0.02^2), not Glorot's uniform; a vocabulary trained here has the specials
    of the roberta style; short documents share a row, and sentences are compared over the whole
    row.
    """
    return System(
        name=name,
        paper="Zhang et al. 2020, arXiv 1912.08777",
        section="3.1.2",
        group=GROUP,
        rows=(64,),
        towers={
            "main": Model(
                encoder=seq2seq(
                    vocab=vocab,
                    layers=layers,
                    width=width,
                    heads=heads,
                    positions=Sinusoids(),
                    norm="pre",
                    activation="relu",
                    embed_norm=False,
                    scale=width**0.5,
                    hidden_dropout=0.1,
                    initializer=Normal(0.02),
                ),
                heads={"lm": LMHead()},
            )
        },
        tokenizer=TokenizerSpec(
            kind="unigram", vocab=vocab.size, lowercase=False, specials="roberta"
        ),
        examples=Annotated(examples=Packed(begin=None, end="eos"), fields=("sentences",)),
        corruption=GapSentences(vocab=vocab, rate=0.3),
        objective=Seq2Seq(),
        recipe=Recipe(
            phases=(Phase(steps=500_000, batch=batch, length=512),),
            lr=0.01,
            optimizer=Adafactor(decay_rate=0.8),
            schedule=InverseSqrt(warmup=10_000, ramp=False),
            clip=None,
        ),
    )


def systems() -> Iterator[System]:
    yield vaswani("transformer_base", 6, 512, 8, dropout=0.1, steps=100_000)
    yield vaswani("transformer_big", 6, 1024, 16, dropout=0.3, steps=300_000)
    yield bart("bart_base", 6, 768, 12, lr=6e-4, warmup=24_000)
    yield bart("bart_large", 12, 1024, 16, lr=4e-4, warmup=10_000)
    yield miniature(
        bart("", 2, 128, 4, lr=6e-4, warmup=1), "bart_mini", steps=130, lr=2e-3, std=0.08
    )
    yield mass("mass_enfr", 6, 1024, 8)
    yield miniature(mass("", 2, 128, 4), "mass_mini", steps=170, lr=2e-3)
    yield pegasus("pegasus_base", 12, 768, 12, PEGASUS_32K, batch=256)
    yield pegasus("pegasus_large", 16, 1024, 16, PEGASUS, batch=8192)
    yield miniature(
        pegasus("", 2, 128, 4, PEGASUS, batch=1), "pegasus_mini", steps=120, lr=2e-3, std=0.08
    )
