"""DeBERTa's three versions (He et al. 2021, arXiv 2006.03654 and 2111.09543): `deberta` is v1,
`deberta-v2` v2 and v3."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from ptm_jax.convert import table
from ptm_jax.convert.config import ACTIVATIONS, PUBLISHED, Config
from ptm_jax.convert.family import TASKS, Family, classes, families
from ptm_jax.convert.records import (
    mlm_head,
    record_with,
    special_ids,
    task_fields,
    task_heads,
    tied,
    vocab_of,
)
from ptm_jax.convert.table import Line
from ptm_jax.core import slots
from ptm_jax.core.errors import UserError
from ptm_jax.core.system import System
from ptm_jax.encoders.transformer.mask_decoder import decodes_masks
from ptm_jax.encoders.transformer.transformer import Transformer
from ptm_jax.nn.attention.disentangled import (
    TERMS,
    DisentangledAttention,
    DisentangledStack,
    Distances,
    FirstConvolution,
)
from ptm_jax.nn.embeddings.summed import adds_positions
from ptm_jax.nn.heads.pooling import Summary
from ptm_jax.nn.heads.pretraining import FirstTokenDetector
from ptm_jax.nn.initializers import TruncatedNormal
from ptm_jax.nn.layers import Identity
from ptm_jax.systems.transformers import deberta

ROOT, FIRST, SECOND = "deberta.", "deberta", "deberta-v2"
MORE = {"ReplacedTokenDetectionModel": ("rtd",)}
"""The class of the released code that Transformers lacks: a discriminator with its head."""
TASKS_OF_FIRST = [name for name in TASKS if name != "ForMultipleChoice"]
OF_FIRST = {**classes("Deberta", {}, TASKS_OF_FIRST), **MORE}
OF_SECOND = {**classes("DebertaV2", {}), **MORE}
HEADS = {**OF_FIRST, **OF_SECOND}
EXPECTED = {
    "talking_head": (False, "talking heads are not supported"),
    "norm_rel_ebd": (None, "DeBERTa-v1 has no norm of its vectors of distances"),
    "conv_kernel_size": (None, "DeBERTa-v1 has no convolution"),
}
"""{field of DeBERTa-v1: (the value that is supported, the reason)}."""


def terms_of(config: Config) -> tuple[str, ...]:
    """Returns the scores by distance of a config. Raises UserError for an unknown one.

    Only a text is read in any case, and only DeBERTa-v2 ignores "none" and terms that stand twice:
    v1 divides its scores by the root of the length of the list.
    """
    named = config("pos_att_type", None, None) or []
    if isinstance(named, str):
        named = [name.strip() for name in named.lower().split("|")]
    ignored = ("", "none") if config("model_type", str) == SECOND else ()
    terms = [str(name) for name in named if name not in ignored]
    if unknown := [name for name in terms if name not in TERMS]:
        raise UserError(
            f"{config.file}: pos_att_type has {unknown[0]!r}; supported are c2p and p2c"
        )
    if not ignored and len(terms) > len(set(terms)):
        raise UserError(f"{config.file}: pos_att_type has a term twice; expected c2p and p2c")
    return tuple(name for name in TERMS if name in terms)


def distances_of(config: Config, limit: int, bucketed: bool) -> Distances:
    """Returns the numbers of distances; `limit` is the longest row. Raises UserError."""
    farthest, buckets = config("max_relative_positions", int, -1), 0
    if bucketed:
        buckets = max(config("position_buckets", int, -1), 0)
    try:
        return Distances(farthest=farthest if farthest > 0 else limit, buckets=buckets)
    except ValueError as error:
        raise UserError(
            f"{config.file}: position_buckets and max_relative_positions: {error}"
        ) from None


def convolution(config: Config, fields: Mapping[str, object]) -> FirstConvolution | Identity:
    """Returns the convolution of a config of DeBERTa-v2."""
    width, groups = config("conv_kernel_size", int, 0), config.positive("conv_groups", 1)
    if width < 1:
        return Identity()
    if not width % 2 or config.positive("hidden_size") % groups:
        raise UserError(
            f"{config.file}: conv_kernel_size is {width} and conv_groups {groups}; expected an odd "
            "size, and groups that divide hidden_size"
        )
    return FirstConvolution(
        width=width,
        groups=groups,
        activation=config.one_of("conv_act", ACTIVATIONS, "tanh"),
        **fields,
    )


def encoder(config: Config) -> Transformer:
    """Returns the encoder of a config."""
    second = config("model_type", str) == SECOND
    width, heads = config.positive("hidden_size"), config.positive("num_attention_heads")
    for name, size in (
        ("embedding_size", width),
        ("pooler_hidden_size", width),
        ("attention_head_size", width // heads),
    ):
        config.refuse(name, size, f"expected {size}, by hidden_size and num_attention_heads")
    for name, (value, reason) in EXPECTED.items() if not second else ():
        config.refuse(name, value, reason)
    norms = str(config("norm_rel_ebd", None, "none")).lower().split("|")
    limit = config.positive("max_position_embeddings", 512)
    dropout, eps = config("hidden_dropout_prob", float, 0.1), config("layer_norm_eps", float, 1e-7)
    init = TruncatedNormal(config("initializer_range", float, 0.02))
    fields = {"dropout": dropout, "eps": eps, "initializer": init}
    attention = deberta.attention(
        width=width,
        heads=heads,
        terms=terms_of(config),
        distances=distances_of(config, limit, second),
        shared=second and config("share_att_key", bool, False),
        key_bias=second,
        dropout=config("attention_probs_dropout_prob", float, 0.1),
        noise=dropout,
        initializer=init,
    )
    return deberta.encoder(
        attention,
        vocab=vocab_of(config, pad=0),
        layers=config.count("num_hidden_layers"),
        hidden=config.positive("intermediate_size"),
        limit=limit,
        types=config("type_vocab_size", int, 0),
        absolute=config("position_biased_input", bool, True),
        relative=config("relative_attention", bool, False),
        normed=second and "layer_norm" in [name.strip() for name in norms],
        conv=convolution(config, fields) if second else Identity(),
        eps=eps,
        activation=config.one_of("hidden_act", ACTIVATIONS, "gelu"),
        dropout=dropout,
    )


def build(config: Config, architecture: str) -> System:
    """Returns the record of a checkpoint.

    With `legacy` False the head always has the encoder's table. The released generators were
    trained with the mask decoder, which Transformers lacks: the field `enhanced_mask_decoder` is
    ours.
    """
    core = encoder(config)
    if config("enhanced_mask_decoder", bool, False):
        config.refuse("position_biased_input", False, "expected false with enhanced_mask_decoder")
        core = deberta.decoding(core)
    init, dropout = core.embed.initializer, config("hidden_dropout_prob", float, 0.1)
    rate = config("cls_dropout", float, None)
    pooled = Summary(
        config.one_of("pooler_hidden_act", ACTIVATIONS, "gelu"),
        dropout=config("pooler_dropout", float, 0.0),
        initializer=init,
    )
    of_texts = task_heads(config, pooled, init, dropout if rate is None else rate)
    heads = of_texts | {"tag": task_heads(config, pooled, init, dropout)["tag"]}
    words = {} if config("legacy", bool, True) else {"tied": True}
    activation = core.stack.block.ffn.activation
    heads["rtd"] = FirstTokenDetector(activation, init, eps=core.embed.norm.eps)
    heads["mlm"] = mlm_head(config, core, eps=core.embed.norm.eps, activation=activation, **words)
    return record_with(config, deberta.first("", 2, 128, 2), core, heads, HEADS[architecture])


def lines(config: Config, architecture: str) -> tuple[Line, ...]:
    """Returns the rename table. `legacy` of a config names the vocabulary head."""
    ours, layer = "encoder/stack/block", f"{ROOT}encoder.layer.{{i}}."
    legacy = config("legacy", bool, True)
    bias = "bias" if config("tie_word_embeddings", bool, True) or not legacy else "decoder.bias"
    head, transform = (
        ("cls.predictions.", "transform.") if legacy else ("lm_predictions.lm_head.", "")
    )
    return (
        Line("encoder/embed/token", f"{ROOT}embeddings.word_embeddings.weight"),
        Line("encoder/embed/position/table", f"{ROOT}embeddings.position_embeddings.weight"),
        Line("encoder/places/table", f"{ROOT}embeddings.position_embeddings.weight"),
        Line("encoder/embed/type", f"{ROOT}embeddings.token_type_embeddings.weight"),
        Line("encoder/embed/norm", f"{ROOT}embeddings.LayerNorm", "norm"),
        Line("encoder/stack/vectors/table", f"{ROOT}encoder.rel_embeddings.weight"),
        Line("encoder/stack/vectors/norm", f"{ROOT}encoder.LayerNorm", "norm"),
        *_convolution_lines(f"{ROOT}encoder.conv."),
        *_attention_lines(config, f"{ours}/attention", f"{layer}attention."),
        Line(f"{ours}/attention/out", f"{layer}attention.output.dense", "dense", ins=2),
        *table.block(
            ours,
            layer,
            (
                "attention.output.LayerNorm",
                "intermediate.dense",
                "output.dense",
                "output.LayerNorm",
            ),
        ),
        *table.vocabulary(
            f"{head}{transform}dense",
            f"{head}{transform}LayerNorm",
            head + bias,
            f"{head}decoder.weight",
        ),
        *table.tasks("classifier", "pooler.dense"),
        Line("heads_rtd/norm", "mask_predictions.LayerNorm", "norm"),
        Line("heads_rtd/dense", "mask_predictions.dense", "dense"),
        Line("heads_rtd/score", "mask_predictions.classifier", "dense"),
    )


def _attention_lines(config: Config, ours: str, theirs: str) -> Sequence[Line]:
    """Returns the lines of queries, keys and values, of words and of distances."""
    inner = f"{theirs}self."
    if config("model_type", str) == SECOND:
        names = [(name, f"{name}_proj") for name in table.QKV]
        names += [(f"distance_{name}", f"pos_{name}_proj") for name in ("key", "query")]
        return [Line(f"{ours}/{name}", inner + other, "dense") for name, other in names]
    heads = config.positive("num_attention_heads")
    return [
        Line(f"{ours}/query/bias", f"{inner}q_bias", shape=(-1,)),
        Line(f"{ours}/value/bias", f"{inner}v_bias", shape=(-1,)),
        *table.joined(ours, f"{inner}in_proj", "dense", groups=heads),
        Line(f"{ours}/distance_key", f"{inner}pos_proj", "dense"),
        Line(f"{ours}/distance_query", f"{inner}pos_q_proj", "dense"),
    ]


def _convolution_lines(theirs: str) -> list[Line]:
    ours = "encoder/stack/conv"
    return [
        Line(f"{ours}/kernel", f"{theirs}conv.weight", axes=(2, 1, 0)),
        Line(f"{ours}/bias", f"{theirs}conv.bias"),
        Line(f"{ours}/scale", f"{theirs}LayerNorm.weight"),
        Line(f"{ours}/center", f"{theirs}LayerNorm.bias"),
    ]


def config(system: System, model_type: str) -> dict[str, Any]:
    """Returns the fields of a config.json.

    `legacy` is True only for a head with a table of its own: Transformers' other head is the
    released one.
    """
    core, heads = system.towers["main"].encoder, system.towers["main"].heads
    embed, stack, block = core.embed, core.stack, core.stack.block
    attention = block.attention
    fields = {
        "vocab_size": embed.vocab.size,
        **special_ids(embed.vocab, "pad"),
        "hidden_size": attention.width,
        "num_hidden_layers": stack.layers,
        "num_attention_heads": attention.heads,
        "intermediate_size": block.ffn.hidden,
        "hidden_act": PUBLISHED[block.ffn.activation],
        "hidden_dropout_prob": block.dropout,
        "attention_probs_dropout_prob": attention.dropout,
        "max_position_embeddings": embed.position.longest,
        "type_vocab_size": embed.types,
        "initializer_range": embed.initializer.std,
        "layer_norm_eps": embed.norm.eps,
        "relative_attention": stack.relative,
        "max_relative_positions": attention.distances.farthest,
        "position_biased_input": adds_positions(embed),
        "pos_att_type": list(attention.terms),
        "tie_word_embeddings": tied(heads, "mlm"),
        "legacy": not tied(heads, "mlm"),
    }
    if decodes_masks(core):
        fields["enhanced_mask_decoder"] = True
    if model_type == SECOND:
        fields |= _fields_of_second(attention, stack)
    return fields | _head_fields(heads)


def _fields_of_second(attention: DisentangledAttention, stack: DisentangledStack) -> dict[str, Any]:
    """Returns the fields that only DeBERTa-v2 has."""
    fields = {
        "position_buckets": attention.distances.buckets or -1,
        "share_att_key": attention.shared,
        "norm_rel_ebd": "layer_norm" if stack.normed else "none",
    }
    if (conv := stack.convolution) is not None:
        fields |= {"conv_kernel_size": conv.width, "conv_groups": conv.groups}
        fields["conv_act"] = PUBLISHED[conv.activation]
    return fields


def _head_fields(heads: Mapping[str, slots.Head]) -> dict[str, Any]:
    """Returns the fields of a config.json that describe the task heads."""
    fields = task_fields(heads)
    rate = fields.pop("classifier_dropout", None)
    for name in ("classify", "choose"):
        if name in heads:
            summary = heads[name].summary
            fields |= {"cls_dropout": rate, "pooler_dropout": summary.dropout}
            fields["pooler_hidden_act"] = PUBLISHED[summary.activation]
    return fields


def family(model_type: str, heads: Mapping[str, tuple[str, ...]]) -> Family:
    """Returns the family of a version."""
    head = "cls.predictions."
    return Family(
        model_type=model_type,
        build=build,
        lines=lines,
        config=functools.partial(config, model_type=model_type),
        root=ROOT,
        heads=heads,
        ties={
            f"{head}decoder.weight": f"{ROOT}embeddings.word_embeddings.weight",
            f"{head}decoder.bias": f"{head}bias",
        },
        fill={f"{head}bias": (f"{head}decoder.bias",), f"{head}decoder.bias": (f"{head}bias",)},
        ignore=(r"(^|\.)position_ids$", r"(^|\.)position_embeddings\.weight$", "^mask_predictions"),
    )


families.add(family(FIRST, OF_FIRST))
families.add(family(SECOND, OF_SECOND))
