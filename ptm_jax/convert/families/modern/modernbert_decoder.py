"""ModernBERT's decoders: Ettin's (Weller et al. 2025)."""

from __future__ import annotations

import dataclasses
from typing import Any

from ptm_jax.convert import table
from ptm_jax.convert.config import ACTIVATIONS, PUBLISHED, Config
from ptm_jax.convert.families.modern import angles, modernbert
from ptm_jax.convert.family import Family, families
from ptm_jax.convert.records import mlm_head, record_with, task_fields, tied
from ptm_jax.convert.table import Line
from ptm_jax.core.errors import UserError
from ptm_jax.core.system import System
from ptm_jax.nn.attention.rotary import LocalLayers
from ptm_jax.nn.heads.task_heads import SequenceHead
from ptm_jax.nn.heads.transformed import Transformation, TransformedSummary
from ptm_jax.nn.initializers import TruncatedNormal
from ptm_jax.objectives.text.language import LM
from ptm_jax.systems.transformers.modern import ettin

HEADS = {
    "ModernBertDecoderModel": (),
    "ModernBertDecoderForCausalLM": ("lm",),
    "ModernBertDecoderForSequenceClassification": ("classify",),
}


def pattern(config: Config) -> LocalLayers:
    """Returns the pattern of full and local layers.

    A local layer sees local_attention / 2 tokens with the token itself, one fewer than the
    encoder's on each side.
    """
    layers = config.count("num_hidden_layers")
    radius = modernbert.width_of(config, least=4) // 2 - 1
    every = config.positive("global_attn_every_n_layers", 3)
    kinds = [angles.KINDS[i % every == 0] for i in range(layers)]
    return angles.pattern(config, layers, radius, kinds)


def build(config: Config, architecture: str) -> System:
    core = dataclasses.replace(modernbert.encoder(config, pattern(config)), direction="causal")
    norm, init = core.stack.final_norm, core.stack.block.attention.out_init
    fields = {
        "activation": config.one_of("classifier_activation", ACTIVATIONS, "gelu"),
        "eps": norm.eps,
        "center": norm.center,
        "initializer": init,
    }
    bias = config("classifier_bias", bool, False)
    summary = TransformedSummary(at="last", transform=Transformation(bias=bias, **fields))
    words = {"dense_bias": bias, "bias": config("decoder_bias", bool, True)}
    heads = {
        "lm": mlm_head(config, core, **words, **fields),
        "classify": SequenceHead(
            config.labels,
            summary,
            bias=bias,
            dropout=config("classifier_dropout", float, 0.0),
            initializer=TruncatedNormal(core.embed.width**-0.5),
        ),
    }
    parent = ettin.ettin("", 2, 128, 2, 192, lr=3e-3, decay=3e-4)
    parent = dataclasses.replace(parent, corruption=None, objective=LM())
    return record_with(config, parent, core, heads, HEADS[architecture])


def lines(config: Config, architecture: str) -> tuple[Line, ...]:
    names = ("q_proj", "k_proj", "v_proj", "Wo")
    layer = f"{modernbert.ROOT}layers.{{i}}.attn."
    return (
        *modernbert.encoder_lines(),
        *table.attention("encoder/stack/block/attention", layer, names),
        *table.vocabulary("lm_head.dense", "lm_head.norm", "decoder.bias", "decoder.weight"),
        *modernbert.task_lines(("classify/summary",)),
        Line("heads_classify/classes", "classifier", "dense"),
    )


def config(system: System) -> dict[str, Any]:
    """Returns the fields of a config.json."""
    core, heads = system.towers["main"].encoder, system.towers["main"].heads
    if core.direction != "causal":
        raise UserError("a decoder of ModernBERT reads from left to right")
    fields = modernbert.encoder_fields(core)
    fields |= {"local_attention": fields["local_attention"] + 2}
    fields |= {"tie_word_embeddings": tied(heads, "lm")}
    for name, head in heads.items():
        part = head if name == "lm" else head.summary.transform
        fields["classifier_activation"] = PUBLISHED[part.activation]
        fields["classifier_bias"] = part.dense_bias if name == "lm" else part.bias
        if name == "lm":
            fields["decoder_bias"] = head.bias
    return fields | task_fields(heads)


families.add(
    Family(
        model_type="modernbert-decoder",
        build=build,
        lines=lines,
        config=config,
        root=modernbert.ROOT,
        heads=HEADS,
        ties={"decoder.weight": f"{modernbert.ROOT}embeddings.tok_embeddings.weight"},
    )
)
