"""ERNIE 1.0, 2.0 and 3.0 of Baidu: BERT under another root, with task embeddings if `use_task_id` is set."""

from __future__ import annotations

import dataclasses
from typing import Any

from ptm_jax.convert.config import Config
from ptm_jax.convert.families import bert
from ptm_jax.convert.family import Family, families
from ptm_jax.convert.table import Line
from ptm_jax.core.system import System
from ptm_jax.nn.embeddings.parts import TaskTypes
from ptm_jax.systems.masked import bert_wwm
from ptm_jax.systems.transformers import BERT_CHINESE

ROOT = "ernie."

HEADS = {name.replace("Bert", "Ernie"): heads for name, heads in bert.HEADS.items() if name != "BertLMHeadModel"}
HEADS |= {"ErnieForCausalLM": ("lm",)}

# ERNIE masks phrases and entities; the lists are not public, so we mask whole words.
PARENT = dataclasses.replace(
    bert_wwm("", 2, 128, 2, BERT_CHINESE),
    paper="Sun et al. 2020, arXiv 1907.12412",
    section="4.2.2",
    rows=(129, 130),
)


def build(config: Config, architecture: str) -> System:
    core = bert.encoder(config, causal=config("is_decoder", bool, False))
    tasks = config.positive("task_type_vocab_size", 3) if config("use_task_id", bool, False) else 0
    if tasks:
        parts = (*core.embed.parts, TaskTypes(tasks))
        core = dataclasses.replace(core, embed=dataclasses.replace(core.embed, parts=parts))
    return bert.record(config, PARENT, core, HEADS[architecture])


def lines(config: Config, architecture: str) -> tuple[Line, ...]:
    tasks = Line("encoder/embed/task", f"{ROOT}embeddings.task_type_embeddings.weight")
    return (tasks, *bert.class_lines(config, ROOT))


def config(system: System) -> dict[str, Any]:
    tasks = system.towers["main"].encoder.embed.tasks
    tasks_of = {"use_task_id": True, "task_type_vocab_size": tasks} if tasks else {"use_task_id": False}
    return bert.config(system) | tasks_of


families.add(
    Family(
        model_type="ernie",
        build=build,
        lines=lines,
        config=config,
        root=ROOT,
        heads=HEADS,
        ties=bert.ties(ROOT),
        fill=bert.FILL,
    )
)
