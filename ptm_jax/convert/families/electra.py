"""ELECTRA (Clark et al. 2020): the discriminator that is kept and the generator that fills its masked places, each a
checkpoint of its own: BERT's encoder behind tables of another width."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from ptm_jax.convert.config import ACTIVATIONS, Config
from ptm_jax.convert.families import bert
from ptm_jax.convert.families.xlm import summary_fields, summary_of
from ptm_jax.convert.family import Family, families
from ptm_jax.convert.records import PROBLEMS, adopted, objective_of
from ptm_jax.convert.table import Line
from ptm_jax.core.errors import UserError
from ptm_jax.core.paths import flatten, unflatten
from ptm_jax.core.system import System
from ptm_jax.encoders.model import Model
from ptm_jax.encoders.transformer import Transformer
from ptm_jax.nn.heads import MLMHead
from ptm_jax.nn.layers import Dense, Identity
from ptm_jax.nn.task_heads import ChoiceHead, Detector, SequenceHead, SpanHead, Summary, TokenHead
from ptm_jax.objectives.language import MLM
from ptm_jax.systems.electra import small as parent

ROOT, TABLES = "electra.", 128

HEADS = {
    "ElectraModel": (),
    "ElectraForPreTraining": ("rtd",),
    "ElectraForMaskedLM": ("mlm",),
    "ElectraForCausalLM": ("lm",),
    "ElectraForSequenceClassification": ("classify",),
    "ElectraForMultipleChoice": ("choose",),
    "ElectraForTokenClassification": ("tag",),
    "ElectraForQuestionAnswering": ("span",),
}


def narrowed(core: Transformer, width: int, always: bool = False) -> Transformer:
    """The encoder behind tables `width` wide, and a layer to its own width where that is another (or `always`)."""
    states, init = core.stack.block.attention.width, core.embed.initializer
    project = Dense(states, initializer=init) if always or width != states else Identity()
    return dataclasses.replace(core, embed=dataclasses.replace(core.embed, width=width, project=project))


def heads_of(config: Config, core: Transformer) -> dict[str, Any]:
    """All heads of ELECTRA's classes. The generator's and the classifier's activations are GELU, whatever the encoder's."""
    init, tied = core.embed.initializer, config("tie_word_embeddings", bool, True)
    refused = "the classifier would be given classes in the place of states"
    config.refuse("summary_proj_to_labels", False, refused)
    rate = config("classifier_dropout", float, None)
    rate = config("hidden_dropout_prob", float, 0.1) if rate is None else rate
    mlm = MLMHead(vocab=core.embed.vocab, eps=config("layer_norm_eps", float, 1e-12), tied=tied, initializer=init)
    last, choices = config("summary_last_dropout", float, 0.1), config.positive("num_choices", 2)
    return {
        "rtd": Detector(config.one_of("hidden_act", ACTIVATIONS, "gelu"), initializer=init),
        "mlm": mlm,
        "lm": mlm,
        "classify": SequenceHead(
            config.labels, Summary("gelu", dropout=rate, initializer=init), dropout=rate, initializer=init
        ),
        "choose": ChoiceHead(choices, summary_of(config, init, "first", "gelu"), dropout=last, initializer=init),
        "tag": TokenHead(config.labels, dropout=rate, initializer=init),
        "span": SpanHead(initializer=init),
    }


def build(config: Config, architecture: str) -> System:
    """The record of one checkpoint. A discriminator alone is no pre-training: `united` gives it a generator."""
    core = bert.encoder(config, causal=config("is_decoder", bool, False))
    core = narrowed(core, config.positive("embedding_size", TABLES))
    heads = heads_of(config, core)
    chosen = {name: heads[name] for name in HEADS[architecture]}
    objective = objective_of(chosen, kind=PROBLEMS.get(config("problem_type", str, "")))
    return adopted(parent(""), Model(encoder=core, heads=chosen), objective, ties=())


def joined(judge: System, generator: System) -> System:
    """The record that goes on with pre-training, of those of a discriminator and a generator: ELECTRA's two towers,
    whose embeddings are one where they have the same sizes. Raises UserError for records of other heads."""
    for name, system, head in (("discriminator", judge, "rtd"), ("generator", generator, "mlm")):
        if head not in system.towers["main"].heads:
            raise UserError(f"{system.name} is no {name} of ELECTRA: it has no head {head!r}")
    towers = {"main": judge.towers["main"], "generator": generator.towers["main"]}
    mine, theirs = (dataclasses.replace(tower.encoder.embed, project=Identity()) for tower in towers.values())
    if mine.vocab.size != theirs.vocab.size:
        raise UserError(
            f"{judge.name} and {generator.name} have vocabularies of {mine.vocab.size} and {theirs.vocab.size}; "
            "a generator writes the words that its discriminator reads"
        )
    whole = parent("")
    return dataclasses.replace(
        judge, towers=towers, objective=whole.objective, corruption=generator.corruption or whole.corruption,
        ties=whole.ties if mine == theirs else (),
    )  # fmt: skip


def united(judge: Any, generator: Any) -> tuple[System, dict[str, Any]]:
    """(record, parameters {tower: tree}) of a discriminator's and a generator's checkpoint (`checkpoint.Checkpoint`). Their
    embeddings are one where they are the same numbers."""
    system = joined(judge.system, generator.system)
    params = {"main": judge.params["main"], "generator": generator.params["main"]}
    flat = flatten(params)
    if not all(np.array_equal(flat[tie.path], flat[tie.source]) for tie in system.ties):
        system = dataclasses.replace(system, ties=())
    return system, params


def separated(system: System, params: Mapping[str, Any]) -> dict[str, tuple[System, dict[str, Any]]]:
    """{"discriminator", "generator": (record, parameters)}: what two towers are written as."""
    flat = flatten(params)
    whole = unflatten({**flat, **{tie.path: flat[tie.source] for tie in system.ties}})
    told = {"discriminator": ("main", None), "generator": ("generator", MLM())}
    return {
        name: (
            dataclasses.replace(
                system, towers={"main": system.towers[tower]}, objective=objective or system.objective, ties=()
            ),
            {"main": whole[tower]},
        )
        for name, (tower, objective) in told.items()
    }


def lines(config: Config, architecture: str) -> tuple[Line, ...]:
    predictions = tuple(
        line
        for head in ("mlm", "lm")
        for line in (
            Line(f"heads_{head}/dense", "generator_predictions.dense", "dense"),
            Line(f"heads_{head}/norm", "generator_predictions.LayerNorm", "norm"),
            Line(f"heads_{head}/bias", "generator_lm_head.bias"),
            Line(f"heads_{head}/table", "generator_lm_head.weight"),
        )
    )
    return (
        *bert.encoder_lines(root=ROOT),
        Line("encoder/embed/project", f"{ROOT}embeddings_project", "dense"),
        *predictions,
        Line("heads_rtd/dense", "discriminator_predictions.dense", "dense"),
        Line("heads_rtd/score", "discriminator_predictions.dense_prediction", "dense"),
        Line("heads_classify/summary/dense", "classifier.dense", "dense"),
        Line("heads_classify/classes", "classifier.out_proj", "dense"),
        Line("heads_choose/summary/dense", "sequence_summary.summary", "dense"),
        Line("heads_choose/score", "classifier", "dense"),
        Line("heads_tag/classes", "classifier", "dense"),
        Line("heads_span/ends", "qa_outputs", "dense"),
    )


def config(system: System) -> dict[str, Any]:
    core, heads = system.towers["main"].encoder, system.towers["main"].heads
    fields = bert.config(system) | {"embedding_size": core.embed.width}
    if "choose" in heads:
        del fields["classifier_dropout"]
        fields |= summary_fields(heads["choose"].summary) | {"summary_last_dropout": heads["choose"].dropout}
    return fields


families.add(
    Family(
        model_type="electra",
        build=build,
        lines=lines,
        config=config,
        root=ROOT,
        heads=HEADS,
        ties={"generator_lm_head.weight": f"{ROOT}embeddings.word_embeddings.weight"},
    )
)
