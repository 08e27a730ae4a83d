"""MobileBERT (Sun et al. 2020): BERT's layers in bottlenecks, on trigram embeddings.
A layer has several feed-forward parts."""

from __future__ import annotations

import dataclasses
from typing import Any

from ptm_jax.convert import table
from ptm_jax.convert.config import ACTIVATIONS, PUBLISHED, Config
from ptm_jax.convert.families import bert
from ptm_jax.convert.family import families
from ptm_jax.convert.records import mlm_head, record_with, task_fields, task_heads, tied, vocab_of
from ptm_jax.convert.table import Line
from ptm_jax.core.errors import UserError
from ptm_jax.core.system import System
from ptm_jax.encoders.transformer.transformer import Transformer
from ptm_jax.nn.attention.multihead import Attention
from ptm_jax.nn.blocks import Block, FeedForward, Stack
from ptm_jax.nn.bottleneck import (
    Bottleneck,
    Expansion,
    FeedForwards,
    Layout,
    Narrowing,
    ScaleShift,
    WideAttention,
    expansion_of,
)
from ptm_jax.nn.embeddings.parts import Types
from ptm_jax.nn.embeddings.summed import Embeddings, LearnedPositions
from ptm_jax.nn.heads.pooling import Summary
from ptm_jax.nn.heads.vocabulary import Classifier, Pooler
from ptm_jax.nn.initializers import Initializer, TruncatedNormal
from ptm_jax.nn.layers import Identity, LayerNorm
from ptm_jax.systems.transformers.bert_gpt import bert as bert_system

ROOT, EPS = "mobilebert.", 1e-5
"""EPS is for the norms without an `eps` field in the config: those of the embeddings and after the
last feed-forward."""

