"""DistilBERT (Sanh et al. 2019): BERT without sentence types and pooler, under its own names."""

from __future__ import annotations

import dataclasses
from typing import Any

from ptm_jax.convert.config import ACTIVATIONS, PUBLISHED, Config
from ptm_jax.convert.families import bert
from ptm_jax.convert.family import Family, families
from ptm_jax.convert.records import PROBLEMS, adopted, objective_of, task_fields, task_heads, tied
from ptm_jax.convert.table import Line, attention
from ptm_jax.core.system import System
from ptm_jax.data.rows.examples import Packed
from ptm_jax.encoders.model import Model
from ptm_jax.encoders.transformer import Transformer, transformer
from ptm_jax.nn.embeddings.summed import LearnedPositions
from ptm_jax.nn.heads.tasks import SpanHead, Summary
from ptm_jax.nn.heads.vocabulary import MLMHead
from ptm_jax.nn.initializers import Normal
from ptm_jax.nn.layers import Dropout
from ptm_jax.objectives.language import MLM
from ptm_jax.systems.transformers import bert as bert_system

EPS = 1e-12
OTHERS = {"hidden_size": "dim", "num_attention_heads": "n_heads", "num_hidden_layers": "n_layers"}

HEADS = {
    "DistilBertModel": (),
    "DistilBertForMaskedLM": ("mlm",),
    "DistilBertForSequenceClassification": ("classify",),
    "DistilBertForMultipleChoice": ("choose",),
    "DistilBertForTokenClassification": ("tag",),
    "DistilBertForQuestionAnswering": ("span",),
}

PARENT = dataclasses.replace(
    bert_system("", 2, 128, 2),
    paper="Sanh et al. 2019, arXiv 1910.01108",
    section="4.5",
    rows=(173,),
    examples=Packed(),
    objective=MLM(),
)


def encoder(config: Config) -> Transformer:
    """Returns the encoder. Only the second branch of a layer has dropout.

    `sinusoidal_pos_embds` affects only the initial values of the position table, which is always in the checkpoint.
    """
    init, rate = Normal(config("initializer_range", float, 0.02)), config("dropout", float, 0.1)
    core = transformer(
        vocab=bert.vocab_of(config),
        layers=config.positive("n_layers"),
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
    block = dataclasses.replace(core.stack.block, dropout=0.0, after_ffn=Dropout(rate))
    return dataclasses.replace(core, stack=dataclasses.replace(core.stack, block=block))


def todays(config: Config) -> Config:
    """Returns the config with DistilBERT's field names, if a file uses BERT's."""
    return Config({ours: config[theirs] for theirs, ours in OTHERS.items() if theirs in config} | dict(config), config.file)


def build(config: Config, architecture: str) -> System:
    config = todays(config)
    core = encoder(config)
    init, activation = core.embed.initializer, core.stack.block.ffn.activation
    tied = config("tie_word_embeddings", bool, True)
    texts = task_heads(config, Summary("relu", initializer=init), init, config("seq_classif_dropout", float, 0.2))
    heads = {
        **texts,
        "mlm": MLMHead(vocab=core.embed.vocab, activation=activation, eps=EPS, tied=tied, initializer=init),
        "tag": dataclasses.replace(texts["tag"], dropout=core.embed.dropout),
        "span": SpanHead(dropout=config("qa_dropout", float, 0.1), initializer=init),
    }
    chosen = {name: heads[name] for name in HEADS[architecture]}
    objective = objective_of(chosen, kind=PROBLEMS.get(config("problem_type", str, "")))
    return adopted(PARENT, Model(encoder=core, heads=chosen), objective)


def lines(config: Config, architecture: str) -> tuple[Line, ...]:
    block, layer, embed = "encoder/stack/block", "distilbert.transformer.layer.{i}", "distilbert.embeddings"
    parts = tuple(f"{layer}.attention.{name}_lin" for name in ("q", "k", "v", "out"))
    return (
        Line("encoder/embed/token", f"{embed}.word_embeddings.weight"),
        Line("encoder/embed/position/table", f"{embed}.position_embeddings.weight"),
        Line("encoder/embed/norm", f"{embed}.LayerNorm", "norm"),
        *attention(f"{block}/attention", parts),
        Line(f"{block}/attention_norm", f"{layer}.sa_layer_norm", "norm"),
        Line(f"{block}/ffn/up", f"{layer}.ffn.lin1", "dense"),
        Line(f"{block}/ffn/down", f"{layer}.ffn.lin2", "dense"),
        Line(f"{block}/ffn_norm", f"{layer}.output_layer_norm", "norm"),
        Line("heads_mlm/dense", "vocab_transform", "dense"),
        Line("heads_mlm/norm", "vocab_layer_norm", "norm"),
        Line("heads_mlm/bias", "vocab_projector.bias"),
        Line("heads_mlm/table", "vocab_projector.weight"),
        *bert.task_lines("pre_classifier"),
    )


def config(system: System) -> dict[str, Any]:
    core, heads = system.towers["main"].encoder, system.towers["main"].heads
    embed, block = core.embed, core.stack.block
    fields = task_fields(heads)
    fields.pop("classifier_dropout", None)
    for name, field in (("classify", "seq_classif_dropout"), ("choose", "seq_classif_dropout"), ("span", "qa_dropout")):
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
