"""Megatron-LM's BERT: BERT's names, norms before the branches and after the last layer.
Shoeybi et al. 2019."""

from __future__ import annotations

from typing import Any

from ptm_jax.convert.config import Config
from ptm_jax.convert.families import bert
from ptm_jax.convert.family import families
from ptm_jax.convert.table import Line
from ptm_jax.core import spec
from ptm_jax.core.system import System
from ptm_jax.encoders.transformer.transformer import Transformer
from ptm_jax.nn.initializers import Normal, TruncatedNormal
from ptm_jax.nn.layers import Identity
from ptm_jax.objectives.text.sentence_pairs import NSP
from ptm_jax.systems.transformers.megatron import megatron_bert

PARENT = megatron_bert("", 2, 128, 2)


def encoder(config: Config) -> Transformer:
    config.refuse("add_cross_attention", False, "cross-attention of this family is not supported")
    core = bert.encoder(config)
    init = Normal(core.embed.initializer.std)
    core, last = (
        spec.respell(core, TruncatedNormal, lambda _: init),
        Normal(init.std / (2 * core.stack.layers) ** 0.5),
    )
    changes = {"norm": "pre", "attention.out_init": last, "ffn.out_init": last}
    outer = {"stack.final_norm": core.stack.block.ffn_norm, "embed.norm": Identity()}
    return spec.override(
        core, outer | {f"stack.block.{path}": value for path, value in changes.items()}
    )


def build(config: Config, architecture: str) -> System:
    names = MEGATRON.heads[architecture]
    objectives = {
        ("mlm", "pool", "sop"): PARENT.objective,
        ("pool", "sop"): NSP(name="sop", head="sop"),
    }
    hidden = config("hidden_dropout_prob", float, 0.1)  # the classes have no `classifier_dropout`
    return bert.record(
        config, PARENT, encoder(config), names, hidden, objective=objectives.get(names)
    )


def lines(config: Config, architecture: str) -> tuple[Line, ...]:
    block, layer = "encoder/stack/block", "bert.encoder.layer.{i}"
    return (
        Line(f"{block}/attention_norm", f"{layer}.attention.ln", "norm"),
        Line(f"{block}/ffn_norm", f"{layer}.ln", "norm"),
        Line("encoder/stack/final_norm", "bert.encoder.ln", "norm"),
        *bert.lines(config, architecture),
    )


def config(system: System) -> dict[str, Any]:
    fields = bert.config(system)
    fields.pop("classifier_dropout", None)
    return fields


SOP = {
    "ForPreTraining": ("mlm", "pool", "sop"),
    "ForNextSentencePrediction": ("pool", "sop"),
    "ForCausalLM": ("lm",),
}
"""Its sentence-pair task is sentence order (`sop`)."""

MEGATRON = bert.family(
    "megatron-bert", "MegatronBert", "bert.", SOP, build=build, lines=lines, config=config
)
families.add(MEGATRON)
