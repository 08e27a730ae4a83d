"""FlauBERT (Le et al. 2020): XLM's encoder and classes for French.
Pre-norm and LayerDrop are optional."""

from __future__ import annotations

import dataclasses
from typing import Any

from ptm_jax.convert.config import Config
from ptm_jax.convert.families import xlm
from ptm_jax.convert.family import Family, classes, families
from ptm_jax.core import spec
from ptm_jax.core.system import System
from ptm_jax.nn.layerdrop import dropped, skip_of

HEADS = classes("Flaubert", {"WithLMHeadModel": ("mlm",), **xlm.ANSWERS}, xlm.TEXTS)


def build(config: Config, architecture: str) -> System:
    config = xlm.todays(config)
    core, skip = xlm.encoder(config), config("layerdrop", float, 0.0)
    block = dataclasses.replace(
        core.stack.block, norm="pre" if config("pre_norm", bool, False) else "post"
    )
    core = spec.override(core, {"stack.block": dropped(block, skip)})
    facts = {"paper": "Le et al. 2020, arXiv 1912.05372", "section": "4.2.2", "rows": (135,)}
    return xlm.record(config, core, HEADS[architecture], **facts)


def config(system: System) -> dict[str, Any]:
    block = system.towers["main"].encoder.stack.block
    return xlm.config(system) | {"pre_norm": block.norm == "pre", "layerdrop": skip_of(block)}


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
