"""ELECTRA (Clark et al. 2020): BERT's encoder with a separate embedding width.

The discriminator and the generator are separate checkpoints.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from ptm_jax.convert.config import ACTIVATIONS, Config
from ptm_jax.convert.families import bert
from ptm_jax.convert.families.xlm import summary_fields, summary_of
from ptm_jax.convert.family import Family, families
from ptm_jax.convert.records import PROBLEMS, adopted, objective_of
from ptm_jax.convert.table import Line
from ptm_jax.core.system import System
from ptm_jax.encoders.model import Model
from ptm_jax.encoders.transformer import Transformer
from ptm_jax.nn.heads.tasks import ChoiceHead, Detector, SequenceHead, SpanHead, Summary, TokenHead
from ptm_jax.nn.heads.vocabulary import MLMHead
from ptm_jax.nn.layers import Dense, Identity
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
    """Returns the encoder with embeddings of `width` and a projection to its own width, if they differ (or `always`)."""
    states, init = core.stack.block.attention.width, core.embed.initializer
    project = Dense(states, initializer=init) if always or width != states else Identity()
    return dataclasses.replace(core, embed=dataclasses.replace(core.embed, width=width, project=project))


def heads_of(config: Config, core: Transformer) -> dict[str, Any]:
    """Returns all heads of ELECTRA's classes. The generator and the classifier always use GELU."""
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
    """Returns the record of one checkpoint.

    To continue pre-training, use the catalogue's ELECTRA with `--init main=DISCRIMINATOR generator=GENERATOR`.
    """
    core = bert.encoder(config, causal=config("is_decoder", bool, False))
    core = narrowed(core, config.positive("embedding_size", TABLES))
    heads = heads_of(config, core)
    chosen = {name: heads[name] for name in HEADS[architecture]}
    objective = objective_of(chosen, kind=PROBLEMS.get(config("problem_type", str, "")))
    return adopted(parent(""), Model(encoder=core, heads=chosen), objective, ties=())


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
