"""LUKE: RoBERTa's layers over words and entities, with a query matrix for each pair of kinds.

Transformers 5 does not tie the vocabulary head to the words, so it has a table of its own here; a
file without one (written by Transformers 4) has the words' table there.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from ptm_jax.convert import table
from ptm_jax.convert.config import ACTIVATIONS, Config
from ptm_jax.convert.families import bert, roberta
from ptm_jax.convert.family import Family, classes, families
from ptm_jax.convert.records import (
    PROBLEMS,
    label_fields,
    mlm_head,
    record_with,
    special_ids,
    task_dropout,
    task_heads,
)
from ptm_jax.convert.table import Line
from ptm_jax.core.system import System
from ptm_jax.encoders.knowledge.entity_tokens import MentionTransformer
from ptm_jax.nn.attention.multihead import Attention
from ptm_jax.nn.embeddings.summed import LearnedPositions
from ptm_jax.nn.heads.knowledge.entity_states import EntityClasses, EntityWords, MentionClasses
from ptm_jax.nn.heads.pooling import Summary
from ptm_jax.nn.heads.vocabulary import Pooler
from ptm_jax.nn.knowledge.entity_aware import EntityAwareAttention, EntityEmbeddings, mixed
from ptm_jax.objectives.knowledge.masked_entities import MentionTypes
from ptm_jax.objectives.tasks.downstream import Classification
from ptm_jax.systems.knowledge.luke import luke

ENTITY_HEADS = ("typed", "related", "mentions")
HEADS = classes(
    "Luke",
    {
        "Model": ("pool",),
        "ForMaskedLM": ("mlm", "entity_words"),
        "ForEntityClassification": ("typed",),
        "ForEntityPairClassification": ("related",),
        "ForEntitySpanClassification": ("mentions",),
    },
)
WORDS, ENTITIES = (
    "luke.embeddings.word_embeddings.weight",
    "luke.entity_embeddings.entity_embeddings.weight",
)
TABLE, BIASES = "lm_head.decoder.weight", ("lm_head.bias", "lm_head.decoder.bias")


def encoder(config: Config) -> MentionTransformer:
    """Returns the encoder of a config."""
    config.refuse("tie_word_embeddings", True, "an untied table of entities is not supported")
    core = roberta.encoder(config)
    embed, init = core.embed, core.embed.initializer
    kind = EntityAwareAttention if config("use_entity_aware_attention", bool, True) else Attention
    return MentionTransformer(
        embed=embed,
        entities=EntityEmbeddings(
            size=config.positive("entity_vocab_size", 500_000),
            width=config.positive("entity_emb_size", 256),
            words=embed.width,
            position=LearnedPositions(embed.position.size, initializer=init),
            types=embed.types,
            norm=embed.norm,
            dropout=embed.dropout,
            initializer=init,
        ),
        stack=dataclasses.replace(core.stack, block=mixed(core.stack.block, kind)),
    )


def build(config: Config, architecture: str) -> System:
    core, eps = encoder(config), config("layer_norm_eps", float, 1e-12)
    init, rate = core.embed.initializer, config("hidden_dropout_prob", float, 0.1)
    activation = config.one_of("hidden_act", ACTIVATIONS, "gelu")
    named = {"mlm": mlm_head(config, core, tied=False), "pool": Pooler(initializer=init)}
    named |= task_heads(config, Summary(initializer=init), init, task_dropout(config))
    options = {"dropout": rate, "initializer": init}
    named |= {
        "entity_words": EntityWords(core.entities.size, activation, eps, init),
        "typed": EntityClasses(classes=config.labels, **options),
        "related": EntityClasses(classes=config.labels, count=2, bias=False, **options),
        "mentions": MentionClasses(classes=config.labels, **options),
    }
    heads, parent = HEADS[architecture], luke("", 2, 128, 2)
    if heads[0] not in ENTITY_HEADS:
        return record_with(
            config,
            parent,
            core,
            named,
            heads,
            objective=parent.objective if "entity_words" in heads else None,
        )
    several = PROBLEMS.get(config("problem_type", str, "")) or "classes"
    objective = (
        MentionTypes() if heads == ("mentions",) else Classification(head=heads[0], kind=several)
    )
    return record_with(config, parent, core, named, heads, objective=objective, corruption=None)


def lines(config: Config, architecture: str) -> tuple[Line, ...]:
    """Returns the lines of all classes."""
    ours, theirs, beside = (
        "encoder/stack/block/attention",
        "luke.encoder.layer.{i}.attention.self.",
        "luke.entity_embeddings.",
    )
    kinds = ("w2e_query", "e2w_query", "e2e_query")
    return (
        *bert.encoder_lines("luke."),
        *(Line(f"{ours}/{kind}", theirs + kind, "dense") for kind in kinds),
        Line("encoder/entities/entities", ENTITIES),
        Line("encoder/entities/project", f"{beside}entity_embedding_dense", "dense"),
        Line("encoder/entities/position/table", f"{beside}position_embeddings.weight"),
        Line("encoder/entities/type", f"{beside}token_type_embeddings.weight"),
        Line("encoder/entities/norm", f"{beside}LayerNorm", "norm"),
        *table.vocabulary("lm_head.dense", "lm_head.layer_norm", BIASES[0], TABLE),
        Line("heads_entity_words/dense", "entity_predictions.transform.dense", "dense"),
        Line("heads_entity_words/norm", "entity_predictions.transform.LayerNorm", "norm"),
        Line("heads_entity_words/bias", "entity_predictions.bias"),
        Line("heads_pool/dense", "luke.pooler.dense", "dense"),
        *(Line(f"heads_{head}/classes", "classifier", "dense") for head in ENTITY_HEADS),
        *table.tasks("classifier", "luke.pooler.dense"),
    )


def config(system: System) -> dict[str, Any]:
    core, heads = system.towers["main"].encoder, system.towers["main"].heads
    fields = bert.config(system) | special_ids(core.embed.vocab, "bos", "eos")
    fields = {name: value for name, value in fields.items() if name != "is_decoder"} | {
        "entity_vocab_size": core.entities.size,
        "entity_emb_size": core.entities.width,
        "use_entity_aware_attention": isinstance(core.stack.block.attention, EntityAwareAttention),
        "tie_word_embeddings": True,
    }
    named = next((heads[name] for name in ENTITY_HEADS if name in heads), None)
    return fields if named is None else fields | label_fields(named.classes)


families.add(
    Family(
        model_type="luke",
        build=build,
        lines=lines,
        config=config,
        root="luke.",
        heads=HEADS,
        ties={"entity_predictions.decoder.weight": ENTITIES, BIASES[1]: BIASES[0]},
        fill={BIASES[0]: BIASES[1:], TABLE: (WORDS,)},
    )
)
