"""NEZHA (Wei et al. 2019): BERT with relative positions in keys and values.
They replace absolute positions.

Transformers contains it up to 4.57; version 5 does not.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from ptm_jax.convert.config import Config
from ptm_jax.convert.families import bert
from ptm_jax.convert.family import families
from ptm_jax.convert.table import Line
from ptm_jax.core import spec
from ptm_jax.core.system import System
from ptm_jax.nn.attention.relative import RelativeKeysValues
from ptm_jax.systems.transformers.bert_gpt import BERT_CHINESE
from ptm_jax.systems.transformers.bert_variants import bert_wwm

PARENT = dataclasses.replace(
    bert_wwm("", 2, 128, 2, BERT_CHINESE),
    paper="Wei et al. 2019, arXiv 1909.00204",
    section="4.2.2",
    rows=(131,),
)


def build(config: Config, architecture: str) -> System:
    config.refuse("add_cross_attention", False, "cross-attention of this family is not supported")
    relative = RelativeKeysValues(farthest=config.positive("max_relative_position", 64))
    core = spec.override(
        bert.encoder(config), {"stack.block.attention.relative": relative, "embed.position": None}
    )
    # A null `classifier_dropout` means the layers' rate; a missing one means 0.1.
    rate = None if "classifier_dropout" in config else 0.1
    return bert.record(config, PARENT, core, NEZHA.heads[architecture], rate)


def lines(config: Config, architecture: str) -> tuple[Line, ...]:
    """Returns the rename table.
    The vocabulary bias has the name of a tied head's bias even if the head is untied."""
    biases = tuple(Line(f"heads_{head}/bias", "cls.predictions.bias") for head in ("mlm", "lm"))
    return (*biases, *bert.lines(config, architecture, "nezha."))


def config(system: System) -> dict[str, Any]:
    relative = system.towers["main"].encoder.stack.block.attention.relative
    return bert.config(system) | {"max_relative_position": relative.farthest}


IGNORE = (r"(^|\.)position_ids$", r"\.positions_encoding$")
NEZHA = bert.family(
    "nezha", "Nezha", "nezha.", {}, build=build, lines=lines, config=config, ignore=IGNORE
)
families.add(NEZHA)
