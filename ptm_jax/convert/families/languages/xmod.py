"""X-MOD (Pfeiffer et al. 2022): XLM-R whose layers end with an adapter of the row's language.

Transformers' classes of a decoder are refused: no published checkpoint is one.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from ptm_jax.convert.config import Config
from ptm_jax.convert.families import roberta
from ptm_jax.convert.family import Family, classes, families
from ptm_jax.convert.files import Tensors
from ptm_jax.convert.table import Line
from ptm_jax.core import spec
from ptm_jax.core.errors import UserError
from ptm_jax.core.system import System
from ptm_jax.data.rows.languages.multilingual import languages_of
from ptm_jax.encoders.transformer.transformer import Transformer
from ptm_jax.nn.adapter_layers import LanguageAdapters, LanguageBlock
from ptm_jax.nn.layers import Identity, LayerNorm

PARENT = dataclasses.replace(
    roberta.XLM_ROBERTA, paper="Pfeiffer et al. 2022, arXiv 2205.06266", section="4.2.1"
)
HEADS = classes("Xmod", {"Model": ("pool",)})


def languages_in(config: Config) -> tuple[str, ...]:
    """Returns the names of the languages in the order of their numbers. Raises UserError."""
    names = config("languages", list, ["en_XX"])
    plain = all(isinstance(name, str) and name and "." not in name for name in names)
    if not names or not plain or len(set(names)) != len(names):
        raise UserError(f"{config.file}: languages is no list of different names; correct it")
    return tuple(names)


def encoder(config: Config) -> Transformer:
    """Returns RoBERTa's encoder with adapters of the languages."""
    for name in ("is_decoder", "add_cross_attention"):
        config.refuse(name, False, "a decoder of this family is not supported")
    core, pre = roberta.encoder(config), config("pre_norm", bool, False)
    block, width = core.stack.block, core.stack.block.attention.width
    factor = config.positive("adapter_reduction_factor", 2)
    if factor > width:
        raise ValueError(f"adapter_reduction_factor {factor} leaves no feature of {width}")
    apart, again = (
        config("adapter_layer_norm", bool, False),
        config("adapter_reuse_layer_norm", bool, True),
    )
    adapted = LanguageBlock(
        **spec.values_of(dataclasses.replace(block, norm="pre" if pre else "post")),
        adapters=LanguageAdapters(
            len(languages_in(config)),
            width // factor,
            block.ffn.activation,
            initializer=block.ffn.initializer,
        ),
        adapter_norm=LayerNorm(block.ffn_norm.eps) if apart else None if again else Identity(),
        residual="normed" if config("ln_before_adapter", bool, True) else "plain",
    )
    final = LayerNorm(block.ffn_norm.eps) if pre else Identity()
    return spec.override(core, {"stack.block": adapted, "stack.final_norm": final})


def build(config: Config, architecture: str) -> System:
    system = roberta.build(PARENT, HEADS, config, architecture, encoder=encoder)
    names = languages_in(config)
    rows = dataclasses.replace(system.examples, languages=names, capacity=len(names), parallel=None)
    return dataclasses.replace(system, examples=rows)


def lines(config: Config, architecture: str) -> tuple[Line, ...]:
    layer = "roberta.encoder.layer.{i}.output."
    block, names = "encoder/stack/block", languages_in(config)
    adapters = (
        Line(
            f"{block}/adapters/{ours}",
            f"{layer}adapter_modules.{{j}}.{theirs}",
            "dense",
            members=names,
        )
        for ours, theirs in (("reduce", "dense1"), ("expand", "dense2"))
    )
    return (
        *adapters,
        Line(f"{block}/adapter_norm", f"{layer}adapter_layer_norm", "norm"),
        Line("encoder/stack/final_norm", "roberta.encoder.LayerNorm", "norm"),
        *roberta.lines(config, architecture),
    )


def config(system: System) -> dict[str, Any]:
    block = system.towers["main"].encoder.stack.block
    count = block.adapters.languages
    names = languages_of(system.examples)[:count]
    names += tuple(f"language_{n}" for n in range(len(names), count))  # without text so far
    factor = block.attention.width // block.adapters.width
    if block.attention.width // factor != block.adapters.width:
        raise ValueError("the width of the adapters is no whole part of the states'")
    apart = block.adapter_norm not in (None, Identity())
    return roberta.config(system) | {
        "pre_norm": block.norm == "pre",
        "languages": list(names),
        "adapter_reduction_factor": factor,
        "adapter_layer_norm": apart,
        "adapter_reuse_layer_norm": block.adapter_norm is None,
        "ln_before_adapter": block.residual == "normed",
    }


def completed(config: Config, tensors: Tensors) -> Config:
    """Returns the config with the numbers of its languages under XLM's names for them."""
    names, default = languages_in(config), config("default_language", str, None)
    numbers = {name: number for number, name in enumerate(names)}
    known = {"lang2id": numbers}
    if default in numbers:
        known["lang_id"] = numbers[default]
    return config.filled(**known)


families.add(
    Family(
        model_type="xmod",
        build=build,
        lines=lines,
        config=config,
        root="roberta.",
        heads=HEADS,
        ties=roberta.TIES,
        fill=roberta.FILL,
        completed=completed,
    )
)
