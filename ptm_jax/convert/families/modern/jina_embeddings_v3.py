"""JinaEmbeddings-v3 (Sturua et al. 2024, arXiv 2409.10173): XLM-R with rotary positions."""

from __future__ import annotations

from typing import Any

from ptm_jax.convert import table
from ptm_jax.convert.config import Config
from ptm_jax.convert.families import roberta
from ptm_jax.convert.families.modern import nomic_bert
from ptm_jax.convert.families.modern.task_tensors import of_task
from ptm_jax.convert.family import Family, classes, families
from ptm_jax.convert.records import (
    mlm_head,
    record_with,
    task_dropout,
    task_fields,
    task_heads,
    tied,
    vocab_of,
)
from ptm_jax.convert.table import Line
from ptm_jax.core.system import System
from ptm_jax.nn.heads.pooling import Summary
from ptm_jax.nn.heads.vocabulary import Pooler

ROOT = "roberta."
TASKS = (*nomic_bert.TASKS, "ForQuestionAnswering")
HEADS = classes("JinaEmbeddingsV3", {"Model": ("pool",)}, TASKS)


def build(config: Config, architecture: str) -> System:
    config = config.filled(
        hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1, layer_norm_eps=1e-5
    )
    core = nomic_bert.encoder(
        config,
        20_000.0,
        types=1,
        act="gelu",
        vocab=vocab_of(config, pad=1, bos=0, eos=2),
        gated=False,
        bias=True,
        ffn_bias=True,
    )
    init, rate = core.embed.initializer, task_dropout(config)
    heads = task_heads(config, Summary(dropout=rate, initializer=init), init, rate)
    heads |= {"mlm": mlm_head(config, core), "pool": Pooler(initializer=init)}
    return record_with(config, roberta.XLM_ROBERTA, core, heads, HEADS[architecture])


def head_lines(config: Config) -> tuple[Line, ...]:
    """Returns the lines of the heads, XLM-R's."""
    bias = roberta.BIASES[not config("tie_word_embeddings", bool, True)]
    names = ("lm_head.dense", "lm_head.layer_norm", bias, "lm_head.decoder.weight")
    tasks = ("classifier.out_proj", "classifier.dense", "classifier", f"{ROOT}pooler.dense")
    return (*table.vocabulary(*names), *table.tasks(*tasks))


def inner(config: Config, architecture: str) -> tuple[Line, ...]:
    """Returns the rename table of the names in memory."""
    lines = nomic_bert.inner_lines(ROOT, "fc1", "", "fc2")
    return (*lines, *head_lines(config))


def lines(config: Config, architecture: str) -> tuple[Line, ...]:
    block, layer = nomic_bert.BLOCK, f"{ROOT}encoder.layers.{{i}}."
    return (
        *nomic_bert.embedding_lines(ROOT, "emb_ln"),
        *table.joined(f"{block}/attention", f"{layer}mixer.Wqkv", "dense"),
        Line(f"{block}/attention/out", f"{layer}mixer.out_proj", "dense", ins=2),
        Line(f"{block}/ffn/up", f"{layer}mlp.fc1", "dense"),
        Line(f"{block}/ffn/down", f"{layer}mlp.fc2", "dense"),
        Line(f"{block}/attention_norm", f"{layer}norm1", "norm"),
        Line(f"{block}/ffn_norm", f"{layer}norm2", "norm"),
        *head_lines(config),
    )


def config(system: System) -> dict[str, Any]:
    """Returns the fields of a config.json."""
    core, heads = system.towers["main"].encoder, system.towers["main"].heads
    return {
        **nomic_bert.encoder_fields(core),
        "tie_word_embeddings": tied(heads, "mlm"),
    } | task_fields(heads)


families.add(
    Family(
        model_type="jina_embeddings_v3",
        build=build,
        lines=lines,
        inner=inner,
        opened=of_task,
        renames=((r"\.parametrizations\.weight\.original$", ".weight"),),
        config=config,
        root=ROOT,
        heads=HEADS,
        ties={
            "lm_head.decoder.weight": f"{ROOT}embeddings.word_embeddings.weight",
            roberta.BIASES[1]: roberta.BIASES[0],
        },
        fill={
            roberta.BIASES[0]: roberta.BIASES[1:],
            roberta.BIASES[1]: roberta.BIASES[:1],
        },
    )
)
