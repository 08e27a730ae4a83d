"""ModernBERT (Warner et al. 2024) and models in its format: Ettin's encoders, mmBERT."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ptm_jax.convert import table
from ptm_jax.convert.config import ACTIVATIONS, PUBLISHED, Config
from ptm_jax.convert.families.modern import angles
from ptm_jax.convert.family import Family, classes, families
from ptm_jax.convert.records import (
    mlm_head,
    record_with,
    special_ids,
    task_fields,
    tied,
    vocab_of,
)
from ptm_jax.convert.table import Line
from ptm_jax.core import slots
from ptm_jax.core.errors import UserError
from ptm_jax.core.system import System
from ptm_jax.encoders.transformer.transformer import Transformer
from ptm_jax.nn.attention.rotary import LocalLayers
from ptm_jax.nn.heads.task_heads import ChoiceHead, SequenceHead
from ptm_jax.nn.heads.transformed import (
    Transformation,
    TransformedSpans,
    TransformedSummary,
    TransformedTokens,
)
from ptm_jax.nn.initializers import TruncatedNormal
from ptm_jax.systems.transformers.modern import modernbert

ROOT = "model."
THETAS = {"full_attention": 160_000.0, "sliding_attention": 10_000.0}
OLD_THETAS = {"full_attention": "global_rope_theta", "sliding_attention": "local_rope_theta"}
HEADS = classes("ModernBert", {})
POOLING = {"cls": "first", "mean": "mean"}


def width_of(config: Config, least: int) -> int:
    """Returns the width of the window of a config. Raises UserError for one below `least`."""
    width = config("local_attention", int, 128)
    if width < least:
        raise UserError(f"{config.file}: local_attention is {width}; it must be at least {least}")
    return config.positive("local_attention", 128)


def pattern(config: Config, layers: int) -> LocalLayers:
    """Returns the pattern of full and local layers of a config."""
    window = width_of(config, least=2)
    every = config.positive("global_attn_every_n_layers", 3)
    kinds = [angles.KINDS[i % every == 0] for i in range(layers)]
    return angles.pattern(config, layers, window // 2, kinds)


def theta(config: Config, kind: str) -> float:
    """Returns theta of full or local layers."""
    return angles.theta(config, THETAS[kind], kind, OLD_THETAS[kind])


def encoder(config: Config, local: LocalLayers) -> Transformer:
    """Returns the encoder of a config with a pattern of local layers."""
    layers = config.count("num_hidden_layers")
    block = modernbert.block(
        layers=layers,
        width=config.positive("hidden_size"),
        heads=config.positive("num_attention_heads"),
        hidden=config.positive("intermediate_size"),
        local=local,
        theta=theta(config, "full_attention"),
        local_theta=theta(config, "sliding_attention"),
        eps=config("norm_eps", float, 1e-5),
        norm_bias=config("norm_bias", bool, False),
        attention_bias=config("attention_bias", bool, False),
        ffn_bias=config("mlp_bias", bool, False),
        activation=config.one_of("hidden_activation", ACTIVATIONS, "gelu"),
        attention_dropout=config("attention_dropout", float, 0.0),
        ffn_dropout=config("mlp_dropout", float, 0.0),
        std=config("initializer_range", float, 0.02),
    )
    return modernbert.encoder(
        block,
        vocab=vocab_of(config, 50368, pad=50283, cls=50281, sep=50282),
        layers=layers,
        limit=config.positive("max_position_embeddings", 8192),
        dropout=config("embedding_dropout", float, 0.0),
    )


def build(config: Config, architecture: str) -> System:
    """Returns the record of a checkpoint."""
    core = encoder(config, pattern(config, config.count("num_hidden_layers")))
    norm, init = core.stack.final_norm, core.stack.block.attention.out_init
    last = TruncatedNormal(core.embed.width**-0.5)
    fields = {
        "activation": config.one_of("classifier_activation", ACTIVATIONS, "gelu"),
        "eps": norm.eps,
        "center": norm.center,
        "initializer": init,
    }
    bias = config("classifier_bias", bool, False)
    transform = Transformation(bias=bias, **fields)
    pooling = config.one_of("classifier_pooling", POOLING, "cls")
    summary = TransformedSummary(at=pooling, transform=transform)
    task = {"dropout": config("classifier_dropout", float, 0.0), "initializer": last}
    words = {"dense_bias": bias, "bias": config("decoder_bias", bool, True)}
    heads = {
        "mlm": mlm_head(config, core, **words, **fields),
        "classify": SequenceHead(config.labels, summary, **task),
        "choose": ChoiceHead(config.positive("num_choices", 2), summary, **task),
        "tag": TransformedTokens(config.labels, transform, **task),
        "span": TransformedSpans(transform, **task),
    }
    parent = modernbert.modernbert("", 2, 128, 2, 192, lr=8e-4, decay=1e-5)
    return record_with(config, parent, core, heads, HEADS[architecture])


def encoder_lines() -> tuple[Line, ...]:
    """Returns the lines of the encoder without queries, keys and values."""
    block, layer = "encoder/stack/block", f"{ROOT}layers.{{i}}."
    parts = enumerate(("ffn/up", "ffn/gate"))
    return (
        Line("encoder/embed/token", f"{ROOT}embeddings.tok_embeddings.weight"),
        Line("encoder/embed/norm", f"{ROOT}embeddings.norm", "norm"),
        Line(f"{block}/attention_norm", f"{layer}attn_norm", "norm", first=1),
        Line(f"{block}/attention/out", f"{layer}attn.Wo", "dense", ins=2),
        Line(f"{block}/ffn_norm", f"{layer}mlp_norm", "norm"),
        *(Line(f"{block}/{name}", f"{layer}mlp.Wi", "dense", part=(i, 2)) for i, name in parts),
        Line(f"{block}/ffn/down", f"{layer}mlp.Wo", "dense"),
        Line("encoder/stack/final_norm", f"{ROOT}final_norm", "norm"),
    )


def lines(config: Config, architecture: str) -> tuple[Line, ...]:
    """Returns the rename table. The first layer has no norm before its attention."""
    return (
        *encoder_lines(),
        *table.joined("encoder/stack/block/attention", f"{ROOT}layers.{{i}}.attn.Wqkv", "dense"),
        *table.vocabulary("head.dense", "head.norm", "decoder.bias", "decoder.weight"),
        *task_lines(("classify/summary", "choose/summary", "tag", "span")),
        *(
            Line(f"heads_{name}", "classifier", "dense")
            for name in ("classify/classes", "choose/score", "tag/classes", "span/ends")
        ),
    )


def task_lines(places: Sequence[str]) -> list[Line]:
    """Returns the lines of the transformations of the task heads."""
    kinds = (("dense", "dense"), ("norm", "norm"))
    return [
        Line(f"heads_{place}/transform/{name}", f"head.{name}", kind)
        for place in places
        for name, kind in kinds
    ]


def encoder_fields(core: Transformer) -> dict[str, Any]:
    """Returns the fields of a config.json that describe the encoder of a record."""
    embed, block, layers = core.embed, core.stack.block, core.stack.layers
    attention, ffn, norm = block.attention, block.ffn, core.stack.final_norm
    rotary, local = attention.rotary, attention.local
    thetas = {"full_attention": rotary.theta, "sliding_attention": rotary.local_theta}
    return {
        "vocab_size": embed.vocab.size,
        **special_ids(embed.vocab, "pad", "cls", "sep"),
        "bos_token_id": embed.vocab.id("cls"),
        "eos_token_id": embed.vocab.id("sep"),
        "hidden_size": attention.width,
        "num_hidden_layers": layers,
        "num_attention_heads": attention.heads,
        "intermediate_size": ffn.hidden,
        "hidden_activation": PUBLISHED[ffn.activation],
        "max_position_embeddings": embed.position.limit,
        "local_attention": 2 * local.radius,
        "layer_types": angles.types_of(local, layers),
        "rope_parameters": {kind: angles.angles(value) for kind, value in thetas.items()},
        "norm_eps": norm.eps,
        "norm_bias": norm.center,
        "attention_bias": attention.bias,
        "mlp_bias": ffn.bias,
        "embedding_dropout": embed.dropout,
        "attention_dropout": attention.dropout,
        "mlp_dropout": ffn.dropout,
        "initializer_range": embed.initializer.std,
    }


def config(system: System) -> dict[str, Any]:
    """Returns the fields of a config.json."""
    core, heads = system.towers["main"].encoder, system.towers["main"].heads
    return {
        **encoder_fields(core),
        "tie_word_embeddings": tied(heads, "mlm"),
        **_head_fields(heads),
    } | task_fields(heads)


def _head_fields(heads: Mapping[str, slots.Head]) -> dict[str, Any]:
    """Returns the fields of a config.json that describe the heads' transformation."""
    fields: dict[str, Any] = {}
    if "mlm" in heads:
        fields["decoder_bias"] = heads["mlm"].bias
    for name, head in heads.items():
        summarises = name in ("classify", "choose")
        part = head if name == "mlm" else (head.summary if summarises else head).transform
        fields["classifier_activation"] = PUBLISHED[part.activation]
        fields["classifier_bias"] = part.dense_bias if name == "mlm" else part.bias
        if summarises:
            fields["classifier_pooling"] = {at: word for word, at in POOLING.items()}[
                head.summary.at
            ]
        if name == "span":
            fields["classifier_dropout"] = head.dropout
    return fields


families.add(
    Family(
        model_type="modernbert",
        build=build,
        lines=lines,
        config=config,
        root=ROOT,
        heads=HEADS,
        ties={"decoder.weight": f"{ROOT}embeddings.tok_embeddings.weight"},
    )
)
