"""ALBERT (Lan et al. 2020): layers with shared parameters (all layers or groups), and factorized embeddings.

Transformers has no dropout on the second branch of a layer, but applies one to the pooled states that predict the sentence
order. The original does the opposite; we follow the original.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from ptm_jax.convert.config import ACTIVATIONS, Config
from ptm_jax.convert.families import bert
from ptm_jax.convert.families.electra import narrowed
from ptm_jax.convert.family import Family, families
from ptm_jax.convert.records import PROBLEMS, adopted, objective_of, task_heads
from ptm_jax.convert.table import Line, attention
from ptm_jax.core.errors import UserError
from ptm_jax.core.system import System
from ptm_jax.encoders.model import Model
from ptm_jax.encoders.transformer import Transformer
from ptm_jax.nn.heads.tasks import Summary
from ptm_jax.nn.heads.vocabulary import Classifier, MLMHead, Pooler
from ptm_jax.systems.albert import albert

ROOT = "albert."

HEADS = {
    "AlbertModel": ("pool",),
    "AlbertForPreTraining": ("mlm", "pool", "sop"),
    "AlbertForMaskedLM": ("mlm",),
    "AlbertForSequenceClassification": ("classify",),
    "AlbertForMultipleChoice": ("choose",),
    "AlbertForTokenClassification": ("tag",),
    "AlbertForQuestionAnswering": ("span",),
}


def _sharing(config: Config) -> tuple[int, int]:
    """Returns (number of layer groups, number of parameter sets that each group cycles through)."""
    return config.positive("num_hidden_groups", 1), config.positive("inner_group_num", 1)


def encoder(config: Config) -> Transformer:
    """Returns BERT's encoder with a separate embedding width and shared layers.

    A published "layer" with several parameter sets counts as several layers here.
    """
    core = bert.encoder(Config({"hidden_act": "gelu_new", **_rates(config), **config}, config.file))
    layers, (groups, cycle) = core.stack.layers, _sharing(config)
    if layers % groups:
        raise UserError(
            f"{config.file}: num_hidden_layers {layers} is not a multiple of num_hidden_groups {groups}; "
            "groups of several sizes are not supported"
        )
    stack = dataclasses.replace(core.stack, layers=layers * cycle, share=True, groups=groups, cycle=cycle)
    core = dataclasses.replace(core, stack=stack)
    return narrowed(core, config.positive("embedding_size", 128), always=True)


def _rates(config: Config) -> dict[str, float]:
    return {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def heads_of(config: Config, core: Transformer) -> dict[str, Any]:
    """Returns all heads of ALBERT's classes."""
    init = core.embed.initializer
    rate = config("classifier_dropout_prob", float, None if "classifier_dropout_prob" in config else 0.1)
    rate = core.embed.dropout if rate is None else rate
    mlm = MLMHead(
        vocab=core.embed.vocab,
        activation=config.one_of("hidden_act", ACTIVATIONS, "gelu_new"),
        eps=config("layer_norm_eps", float, 1e-12),
        tied=config("tie_word_embeddings", bool, True),
        initializer=init,
    )
    whole = {"mlm": mlm, "pool": Pooler(initializer=init), "sop": Classifier(config.labels, initializer=init)}
    return whole | task_heads(config, Summary(initializer=init), init, rate)


def build(config: Config, architecture: str) -> System:
    core, parent = encoder(config), albert("", 2, 128, 2)
    heads = heads_of(config, core)
    chosen = {name: heads[name] for name in HEADS[architecture]}
    objective = objective_of(chosen, kind=PROBLEMS.get(config("problem_type", str, "")))
    if "sop" in chosen:
        objective = parent.objective
    return adopted(parent, Model(encoder=core, heads=chosen), objective)


def lines(config: Config, architecture: str) -> tuple[Line, ...]:
    groups, cycle = _sharing(config)
    marks = iter(("{i}", "{j}"))
    group, turn = (next(marks) if several > 1 else "0" for several in (groups, cycle))
    block, layer = "encoder/stack/block", f"{ROOT}encoder.albert_layer_groups.{group}.albert_layers.{turn}"
    parts = tuple(f"{layer}.attention.{name}" for name in ("query", "key", "value", "dense"))
    bias = "bias" if config("tie_word_embeddings", bool, True) else "decoder.bias"
    return (
        Line("encoder/embed/project", f"{ROOT}encoder.embedding_hidden_mapping_in", "dense"),
        *attention(f"{block}/attention", parts),
        Line(f"{block}/attention_norm", f"{layer}.attention.LayerNorm", "norm"),
        Line(f"{block}/ffn/up", f"{layer}.ffn", "dense"),
        Line(f"{block}/ffn/down", f"{layer}.ffn_output", "dense"),
        Line(f"{block}/ffn_norm", f"{layer}.full_layer_layer_norm", "norm"),
        *bert.encoder_lines(root=ROOT),
        Line("heads_mlm/dense", "predictions.dense", "dense"),
        Line("heads_mlm/norm", "predictions.LayerNorm", "norm"),
        Line("heads_mlm/bias", f"predictions.{bias}"),
        Line("heads_mlm/table", "predictions.decoder.weight"),
        Line("heads_pool/dense", f"{ROOT}pooler", "dense"),
        Line("heads_sop/dense", "sop_classifier.classifier", "dense"),
        *bert.task_lines(f"{ROOT}pooler"),
    )


def config(system: System) -> dict[str, Any]:
    core, heads = system.towers["main"].encoder, system.towers["main"].heads
    fields, stack = bert.config(system), core.stack
    if "classifier_dropout" in fields:
        fields["classifier_dropout_prob"] = fields.pop("classifier_dropout")
    if "sop" in heads:
        fields["id2label"] = {str(i): f"LABEL_{i}" for i in range(heads["sop"].classes)}
        fields["label2id"] = {f"LABEL_{i}": i for i in range(heads["sop"].classes)}
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
