"""FlauBERT (Le et al. 2020): XLM's encoder and classes, for French; the norms may stand first, and layers be left out."""

from __future__ import annotations

import dataclasses
from typing import Any

from ptm_jax.convert.config import Config
from ptm_jax.convert.families import xlm
from ptm_jax.convert.family import Family, families
from ptm_jax.core.system import System
from ptm_jax.nn.layerdrop import DroppedBlock


def build(config: Config, architecture: str) -> System:
    config = xlm.todays(config)
    core, skip = xlm.encoder(config), config("layerdrop", float, 0.0)
    block = dataclasses.replace(core.stack.block, norm="pre" if config("pre_norm", bool, False) else "post")
    if skip:
        fields = {f.name: getattr(block, f.name) for f in dataclasses.fields(block) if f.name not in ("parent", "name")}
        block = DroppedBlock(**fields, skip=skip)
    core = dataclasses.replace(core, stack=dataclasses.replace(core.stack, block=block))
    facts = {"paper": "Le et al. 2020, arXiv 1912.05372", "section": "4.2.2", "rows": (135,)}
    return xlm.record(config, architecture.removeprefix("Flaubert"), core, **facts)


def config(system: System) -> dict[str, Any]:
    block = system.towers["main"].encoder.stack.block
    return xlm.config(system) | {"pre_norm": block.norm == "pre", "layerdrop": getattr(block, "skip", 0.0)}


families.add(
    Family(
        model_type="flaubert",
        build=build,
        lines=xlm.lines,
        config=config,
        root="transformer.",
        heads=xlm.classes_of("Flaubert"),
        ties=xlm.TIES,
    )
)
