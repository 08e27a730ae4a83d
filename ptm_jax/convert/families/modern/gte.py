"""GTE (Zhang et al. 2024, arXiv 2407.19669): NomicBERT's layers with biases and GeGLU, and the
vocabulary head of XLM-R."""

from __future__ import annotations

from typing import Any

from ptm_jax.convert import table
from ptm_jax.convert.config import Config
from ptm_jax.convert.families.modern import nomic_bert
from ptm_jax.convert.family import Family, classes, families
from ptm_jax.convert.records import mlm_head, record_with, task_fields, task_heads, tied
from ptm_jax.convert.table import Line
from ptm_jax.core.spec import override
from ptm_jax.core.system import System
from ptm_jax.nn.heads.pooling import Summary
from ptm_jax.nn.heads.vocabulary import Pooler
from ptm_jax.systems.transformers.modern import nomicbert

ROOT = "gte."
HEADS = classes("Gte", {"Model": ("pool",)}, nomic_bert.TASKS)


def build(config: Config, architecture: str) -> System:
    """Returns the record of a checkpoint. The hidden features of a layer have its dropout too."""
    config = config.filled(hidden_dropout_prob=0.1)
    rate = config("hidden_dropout_prob", float)
    core = nomic_bert.encoder(config, 160_000.0, types=1, act="gelu", bias=True, ffn_bias="last")
    core = override(core, {"stack.block.ffn.dropout": rate})
    init = core.embed.initializer
    heads = task_heads(
        config, Summary(initializer=init), init, config("classifier_dropout", float, rate)
    )
    heads |= {"mlm": mlm_head(config, core), "pool": Pooler(initializer=init)}
    parent = nomicbert.nomicbert("", 2, 128, 2, 256)
    return record_with(config, parent, core, heads, HEADS[architecture])


def head_lines(norm: str) -> tuple[Line, ...]:
    """Returns the lines of the heads."""
    names = ("dense", norm, "decoder.bias", "decoder.weight")
    return (
        *table.vocabulary(*(f"lm_head.{name}" for name in names)),
        *table.tasks("classifier", f"{ROOT}pooler.dense"),
    )


def inner(config: Config, architecture: str) -> tuple[Line, ...]:
    """Returns the rename table of the names in memory."""
    lines = nomic_bert.inner_lines(ROOT, "gate_proj", "up_proj", "down_proj")
    return (*lines, *head_lines("layer_norm"))


def lines(config: Config, architecture: str) -> tuple[Line, ...]:
    """Returns the rename table. A file holds the second factor of GeGLU first."""
    block, layer = "encoder/stack/block", f"{ROOT}encoder.layer.{{i}}."
    joined = f"{layer}mlp.up_gate_proj"
    return (
        *nomic_bert.embedding_lines(ROOT, "embeddings.LayerNorm"),
        *table.joined(f"{block}/attention", f"{layer}attention.qkv_proj", "dense"),
        Line(f"{block}/attention/out", f"{layer}attention.o_proj", "dense", ins=2),
        Line(f"{block}/ffn/gate", joined, "dense", part=(0, 2)),
        Line(f"{block}/ffn/up", joined, "dense", part=(1, 2)),
        Line(f"{block}/ffn/down", f"{layer}mlp.down_proj", "dense"),
        Line(f"{block}/attention_norm", f"{layer}attn_ln", "norm"),
        Line(f"{block}/ffn_norm", f"{layer}mlp_ln", "norm"),
        *head_lines("norm"),
    )


def config(system: System) -> dict[str, Any]:
    core, heads = system.towers["main"].encoder, system.towers["main"].heads
    fields = nomic_bert.encoder_fields(core) | {"tie_word_embeddings": tied(heads, "mlm")}
    return fields | task_fields(heads)


families.add(
    Family(
        model_type="gte",
        build=build,
        lines=lines,
        inner=inner,
        config=config,
        root=ROOT,
        renames=((r"^new\.", ROOT),),
        heads=HEADS,
        ties={"lm_head.decoder.weight": f"{ROOT}embeddings.word_embeddings.weight"},
    )
)
