"""T5 1.0 and 1.1, models in their format (UL2, Flan-T5, LM-adapted T5, byT5's layers), and mT5.

Transformers decides by the tensors of a file whether encoder, decoder and head have one table of
tokens: tables that differ are not tied. Our config.json has a field for it, `SEPARATE`.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from ptm_jax.convert import table
from ptm_jax.convert.config import ACTIVATIONS, PUBLISHED, Config
from ptm_jax.convert.family import Family, classes, families, is_pair, several_tables
from ptm_jax.convert.files import Tensors
from ptm_jax.convert.records import pair_heads, record_with, task_fields, vocab_of
from ptm_jax.convert.table import Line
from ptm_jax.core.errors import UserError
from ptm_jax.core.reading import shown
from ptm_jax.core.spec import override, respell
from ptm_jax.core.system import System
from ptm_jax.encoders.transformer.seq2seq import EncoderDecoder
from ptm_jax.nn.attention.multihead import Attention, CrossAttention
from ptm_jax.nn.attention.relative import Buckets
from ptm_jax.nn.blocks import Block, FeedForward
from ptm_jax.nn.embeddings.summed import Embeddings
from ptm_jax.nn.heads.vocabulary import LMHead
from ptm_jax.nn.initializers import Normal
from ptm_jax.nn.layers import RMSNorm
from ptm_jax.systems.sequence_to_sequence.t5 import t5, t5_network

TEXTS = ("ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering")
HEADS = classes("", {"ForConditionalGeneration": ("lm",), "EncoderModel": ()}, TEXTS)
HALVES = ("EncoderModel", "ForTokenClassification")
WRAPPED = ("ForSequenceClassification", "ForTokenClassification")
"""Classes that contain the bare model as `transformer`; the other classes contain its parts
directly."""
SEPARATE = "separate_embeddings"
"""The field of a config whose encoder, decoder and head have a table of tokens each."""
TABLES = tuple(f"{side}.embed_tokens.weight" for side in ("encoder", "decoder"))


def activation(config: Config) -> tuple[str, bool]:
    """Returns (our activation, gated) for `feed_forward_proj`: "relu" or "gated-gelu".
    The GELU is the tanh form."""
    written = config(
        "feed_forward_proj", str, "gated-gelu" if config("model_type", str) == "mt5" else "relu"
    )
    gate, _, name = written.rpartition("-")
    if gate not in ("", "gated") or name not in ACTIVATIONS:
        raise UserError(
            f"{config.file}: feed_forward_proj is {shown(written)}; supported are NAME and "
            "gated-NAME, NAME being one of "
            f"{', '.join(ACTIVATIONS)}"
        )
    return ("gelu_tanh" if written == "gated-gelu" else ACTIVATIONS[name]), gate == "gated"


def projection(ffn: FeedForward) -> str:
    """Returns `feed_forward_proj` for our layer."""
    if not ffn.gated:
        return PUBLISHED[ffn.activation]
    named = {"gelu_tanh": "gelu", "gelu": "gelu_python"}
    return f"gated-{named.get(ffn.activation) or PUBLISHED[ffn.activation]}"


def scaled(config: Config) -> bool:
    """Returns whether the head's features are scaled by D^-0.5, as those of T5 1.0 with the tied
    table. T5 1.1 has a table of its own, unscaled.

    Transformers 4 stores this in `tie_word_embeddings`, Transformers 5 in `scale_decoder_outputs`.
    If an untied table is missing from the file, it is a copy of the shared one. mT5's head is never
    scaled, as in Transformers 5.
    """
    tied = config("tie_word_embeddings", bool, True)
    return config("model_type", str) == "t5" and config("scale_decoder_outputs", bool, tied)


def network(config: Config) -> EncoderDecoder:
    """Returns the encoder-decoder of a config."""
    act, gated = activation(config)
    vocab = vocab_of(config, pad=0, eos=1)
    sizes = {
        "layers": config.count("num_layers"),
        "width": config.positive("d_model"),
        "heads": config.positive("num_heads"),
        "head_width": config.positive("d_kv"),
        "hidden": config.positive("d_ff"),
    }
    rate, factor = config("dropout_rate", float, 0.1), config("initializer_factor", float, 1.0)

    def change(**words):
        return lambda part: dataclasses.replace(part, **words)

    buckets = config.positive("relative_attention_num_buckets", 32)
    farthest = config.positive("relative_attention_max_distance", 128)
    if buckets < 4 or farthest <= buckets // 2:
        raise ValueError(
            f"relative_attention_num_buckets {buckets} needs to be 4 or more, and less than "
            f"twice the max_distance {farthest}"
        )
    net = t5_network("1.1" if gated else "1.0", vocab, **sizes)
    edits = {
        FeedForward: change(activation=act, dropout=rate),
        RMSNorm: change(eps=config("layer_norm_epsilon", float, 1e-6)),
        Buckets: change(buckets=buckets, farthest=farthest),
        Normal: lambda init: Normal(init.std * factor),
        **dict.fromkeys((Attention, CrossAttention, Block, Embeddings), change(dropout=rate)),
    }
    for kind, edit in edits.items():
        net = respell(net, kind, edit)
    layers, start = (
        config.count("num_decoder_layers", sizes["layers"]),
        config("decoder_start_token_id", int, vocab.pad),
    )
    shared = not config(SEPARATE, bool, False)
    return override(
        net, {"decoder.stack.layers": layers, "start": start, "decoder.embed.given": shared}
    )


def completed(config: Config, tensors: Tensors) -> Config:
    """Returns the config with `SEPARATE` where the file has two tables."""
    return config.filled(**{SEPARATE: True}) if several_tables(tensors) else config


def build(config: Config, architecture: str) -> System:
    net, name = network(config), architecture.removeprefix(config("model_type", str).upper())
    width, vocab, init = net.embed.width, net.embed.vocab, net.decoder.stack.block.ffn.initializer
    one = scaled(config)
    lm = LMHead(scale=width**-0.5 if one else 1.0)
    tied = config("tie_word_embeddings", bool, True)
    if not one or not tied or config(SEPARATE, bool, False):
        lm = dataclasses.replace(lm, vocab=vocab, tied=False, initializer=init)
    heads = {"lm": lm, **pair_heads(config, init, vocab.eos)}
    parent = t5("", "1.0" if one else "1.1", 2, 128, 4, head_width=32, hidden=512)
    return record_with(config, parent, net.encoder if name in HALVES else net, heads, HEADS[name])


def lines(config: Config, architecture: str) -> tuple[Line, ...]:
    root = "transformer." if architecture.endswith(WRAPPED) else ""
    sides = (
        {"encoder": "encoder"}
        if architecture.endswith(HALVES)
        else {s: f"encoder/{s}" for s in ("encoder", "decoder")}
    )
    _, gated = activation(config)
    separate = config(SEPARATE, bool, False)
    return (
        *(
            Line(f"{ours}/embed/token", f"{root}{side}.embed_tokens.weight")
            for side, ours in sides.items()
            if separate
        ),
        Line(f"{sides['encoder']}/embed/token", f"{root}shared.weight"),
        *(line for side, ours in sides.items() for line in _half_lines(ours, root + side, gated)),
        Line("heads_lm/table", "lm_head.weight"),
        *table.tasks("classification_head.out_proj", "classification_head.dense"),
    )


def _half_lines(ours: str, theirs: str, gated: bool) -> tuple[Line, ...]:
    block, layer = f"{ours}/stack/block", f"{theirs}.block.{{i}}.layer"
    last = f"{layer}.{2 if theirs.endswith('decoder') else 1}"
    return (
        Line(
            f"{ours}/relative/table",
            f"{theirs}.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
        ),
        *table.attention(f"{block}/attention", f"{layer}.0.SelfAttention.", "qkvo"),
        Line(f"{block}/attention_norm", f"{layer}.0.layer_norm", "norm"),
        *table.attention(f"{block}/cross/attention", f"{layer}.1.EncDecAttention.", "qkvo"),
        Line(f"{block}/cross/attention_norm", f"{layer}.1.layer_norm", "norm"),
        Line(f"{block}/ffn/up", f"{last}.DenseReluDense.{'wi_0' if gated else 'wi'}", "dense"),
        Line(f"{block}/ffn/gate", f"{last}.DenseReluDense.wi_1", "dense"),
        Line(f"{block}/ffn/down", f"{last}.DenseReluDense.wo", "dense"),
        Line(f"{block}/ffn_norm", f"{last}.layer_norm", "norm"),
        Line(f"{ours}/stack/final_norm", f"{theirs}.final_layer_norm", "norm"),
    )


def config(system: System) -> dict[str, Any]:
    core, heads, pair = system.towers["main"].encoder, system.towers["main"].heads, is_pair(system)
    first, last = (core.encoder, core.decoder) if pair else (core, core)
    block, vocab = first.stack.block, core.embed.vocab
    fields = {
        "vocab_size": vocab.size,
        "pad_token_id": vocab.pad,
        "eos_token_id": vocab.eos,
        "d_model": block.attention.width,
        "d_kv": block.attention.head_width,
        "d_ff": block.ffn.hidden,
        "num_heads": block.attention.heads,
        "num_layers": first.stack.layers,
        "num_decoder_layers": last.stack.layers,
        "relative_attention_num_buckets": first.relative.buckets,
        "relative_attention_max_distance": first.relative.farthest,
        "dropout_rate": block.dropout,
        "layer_norm_epsilon": block.attention_norm.eps,
        "initializer_factor": core.embed.initializer.std,
        "feed_forward_proj": projection(block.ffn),
        "tie_word_embeddings": "lm" not in heads or heads["lm"].tied,
        "is_encoder_decoder": pair,
    }
    if pair:
        fields["decoder_start_token_id"] = core.start
        separate, is_scaled = (
            not core.decoder.embed.given,
            "lm" in heads and heads["lm"].scale != 1.0,
        )
        if separate:
            fields[SEPARATE] = True
        if separate or is_scaled and not heads["lm"].tied:
            fields["scale_decoder_outputs"] = is_scaled
    return fields | task_fields(heads)


def _family(model_type: str, prefix: str) -> Family:
    inner = ("shared.weight", *TABLES)
    return Family(
        model_type=model_type,
        build=build,
        lines=lines,
        config=config,
        root="transformer.",
        heads={prefix + name: heads for name, heads in HEADS.items()},
        ties=dict.fromkeys((*TABLES, "lm_head.weight"), "shared.weight"),
        # An early release has an unused bias in the decoder's first cross-attention.
        ignore=(r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight$",),
        fill={
            "lm_head.weight": inner,
            **{name: inner for name in inner},
            **{f"transformer.{name}": inner for name in inner},
        },
        completed=completed,
        halves=tuple(prefix + name for name in HALVES),
    )


families.add(_family("t5", "T5"), _family("mt5", "MT5"))