PARENT = dataclasses.replace(
    bert_system("", 2, 128, 2),
    paper="Sun et al. 2020, arXiv 2004.02984",
    section="4.5",
    rows=(177,),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sizes:
    """Widths in a config: of the states, inside the layers, and of the embeddings."""

    states: int
    inner: int
    tables: int

    @classmethod
    def of(cls, config: Config) -> Sizes:
        states = config.positive("hidden_size")
        inner = (
            config.positive("intra_bottleneck_size", 128)
            if config("use_bottleneck", bool, True)
            else states
        )
        config.refuse(
            "true_hidden_size",
            inner,
            f"it follows from use_bottleneck and intra_bottleneck_size: {inner}",
        )
        return cls(states=states, inner=inner, tables=config.positive("embedding_size", 128))

    def expanded(self, config: Config) -> bool:
        """Returns whether a layer projects the embeddings to the states."""
        return config("trigram_input", bool, True) or self.tables != self.states


def _norm(config: Config, eps: float | None = None) -> Any:
    kind = config.one_of(
        "normalization_type", {"no_norm": ScaleShift, "layer_norm": LayerNorm}, "no_norm"
    )
    if kind is ScaleShift:
        return ScaleShift()
    return LayerNorm(config("layer_norm_eps", float, 1e-12) if eps is None else eps)


def _block(config: Config, sizes: Sizes, init: Initializer) -> Any:
    """Returns a block of width `true_hidden_size`, in an optional bottleneck."""
    inside, rate = config("use_bottleneck", bool, True), config("hidden_dropout_prob", float, 0.0)
    activation = config.one_of("hidden_act", ACTIVATIONS, "relu")
    ffn = FeedForward(config.positive("intermediate_size"), activation, initializer=init)
    more = config.count("num_feedforward_networks", 4) - 1
    block = Block(
        attention=Attention(
            heads=config.positive("num_attention_heads"),
            width=sizes.inner,
            dropout=config("attention_probs_dropout_prob", float, 0.1),
            initializer=init,
        ),
        ffn=ffn,
        dropout=0.0 if inside else rate,
        attention_norm=_norm(config),
        ffn_norm=_norm(config, EPS),
        cross=FeedForwards((ffn,) * more, (_norm(config),) * more) if more else Identity(),
    )
    if not inside:
        return block
    narrow = Narrowing(sizes.inner, _norm(config), initializer=init)
    if not config("use_bottleneck_attention", bool, False):
        shared = config("key_query_shared_bottleneck", bool, True)
        if not shared and sizes.inner != sizes.states:
            raise UserError(
                f"{config.file}: key_query_shared_bottleneck is false: queries are made of "
                f"states {sizes.states} wide, and "
                f"intra_bottleneck_size is {sizes.inner}"
            )
        wide = WideAttention(block.attention, narrow if shared else Identity())
        block = dataclasses.replace(block, attention=wide)
    return Bottleneck(block, narrow, norm=_norm(config), dropout=rate, initializer=init)


def encoder(config: Config) -> Transformer:
    """Returns the encoder of a MobileBERT config."""
    sizes, init = Sizes.of(config), TruncatedNormal(config("initializer_range", float, 0.02))
    expand = Identity()
    if sizes.expanded(config):
        expand = Expansion(
            sizes.states, trigrams=config("trigram_input", bool, True), initializer=init
        )
    embed = Embeddings(
        vocab=vocab_of(config, pad=None),
        width=sizes.tables,
        position=LearnedPositions(
            config.positive("max_position_embeddings", 512), initializer=init
        ),
        parts=(Types(config.positive("type_vocab_size", 2)),),
        norm=_norm(config, EPS),
        dropout=config("hidden_dropout_prob", float, 0.0),
        expand=expand,
        initializer=init,
    )
    stack = Stack(block=_block(config, sizes, init), layers=config.count("num_hidden_layers"))
    return Transformer(embed=embed, stack=stack)


def build(config: Config, architecture: str) -> System:
    """Returns the record of one checkpoint.
    Without `classifier_activation` the summary is the first state."""
    core, sizes, names = encoder(config), Sizes.of(config), MOBILEBERT.heads[architecture]
    if "mlm" in names and sizes.tables > sizes.states:
        raise UserError(
            f"{config.file}: embedding_size {sizes.tables} is greater than hidden_size "
            f"{sizes.states}, to which the rest of "
            "the vocabulary head's table adds"
        )
    init, pooled = core.embed.initializer, config("classifier_activation", bool, True)
    activation = config.one_of("hidden_act", ACTIVATIONS, "relu")
    summary = Summary("tanh" if pooled else "none", initializer=init)
    heads = {
        "mlm": mlm_head(config, core, activation=activation, width=sizes.states),
        "pool": Pooler(initializer=init) if pooled else summary,
        "nsp": Classifier(2, initializer=init),
        **task_heads(config.filled(hidden_dropout_prob=0.0), summary, init),
    }
    return record_with(config, PARENT, core, heads, names)


def _block_lines(config: Config, layer: str) -> tuple[Line, ...]:
    inside = config("use_bottleneck", bool, True)
    outer = "encoder/stack/block"
    block = f"{outer}/block" if inside else outer
    wide = inside and not config("use_bottleneck_attention", bool, False)
    inner = f"{block}/attention/attention" if wide else f"{block}/attention"
    shared, output = f"{layer}bottleneck.attention", f"{layer}output"
    more = [
        line
        for j in range(config.count("num_feedforward_networks", 4) - 1)
        for line in (
            Line(f"{block}/cross/ffns_{j}/up", f"{layer}ffn.{j}.intermediate.dense", "dense"),
            Line(f"{block}/cross/ffns_{j}/down", f"{layer}ffn.{j}.output.dense", "dense"),
            Line(f"{block}/cross/norms_{j}", f"{layer}ffn.{j}.output.LayerNorm", "norm"),
        )
    ]
    return (
        *table.attention(inner, f"{layer}attention.", bert.ATTENTION),
        *more,
        *table.block(block, layer, bert.REST),
        Line(f"{block}/attention/shared/dense", f"{shared}.dense", "dense"),
        Line(f"{block}/attention/shared/norm", f"{shared}.LayerNorm", "norm"),
        Line(f"{outer}/narrow/dense", f"{layer}bottleneck.input.dense", "dense"),
        Line(f"{outer}/narrow/norm", f"{layer}bottleneck.input.LayerNorm", "norm"),
        Line(f"{outer}/widen", f"{output}.bottleneck.dense", "dense"),
        Line(f"{outer}/norm", f"{output}.bottleneck.LayerNorm", "norm"),
    )


def lines(config: Config, architecture: str) -> tuple[Line, ...]:
    return (
        *_block_lines(config, f"{ROOT}encoder.layer.{{i}}."),
        Line("encoder/embed/expand/dense", f"{ROOT}embeddings.embedding_transformation", "dense"),
        *bert.lines(config, architecture, ROOT),
        Line("heads_mlm/rest", "cls.predictions.dense.weight", axes=(1, 0)),
    )


def _block_fields(block: Block | Bottleneck) -> dict[str, Any]:
    """Returns the config fields that describe a layer."""
    layout = Layout.of(block)
    fields: dict[str, Any] = {"use_bottleneck": layout.narrow}
    if layout.narrow:
        fields["use_bottleneck_attention"] = not layout.wide
        fields["key_query_shared_bottleneck"] = layout.shared
        fields["intra_bottleneck_size"] = layout.attention.width
    if layout.eps is not None:
        fields["layer_norm_eps"] = layout.eps
    return fields | {
        "num_attention_heads": layout.attention.heads,
        "attention_probs_dropout_prob": layout.attention.dropout,
        "intermediate_size": layout.ffn.hidden,
        "hidden_act": PUBLISHED[layout.ffn.activation],
        "num_feedforward_networks": layout.stacked,
    }


def config(system: System) -> dict[str, Any]:
    core, heads = system.towers["main"].encoder, system.towers["main"].heads
    embed, fields = core.embed, _block_fields(core.stack.block)
    expansion = expansion_of(embed)
    poolers = [heads["pool"]] if "pool" in heads else []
    poolers += [heads[name].summary for name in ("classify", "choose") if name in heads]
    if "mlm" in heads:
        fields["layer_norm_eps"] = heads["mlm"].eps
    return (
        fields
        | {
            "vocab_size": embed.vocab.size,
            "pad_token_id": embed.vocab.pad,
            "embedding_size": embed.width,
            "trigram_input": expansion is not None and expansion.trigrams,
            "hidden_size": embed.width if expansion is None else expansion.width,
            "num_hidden_layers": core.stack.layers,
            "hidden_dropout_prob": embed.dropout,
            "max_position_embeddings": embed.position.size,
            "type_vocab_size": embed.types,
            "normalization_type": "no_norm" if isinstance(embed.norm, ScaleShift) else "layer_norm",
            "initializer_range": embed.initializer.std,
            "classifier_activation": all(pooler.activation == "tanh" for pooler in poolers),
            "tie_word_embeddings": tied(heads, "mlm"),
        }
        | task_fields(heads)
    )


MOBILEBERT = bert.family(
    "mobilebert", "MobileBert", ROOT, {}, build=build, lines=lines, config=config
)
families.add(MOBILEBERT)
