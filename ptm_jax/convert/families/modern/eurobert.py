"""EuroBERT (Boizard et al. 2025): Llama's names and fields of an encoder."""

from __future__ import annotations

from typing import Any

from ptm_jax.convert import table
from ptm_jax.convert.config import ACTIVATIONS, PUBLISHED, Config
from ptm_jax.convert.families.modern import angles
from ptm_jax.convert.family import Family, classes, families
from ptm_jax.convert.records import record_with, special_ids, task_fields, tied, vocab_of
from ptm_jax.convert.table import Line
from ptm_jax.core.spec import override
from ptm_jax.core.system import System
from ptm_jax.core.types import Vocab
from ptm_jax.encoders.transformer.transformer import Transformer
from ptm_jax.nn.attention.rotary import LocalLayers, Rotary
from ptm_jax.nn.heads.pooling import Summary
from ptm_jax.nn.heads.task_heads import SequenceHead, TokenHead
from ptm_jax.nn.heads.transformed import TransformedMean
from ptm_jax.nn.heads.vocabulary import LMHead
from ptm_jax.nn.initializers import Normal
from ptm_jax.systems.transformers.modern import eurobert

ROOT = "model."
MASK = 128_002
TASKS = ("ForMaskedLM", "ForSequenceClassification", "ForTokenClassification")
HEADS = classes("EuroBert", {}, TASKS)
POOLING = {
    "late": TransformedMean("gelu", at="mean"),
    "bos": Summary("gelu"),
    "mean": Summary("gelu", at="mean"),
}
LAYERS = ("q_proj", "k_proj", "v_proj", "o_proj")


def encoder(
    config: Config, vocab: Vocab, rotary: Rotary, eps: float, local: LocalLayers | None = None
) -> Transformer:
    """Returns the encoder of a config with Llama's fields. `eps` is the default."""
    heads, width = config.positive("num_attention_heads"), config.positive("hidden_size")
    core = eurobert.encoder(
        vocab=vocab,
        layers=config.count("num_hidden_layers"),
        width=width,
        heads=heads,
        hidden=config.positive("intermediate_size"),
        limit=config.positive("max_position_embeddings"),
        rotary=rotary,
        local=local,
        eps=config("rms_norm_eps", float, eps),
        activation=config.one_of("hidden_act", ACTIVATIONS, "silu"),
        initializer=Normal(config("initializer_range", float, 0.02)),
    )
    each, shared = config.positive("head_dim", None), config.positive("num_key_value_heads", None)
    fields = {
        "head_width": None if each == width / heads else each,
        "key_heads": None if shared == heads else shared,
        "bias": config("attention_bias", bool, False),
        "dropout": config("attention_dropout", float, 0.0),
    }
    changes = {f"stack.block.attention.{name}": value for name, value in fields.items()}
    return override(core, changes | {"stack.block.ffn.bias": config("mlp_bias", bool, False)})


def build(config: Config, architecture: str) -> System:
    mask = config("mask_token_id", int, MASK)
    # A small model may keep the default id of its class, which its table lacks.
    more = {"mask": mask} if mask < config.positive("vocab_size") else {}
    vocab = vocab_of(config, pad=128_001, bos=128_000, eos=128_001, **more)
    core = encoder(config, vocab, Rotary(theta=angles.theta(config, 10_000.0)), 1e-5)
    init, is_tied = core.embed.initializer, config("tie_word_embeddings", bool, False)
    bias = core.stack.block.ffn.bias
    summary = config.one_of("classifier_pooling", POOLING, "late")
    heads = {
        "mlm": LMHead(vocab=core.embed.vocab, bias=bias, tied=is_tied, initializer=init),
        "classify": SequenceHead(config.labels, override(summary, {"initializer": init})),
        "tag": TokenHead(config.labels, initializer=init),
    }
    parent = eurobert.eurobert("", 2, 128, 2, 256)
    return record_with(config, parent, core, heads, HEADS[architecture])


def encoder_lines(root: str) -> tuple[Line, ...]:
    """Returns the lines of the embeddings and layers under Llama's names."""
    block, layer = "encoder/stack/block", f"{root}layers.{{i}}."
    parts = {"up": "gate_proj", "gate": "up_proj", "down": "down_proj"}
    return (
        Line("encoder/embed/token", f"{root}embed_tokens.weight"),
        *table.attention(f"{block}/attention", f"{layer}self_attn.", LAYERS),
        *(Line(f"{block}/ffn/{a}", f"{layer}mlp.{b}", "dense") for a, b in parts.items()),
        Line(f"{block}/attention_norm", f"{layer}input_layernorm", "norm"),
        Line(f"{block}/ffn_norm", f"{layer}post_attention_layernorm", "norm"),
        Line("encoder/stack/final_norm", f"{root}norm", "norm"),
    )


def lines(config: Config, architecture: str) -> tuple[Line, ...]:
    return (
        *encoder_lines(ROOT),
        Line("heads_mlm/table", "lm_head.weight"),
        Line("heads_mlm/bias", "lm_head.bias"),
        *table.tasks("classifier", "dense"),
    )


def encoder_fields(core: Transformer) -> dict[str, Any]:
    """Returns Llama's fields of a config.json, without the angles."""
    embed, block = core.embed, core.stack.block
    attention, ffn = block.attention, block.ffn
    return {
        "vocab_size": embed.vocab.size,
        "hidden_size": attention.width,
        "num_hidden_layers": core.stack.layers,
        "num_attention_heads": attention.heads,
        "num_key_value_heads": attention.each_key[0],
        "head_dim": attention.each[1],
        "intermediate_size": ffn.hidden,
        "hidden_act": PUBLISHED[ffn.activation],
        "max_position_embeddings": embed.position.limit,
        "rms_norm_eps": core.stack.final_norm.eps,
        "attention_bias": attention.bias,
        "attention_dropout": attention.dropout,
        "mlp_bias": ffn.bias,
        "initializer_range": embed.initializer.std,
    }


def end_ids(vocab: Vocab) -> dict[str, int | None]:
    """Returns the ids that begin and end a text: a decoder's, or in their absence BERT's."""
    bos, eos = (
        vocab.id(first) if vocab.id(name) is None else vocab.id(name)
        for name, first in (("bos", "cls"), ("eos", "sep"))
    )
    return {"bos_token_id": bos, "eos_token_id": eos}


def config(system: System) -> dict[str, Any]:
    core, heads = system.towers["main"].encoder, system.towers["main"].heads
    vocab = core.embed.vocab
    fields = encoder_fields(core) | {
        **special_ids(vocab, "pad"),
        "mask_token_id": MASK if vocab.mask is None else vocab.mask,
        **end_ids(vocab),
        "rope_parameters": angles.angles(core.stack.block.attention.rotary.theta),
        "tie_word_embeddings": tied(heads, "mlm"),
    }
    if "classify" in heads:
        summary = heads["classify"].summary
        names = {(type(one), one.at): name for name, one in POOLING.items()}
        fields["classifier_pooling"] = names[type(summary), summary.at]
    return fields | {
        name: value for name, value in task_fields(heads).items() if name != "classifier_dropout"
    }


families.add(
    Family(
        model_type="eurobert",
        build=build,
        lines=lines,
        config=config,
        root=ROOT,
        heads=HEADS,
        ties={"lm_head.weight": f"{ROOT}embed_tokens.weight"},
    )
)
