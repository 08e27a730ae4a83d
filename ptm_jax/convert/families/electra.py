"""ELECTRA (Clark et al. 2020): BERT's encoder with a separate embedding width.

The discriminator and the generator are separate checkpoints.
"""

from __future__ import annotations

from typing import Any

from ptm_jax.convert import table
from ptm_jax.convert.config import ACTIVATIONS, Config
from ptm_jax.convert.families import bert
from ptm_jax.convert.families.xlm import summary_fields, summary_of
from ptm_jax.convert.family import Family, classes, families
from ptm_jax.convert.records import mlm_head, record_with, task_dropout, task_heads
from ptm_jax.convert.table import Line
from ptm_jax.core import spec
from ptm_jax.core.system import System
from ptm_jax.encoders.transformer.transformer import Transformer
from ptm_jax.nn.heads.pooling import Summary
from ptm_jax.nn.heads.pretraining import Detector
from ptm_jax.nn.heads.task_heads import ChoiceHead
from ptm_jax.nn.layers import Dense, Identity
from ptm_jax.systems.transformers.electra import small as parent

ROOT, TABLES = "electra.", 128
HEADS = classes("Electra", {"ForPreTraining": ("rtd",), "ForCausalLM": ("lm",)})


def narrowed(core: Transformer, width: int, always: bool = False) -> Transformer:
    """Returns the encoder with embeddings of `width` and a projection to its own width.

    It is unchanged if the widths are equal, unless `always`.
    """
    states, init = core.stack.block.attention.width, core.embed.initializer
    project = Dense(states, initializer=init) if always or width != states else Identity()
    return spec.override(core, {"embed.width": width, "embed.project": project})


def build(config: Config, architecture: str) -> System:
    """Returns the record of one checkpoint. The generator and the classifier always use GELU.

    To continue pre-training, use the catalogue's ELECTRA with `--init main=DISCRIMINATOR
    generator=GENERATOR`.
    """
    core = narrowed(bert.encoder(config), config.positive("embedding_size", TABLES))
    init, rate, mlm = core.embed.initializer, task_dropout(config), mlm_head(config, core)
    config.refuse(
        "summary_proj_to_labels",
        False,
        "the classifier would be given classes in the place of states",
    )
    last, choices = config("summary_last_dropout", float, 0.1), config.positive("num_choices", 2)
    heads = task_heads(config, Summary("gelu", dropout=rate, initializer=init), init, rate) | {
        "rtd": Detector(config.one_of("hidden_act", ACTIVATIONS, "gelu"), initializer=init),
        "mlm": mlm,
        "lm": mlm,
        "choose": ChoiceHead(
            choices, summary_of(config, init, "first", "gelu"), dropout=last, initializer=init
        ),
    }
    return record_with(config, parent(""), core, heads, HEADS[architecture], ties=())


def lines(config: Config, architecture: str) -> tuple[Line, ...]:
    generator, discriminator = "generator_predictions.", "discriminator_predictions."
    return (
        *bert.encoder_lines(ROOT),
        Line("encoder/embed/project", f"{ROOT}embeddings_project", "dense"),
        *table.vocabulary(
            f"{generator}dense",
            f"{generator}LayerNorm",
            "generator_lm_head.bias",
            "generator_lm_head.weight",
        ),
        Line("heads_rtd/dense", f"{discriminator}dense", "dense"),
        Line("heads_rtd/score", f"{discriminator}dense_prediction", "dense"),
        *table.tasks(
            "classifier.out_proj", "classifier.dense", "classifier", "sequence_summary.summary"
        ),
    )


def config(system: System) -> dict[str, Any]:
    core, heads = system.towers["main"].encoder, system.towers["main"].heads
    fields = bert.config(system) | {"embedding_size": core.embed.width}
    if "choose" in heads:
        del fields["classifier_dropout"]
        fields |= summary_fields(heads["choose"].summary) | {
            "summary_last_dropout": heads["choose"].dropout
        }
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
