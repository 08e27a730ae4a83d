"""DistilBERT (Sanh et al. 2019): BERT without sentence types and pooler, under its own names."""

from __future__ import annotations

import dataclasses
from typing import Any

from ptm_jax.convert import table
from ptm_jax.convert.config import ACTIVATIONS, PUBLISHED, Config
from ptm_jax.convert.family import Family, classes, families
from ptm_jax.convert.records import mlm_head, record_with, task_fields, task_heads, tied, vocab_of
from ptm_jax.convert.table import Line
from ptm_jax.core import spec
from ptm_jax.core.system import System
from ptm_jax.data.rows.examples import Packed
from ptm_jax.encoders.transformer.transformer import Transformer, transformer
from ptm_jax.nn.embeddings.summed import LearnedPositions
from ptm_jax.nn.heads.pooling import Summary
from ptm_jax.nn.heads.task_heads import SpanHead
from ptm_jax.nn.initializers import Normal
from ptm_jax.nn.layers import Dropout
from ptm_jax.objectives.text.language import MLM
from ptm_jax.systems.transformers.bert_gpt import bert

EPS, HEADS = 1e-12, classes("DistilBert", {})

PARENT = dataclasses.replace(
    bert("", 2, 128, 2),
    paper="Sanh et al. 2019, arXiv 1910.01108",
    section="4.5",
    rows=(173,),
    examples=Packed(),
    objective=MLM(),
)


def encoder(config: Config) -> Transformer:
    """Returns the encoder. Only the second branch of a layer has dropout.

    `sinusoidal_pos_embds` affects only the initial values of the position table, which is always in
    the checkpoint.
    """
    init, rate = Normal(config("initializer_range", float, 0.02)), config("dropout", float, 0.1)
    core = transformer(
        vocab=vocab_of(config, pad=None),
        layers=config.count("n_layers"),
        width=config.positive("dim"),
        heads=config.positive("n_heads"),
        hidden=config.positive("hidden_dim"),
        positions=LearnedPositions(config.positive("max_position_embeddings"), initializer=init),
        eps=EPS,
        activation=config.one_of("activation", ACTIVATIONS, "gelu"),
        dropout=rate,
        attention_dropout=config("attention_dropout", float, 0.1),
        initializer=init,
    )
    return spec.override(core, {"stack.block.dropout": 0.0, "stack.block.after_ffn": Dropout(rate)})


def build(config: Config, architecture: str) -> System:
    config = config.renamed(
        hidden_size="dim", num_attention_heads="n_heads", num_hidden_layers="n_layers"
    )
    core = encoder(config)
    init, activation = core.embed.initializer, core.stack.block.ffn.activation
    heads = task_heads(
        config, Summary("relu", initializer=init), init, config("seq_classif_dropout", float, 0.2)
    )
    heads |= {
        "mlm": mlm_head(config, core, activation=activation, eps=EPS),
        "tag": dataclasses.replace(heads["tag"], dropout=core.embed.dropout),
        "span": SpanHead(dropout=config("qa_dropout", float, 0.1), initializer=init),
    }
    return record_with(config, PARENT, core, heads, HEADS[architecture])


def lines(config: Config, architecture: str) -> tuple[Line, ...]:
    block, layer, embed = (
        "encoder/stack/block",
        "distilbert.transformer.layer.{i}.",
        "distilbert.embeddings",
    )
    return (
        Line("encoder/embed/token", f"{embed}.word_embeddings.weight"),
        Line("encoder/embed/position/table", f"{embed}.position_embeddings.weight"),
        Line("encoder/embed/norm", f"{embed}.LayerNorm", "norm"),
        *table.attention(
            f"{block}/attention", f"{layer}attention.", ("q_lin", "k_lin", "v_lin", "out_lin")
        ),
        *table.block(block, layer, ("sa_layer_norm", "ffn.lin1", "ffn.lin2", "output_layer_norm")),
        *table.vocabulary(
            "vocab_transform", "vocab_layer_norm", "vocab_projector.bias", "vocab_projector.weight"
        ),
        *table.tasks("classifier", "pre_classifier"),
    )


def config(system: System) -> dict[str, Any]:
    core, heads = system.towers["main"].encoder, system.towers["main"].heads
    embed, block = core.embed, core.stack.block
    fields = task_fields(heads)
    fields.pop("classifier_dropout", None)
    for name, field in (
        ("classify", "seq_classif_dropout"),
        ("choose", "seq_classif_dropout"),
        ("span", "qa_dropout"),
    ):
        if name in heads:
            fields[field] = heads[name].dropout
    return {
        "vocab_size": embed.vocab.size,
        "pad_token_id": embed.vocab.pad,
        "dim": block.attention.width,
        "n_layers": core.stack.layers,
        "n_heads": block.attention.heads,
        "hidden_dim": block.ffn.hidden,
        "activation": PUBLISHED[block.ffn.activation],
        "dropout": embed.dropout,
        "attention_dropout": block.attention.dropout,
        "max_position_embeddings": embed.position.size,
        "initializer_range": embed.initializer.std,
        "tie_word_embeddings": tied(heads, "mlm"),
    } | fields


families.add(
    Family(
        model_type="distilbert",
        build=build,
        lines=lines,
        config=config,
        root="distilbert.",
        heads=HEADS,
        ties={"vocab_projector.weight": "distilbert.embeddings.word_embeddings.weight"},
    )
)
