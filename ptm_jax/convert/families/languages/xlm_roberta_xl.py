"""XLM-R XL and XXL (Goyal et al. 2021): RoBERTa's embeddings without a norm, layers that begin with
one, and a norm after the last layer."""

from __future__ import annotations

import dataclasses
import functools

from ptm_jax.convert.config import Config
from ptm_jax.convert.families import bert, roberta
from ptm_jax.convert.family import Family, classes, families
from ptm_jax.convert.table import Line
from ptm_jax.core.spec import override
from ptm_jax.encoders.transformer.transformer import Transformer
from ptm_jax.nn.layers import Identity, LayerNorm
from ptm_jax.systems.transformers.many_languages import xlm_r_xl

PARENT = xlm_r_xl("", 2, 128, 2)
ROOT = "roberta."
HEADS = classes("XLMRobertaXL", {"Model": ("pool",), "ForCausalLM": ("lm",)})
NORMS = ("self_attn_layer_norm", "LayerNorm")
"""The norm of an attention, and that of the feed-forward layers and after the last layer."""


def encoder(config: Config) -> Transformer:
    """Returns RoBERTa's encoder with norms before the branches."""
    core = roberta.encoder(config)
    block = dataclasses.replace(core.stack.block, norm="pre")
    if bert.crossing(block):
        block = dataclasses.replace(block, cross=dataclasses.replace(block.cross, norm="pre"))
    eps = block.ffn_norm.eps
    changes = {
        "embed.norm": Identity(),
        "stack.block": block,
        "stack.final_norm": LayerNorm(eps),
    }
    return override(core, changes)


def lines(config: Config, architecture: str) -> tuple[Line, ...]:
    block, layer = "encoder/stack/block", f"{ROOT}encoder.layer.{{i}}."
    first, last = NORMS
    return (
        Line(f"{block}/attention_norm", f"{layer}attention.{first}", "norm"),
        Line(f"{block}/cross/attention_norm", f"{layer}crossattention.{first}", "norm"),
        Line(f"{block}/ffn_norm", f"{layer}{last}", "norm"),
        Line("encoder/stack/final_norm", f"{ROOT}encoder.{last}", "norm"),
        *roberta.lines(config, architecture),
    )


families.add(
    Family(
        model_type="xlm-roberta-xl",
        build=functools.partial(roberta.build, PARENT, HEADS, encoder=encoder),
        lines=lines,
        config=roberta.config,
        root=ROOT,
        heads=HEADS,
        ties=roberta.TIES,
        fill=roberta.FILL,
    )
)
