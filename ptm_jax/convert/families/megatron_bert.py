"""Megatron-LM's BERT (Shoeybi et al. 2019): BERT's names, norms before the branches and after the last layer."""

from __future__ import annotations

import dataclasses
from typing import Any

from ptm_jax.convert.config import Config
from ptm_jax.convert.families import bert
from ptm_jax.convert.family import Family, families
from ptm_jax.convert.table import Line
from ptm_jax.core.spec import respell
from ptm_jax.core.system import System
from ptm_jax.encoders.transformer import Transformer
from ptm_jax.nn.initializers import Normal, TruncatedNormal
from ptm_jax.nn.layers import Identity
from ptm_jax.objectives.sentence_pairs import NSP
from ptm_jax.systems.megatron import megatron_bert

ROOT, PARENT = "bert.", megatron_bert("", 2, 128, 2)

HEADS = {f"Megatron{name}": heads for name, heads in bert.HEADS.items() if name != "BertLMHeadModel"}
HEADS |= {
    "MegatronBertForPreTraining": ("mlm", "pool", "sop"),
    "MegatronBertForNextSentencePrediction": ("pool", "sop"),
    "MegatronBertForCausalLM": ("lm",),
}
"""Its sentence-pair task is sentence order (`sop`)."""


def encoder(config: Config) -> Transformer:
    core = bert.encoder(config, causal=config("is_decoder", bool, False))
    init = Normal(config("initializer_range", float, 0.02))
    core = respell(core, TruncatedNormal, lambda _: init)
    last = Normal(init.std / (2 * core.stack.layers) ** 0.5)
    block = core.stack.block
    stack = dataclasses.replace(
        core.stack,
        final_norm=block.ffn_norm,
        block=dataclasses.replace(
            block,
            norm="pre",
            attention=dataclasses.replace(block.attention, out_init=last),
            ffn=dataclasses.replace(block.ffn, out_init=last),
        ),
    )
    return dataclasses.replace(core, stack=stack, embed=dataclasses.replace(core.embed, norm=Identity()))


def build(config: Config, architecture: str) -> System:
    # The classes have no `classifier_dropout`.
    hidden, heads = config("hidden_dropout_prob", float, 0.1), HEADS[architecture]
    system = bert.record(config, PARENT, encoder(config), heads, hidden)
    if heads == ("mlm", "pool", "sop"):
        return dataclasses.replace(system, objective=PARENT.objective)
    if heads == ("pool", "sop"):
        return dataclasses.replace(system, objective=NSP(name="sop", head="sop"), corruption=None)
    return system


def lines(config: Config, architecture: str) -> tuple[Line, ...]:
    block, layer = "encoder/stack/block", f"{ROOT}encoder.layer.{{i}}"
    return (
        Line(f"{block}/attention_norm", f"{layer}.attention.ln", "norm"),
        Line(f"{block}/ffn_norm", f"{layer}.ln", "norm"),
        Line("encoder/stack/final_norm", f"{ROOT}encoder.ln", "norm"),
        *bert.class_lines(config, ROOT),
    )


def config(system: System) -> dict[str, Any]:
    fields = bert.config(system)
    fields.pop("classifier_dropout", None)
    return fields


families.add(
    Family(
        model_type="megatron-bert",
        build=build,
        lines=lines,
        config=config,
        root=ROOT,
        heads=HEADS,
        ties=bert.ties(ROOT),
        fill=bert.FILL,
    )
)
