"""ERNIE 1.0, 2.0 and 3.0 of Baidu: BERT under another root.
It has task embeddings if `use_task_id` is set."""

from __future__ import annotations

import dataclasses
from typing import Any

from ptm_jax.convert.config import Config
from ptm_jax.convert.families import bert
from ptm_jax.convert.family import families
from ptm_jax.convert.table import Line
from ptm_jax.core import spec
from ptm_jax.core.system import System
from ptm_jax.nn.embeddings.parts import TaskTypes
from ptm_jax.systems.transformers.bert_gpt import BERT_CHINESE
from ptm_jax.systems.transformers.bert_variants import bert_wwm

# ERNIE masks phrases and entities; the lists are not public, so we mask whole words.
PARENT = dataclasses.replace(
    bert_wwm("", 2, 128, 2, BERT_CHINESE),
    paper="Sun et al. 2020, arXiv 1907.12412",
    section="4.2.2",
    rows=(129, 130),
)


def build(config: Config, architecture: str) -> System:
    core = bert.encoder(config)
    if config("use_task_id", bool, False):
        tasks = TaskTypes(config.positive("task_type_vocab_size", 3))
        core = spec.override(core, {"embed.parts": (*core.embed.parts, tasks)})
    return bert.record(config, PARENT, core, ERNIE.heads[architecture])


def lines(config: Config, architecture: str) -> tuple[Line, ...]:
    tasks = Line("encoder/embed/task", "ernie.embeddings.task_type_embeddings.weight")
    return (tasks, *bert.lines(config, architecture, "ernie."))


def config(system: System) -> dict[str, Any]:
    tasks = system.towers["main"].encoder.embed.tasks
    tasks_of = (
        {"use_task_id": True, "task_type_vocab_size": tasks} if tasks else {"use_task_id": False}
    )
    return bert.config(system) | tasks_of


ERNIE = bert.family(
    "ernie", "Ernie", "ernie.", {"ForCausalLM": ("lm",)}, build=build, lines=lines, config=config
)
families.add(ERNIE)
