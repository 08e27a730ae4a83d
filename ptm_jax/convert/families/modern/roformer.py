"""RoFormer (Su et al. 2021): BERT's layers with rotary positions and no pooler."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ptm_jax.convert import table
from ptm_jax.convert.config import Config
from ptm_jax.convert.families import bert
from ptm_jax.convert.families.electra import narrowed
from ptm_jax.convert.families.xlm import summary_fields, summary_of
from ptm_jax.convert.family import Family, classes, families
from ptm_jax.convert.records import mlm_head, record_with, task_heads
from ptm_jax.convert.table import Line
from ptm_jax.core.system import System
from ptm_jax.encoders.transformer.transformer import Transformer
from ptm_jax.nn.embeddings.summed import SinusoidTable
from ptm_jax.nn.heads.pooling import Summary
from ptm_jax.nn.heads.task_heads import ChoiceHead
from ptm_jax.systems.transformers.modern import roformer

ROOT = "roformer."
HEADS = classes("RoFormer", {"ForCausalLM": ("lm",)})
BIASES = "cls.predictions.bias", "cls.predictions.decoder.bias"


def encoder(config: Config) -> Transformer:
    """Returns the encoder of a config."""
    config.refuse("add_cross_attention", False, "cross-attention of this family is not supported")
    width = config.positive("embedding_size", config.positive("hidden_size"))
    core = narrowed(bert.encoder(config), width)
    limit = config.positive("max_position_embeddings", 1536)
    return roformer.rotary(core, limit, values=config("rotary_value", bool, False))


def build(config: Config, architecture: str) -> System:
    core = encoder(config)
    init, activation = core.embed.initializer, core.stack.block.ffn.activation
    rate, choices = config("hidden_dropout_prob", float, 0.1), config.positive("num_choices", 2)
    config.refuse(
        "summary_proj_to_labels",
        False,
        "the classifier would be given classes in the place of states",
    )
    mlm = mlm_head(config, core, activation=activation)
    summary, plain = Summary(activation, dropout=rate, initializer=init), "summary_use_proj"
    heads = {"mlm": mlm, "lm": mlm, **task_heads(config, summary, init, rate)}
    if plain not in config:
        config = Config({**config, plain: False}, config.file, config.largest, config.parts)
    heads["choose"] = ChoiceHead(
        choices,
        summary_of(config, init, "last", None),
        dropout=config("summary_last_dropout", float, 0.0),
        initializer=init,
    )
    parent = roformer.roformer("")
    return record_with(config, parent, core, heads, HEADS[architecture])


def lines(config: Config, architecture: str) -> tuple[Line, ...]:
    """Returns the rename table. An untied vocabulary head has its own bias."""
    return (
        Line("encoder/embed/project", f"{ROOT}embeddings_project", "dense"),
        *table.tasks(
            "classifier.out_proj", "classifier.dense", "classifier", "sequence_summary.summary"
        ),
        *bert.lines(config, architecture, ROOT),
    )


def constants(config: Config, architecture: str) -> Mapping[str, np.ndarray]:
    """Returns the table of sines and cosines, [positions, K]."""
    width = config.positive("hidden_size") // config.positive("num_attention_heads")
    limit = config.positive("max_position_embeddings", 1536)
    root = "" if architecture == "RoFormerModel" else ROOT
    return {f"{root}encoder.embed_positions.weight": SinusoidTable(limit).waves(width)}


def config(system: System) -> dict[str, Any]:
    """Returns the fields of a config.json."""
    core, heads = system.towers["main"].encoder, system.towers["main"].heads
    fields = bert.config(system) | {
        "embedding_size": core.embed.width,
        "max_position_embeddings": core.embed.position.longest,
        "rotary_value": core.stack.block.attention.rotary.values,
    }
    if "choose" in heads:
        del fields["classifier_dropout"]
        fields |= summary_fields(heads["choose"].summary)
        fields["summary_last_dropout"] = heads["choose"].dropout
    return fields


families.add(
    Family(
        model_type="roformer",
        build=build,
        lines=lines,
        config=config,
        root=ROOT,
        heads=HEADS,
        constants=constants,
        ignore=(r"(^|\.)position_ids$", r"(^|\.)encoder\.embed_positions\.weight$"),
        ties={
            "cls.predictions.decoder.weight": f"{ROOT}embeddings.word_embeddings.weight",
            BIASES[1]: BIASES[0],
        },
        fill={BIASES[0]: BIASES[1:], BIASES[1]: BIASES[:1]},
    )
)
