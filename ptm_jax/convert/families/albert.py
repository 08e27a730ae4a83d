"""ALBERT (Lan et al. 2020): layers with shared parameters, and factorized embeddings.
All layers share, or groups of layers.

Transformers has no dropout on the second branch of a layer, but applies one to the pooled states
that predict the sentence order. The original does the opposite; we follow the original.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from ptm_jax.convert import table
from ptm_jax.convert.config import Config
from ptm_jax.convert.families import bert
from ptm_jax.convert.families.electra import narrowed
from ptm_jax.convert.family import Family, classes, families
from ptm_jax.convert.records import label_fields, mlm_head, record_with, task_heads
from ptm_jax.convert.table import Line
from ptm_jax.core.errors import UserError
from ptm_jax.core.system import System
from ptm_jax.encoders.transformer.transformer import Transformer
from ptm_jax.nn.heads.pooling import Summary
from ptm_jax.nn.heads.vocabulary import Classifier, Pooler
from ptm_jax.systems.transformers.albert import albert

ROOT, HEADS = (
    "albert.",
    classes("Albert", {"Model": ("pool",), "ForPreTraining": ("mlm", "pool", "sop")}),
)


def _sharing(config: Config) -> tuple[int, int]:
    """Returns (number of layer groups, number of parameter sets that each group cycles through)."""
    return config.count("num_hidden_groups", 1), config.count("inner_group_num", 1)


def encoder(config: Config) -> Transformer:
    """Returns BERT's encoder with a separate embedding width and shared layers.

    A published "layer" with several parameter sets counts as several layers here.
    """
    defaults = {
        "hidden_act": "gelu_new",
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    }
    config.refuse("add_cross_attention", False, "cross-attention of this family is not supported")
    core = bert.encoder(config.filled(**defaults))
    layers, (groups, cycle) = core.stack.layers, _sharing(config)
    if layers % groups:
        raise UserError(
            f"{config.file}: num_hidden_layers {layers} is not a multiple of "
            f"num_hidden_groups {groups}; "
            "groups of several sizes are not supported"
        )
    shared = dataclasses.replace(
        core.stack, layers=layers * cycle, share=True, groups=groups, cycle=cycle
    )
    return narrowed(
        dataclasses.replace(core, stack=shared), config.positive("embedding_size", 128), always=True
    )


def build(config: Config, architecture: str) -> System:
    core, parent = encoder(config), albert("", 2, 128, 2)
    init, names = core.embed.initializer, HEADS[architecture]
    rate = config(
        "classifier_dropout_prob", float, None if "classifier_dropout_prob" in config else 0.1
    )
    rate = core.embed.dropout if rate is None else rate
    heads = {
        "mlm": mlm_head(config, core, activation=core.stack.block.ffn.activation),
        "pool": Pooler(initializer=init),
        "sop": Classifier(config.labels, initializer=init),
        **task_heads(config, Summary(initializer=init), init, rate),
    }
    return record_with(
        config, parent, core, heads, names, objective=parent.objective if "sop" in names else None
    )


def lines(config: Config, architecture: str) -> tuple[Line, ...]:
    groups, cycle = _sharing(config)
    marks = iter(("{i}", "{j}"))
    group, turn = (next(marks) if several > 1 else "0" for several in (groups, cycle))
    block, layer = (
        "encoder/stack/block",
        f"{ROOT}encoder.albert_layer_groups.{group}.albert_layers.{turn}.",
    )
    bias = "bias" if config("tie_word_embeddings", bool, True) else "decoder.bias"
    return (
        Line("encoder/embed/project", f"{ROOT}encoder.embedding_hidden_mapping_in", "dense"),
        *table.attention(
            f"{block}/attention", f"{layer}attention.", ("query", "key", "value", "dense")
        ),
        *table.block(
            block, layer, ("attention.LayerNorm", "ffn", "ffn_output", "full_layer_layer_norm")
        ),
        *bert.encoder_lines(ROOT),
        *table.vocabulary(
            "predictions.dense",
            "predictions.LayerNorm",
            f"predictions.{bias}",
            "predictions.decoder.weight",
        ),
        Line("heads_pool/dense", f"{ROOT}pooler", "dense"),
        Line("heads_sop/dense", "sop_classifier.classifier", "dense"),
        *table.tasks("classifier", f"{ROOT}pooler"),
    )


def config(system: System) -> dict[str, Any]:
    core, heads = system.towers["main"].encoder, system.towers["main"].heads
    fields, stack = bert.config(system), core.stack
    if "classifier_dropout" in fields:
        fields["classifier_dropout_prob"] = fields.pop("classifier_dropout")
    if "sop" in heads:
        fields |= label_fields(heads["sop"].classes)
    return fields | {
        "embedding_size": core.embed.width,
        "num_hidden_layers": stack.layers // stack.cycle,
        "num_hidden_groups": stack.groups,
        "inner_group_num": stack.cycle,
    }


families.add(
    Family(
        model_type="albert",
        build=build,
        lines=lines,
        config=config,
        root=ROOT,
        heads=HEADS,
        ties={
            "predictions.decoder.weight": f"{ROOT}embeddings.word_embeddings.weight",
            "predictions.decoder.bias": "predictions.bias",
        },
    )
)
