"""FlauBERT (Le et al. 2020): XLM's encoder and classes for French, with optional pre-norm and LayerDrop."""

from __future__ import annotations

import dataclasses
from typing import Any

from ptm_jax.convert.config import Config
from ptm_jax.convert.families import xlm
from ptm_jax.convert.family import Family, classes, families
from ptm_jax.core import spec
from ptm_jax.core.system import System
from ptm_jax.nn.layerdrop import DroppedBlock

HEADS = classes("Flaubert", {"WithLMHeadModel": ("mlm",), **xlm.ANSWERS}, xlm.TEXTS)


def build(config: Config, architecture: str) -> System:
    config = xlm.todays(config)
    core, skip = xlm.encoder(config), config("layerdrop", float, 0.0)
    block = dataclasses.replace(core.stack.block, norm="pre" if config("pre_norm", bool, False) else "post")
    if skip:
        fields = {name: vars(block)[name] for name in spec.field_names(block)}
        block = DroppedBlock(**fields, skip=skip)
    core = spec.override(core, {"stack.block": block})
    facts = {"paper": "Le et al. 2020, arXiv 1912.05372", "section": "4.2.2", "rows": (135,)}
    return xlm.record(config, core, HEADS[architecture], **facts)


def config(system: System) -> dict[str, Any]:
    block = system.towers["main"].encoder.stack.block
    skip = block.skip if isinstance(block, DroppedBlock) else 0.0
    return xlm.config(system) | {"pre_norm": block.norm == "pre", "layerdrop": skip}


families.add(
    Family(
        model_type="flaubert",
        build=build,
        lines=xlm.lines,
        config=config,
        root="transformer.",
        heads=HEADS,
        ties=xlm.TIES,
    )
)
