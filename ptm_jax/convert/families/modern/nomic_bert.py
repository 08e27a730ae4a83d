"""NomicBERT (Nussbaum et al. 2024): BERT's heads on post-norm layers with rotary positions, under
names that GTE and Jina's embeddings share."""

from __future__ import annotations

from typing import Any

from ptm_jax.convert import table
from ptm_jax.convert.config import ACTIVATIONS, PUBLISHED, Config
from ptm_jax.convert.families.modern import angles
from ptm_jax.convert.family import Family, classes, families
from ptm_jax.convert.records import (
    mlm_head,
    record_with,
    special_ids,
    task_fields,
    task_heads,
    tied,
    vocab_of,
)
from ptm_jax.convert.table import Line
from ptm_jax.core.spec import override
from ptm_jax.core.system import System
from ptm_jax.encoders.transformer.transformer import Transformer
from ptm_jax.nn.heads.pooling import Summary
from ptm_jax.nn.heads.vocabulary import Pooler
from ptm_jax.nn.initializers import Normal
from ptm_jax.systems.transformers.modern import nomicbert

ROOT = "nomic_bert."
TASKS = ("ForMaskedLM", "ForSequenceClassification", "ForTokenClassification")
HEADS = classes("NomicBert", {"Model": ("pool",)}, TASKS)
LAYERS = ("q_proj", "k_proj", "v_proj", "o_proj")
THETA = 1000.0
BLOCK = "encoder/stack/block"


def encoder(
    config: Config, default: float, types: int, act: str, **fields: bool | str
) -> Transformer:
    """Returns the encoder of a config with BERT's fields.

    `default`, `types` and `act` are the defaults of theta, of the number of sentence types and of
    the activation; `fields` are other fields of `nomicbert.encoder`.
    """
    heads, width = config.positive("num_attention_heads"), config.positive("hidden_size")
    count = config("type_vocab_size", int, types)
    core = nomicbert.encoder(
        **{
            "vocab": vocab_of(config, pad=None, bos=None, eos=None),
            "layers": config.count("num_hidden_layers"),
            "width": width,
            "heads": heads,
            "hidden": config.positive("intermediate_size"),
            "limit": config.positive("max_position_embeddings"),
            "theta": angles.theta(config, default),
            "types": count and config.positive("type_vocab_size", types),
            "eps": config("layer_norm_eps", float, 1e-12),
            "activation": config.one_of("hidden_act", ACTIVATIONS, act),
            "dropout": config("hidden_dropout_prob", float, 0.0),
            "attention_dropout": config("attention_probs_dropout_prob", float, 0.0),
            "initializer": Normal(config("initializer_range", float, 0.02)),
            **fields,
        }
    )
    each = config.positive("head_dim", None)
    return override(
        core, {"stack.block.attention.head_width": None if each == width / heads else each}
    )


def build(config: Config, architecture: str) -> System:
    core = encoder(config, THETA, types=2, act="silu")
    init, rate = core.embed.initializer, config("hidden_dropout_prob", float, 0.0)
    activation = core.stack.block.ffn.activation
    heads = task_heads(
        config, Summary(initializer=init), init, config("classifier_dropout", float, rate)
    )
    heads |= {
        "mlm": mlm_head(config, core, activation=activation),
        "pool": Pooler(initializer=init),
    }
    parent = nomicbert.nomicbert("", 2, 128, 2, 256)
    return record_with(config, parent, core, heads, HEADS[architecture])


def embedding_lines(root: str, norm: str) -> tuple[Line, ...]:
    """Returns the lines of the embeddings and the pooler."""
    return (
        Line("encoder/embed/token", f"{root}embeddings.word_embeddings.weight"),
        Line("encoder/embed/type", f"{root}embeddings.token_type_embeddings.weight"),
        Line("encoder/embed/norm", root + norm, "norm"),
        Line("heads_pool/dense", f"{root}pooler.dense", "dense"),
    )


def inner_lines(root: str, up: str, gate: str, down: str) -> tuple[Line, ...]:
    """Returns the lines of the encoder under the names in memory: `up` is activated."""
    layer = f"{root}layers.{{i}}."
    parts = {"up": up, "gate": gate, "down": down}
    return (
        *embedding_lines(root, "embeddings.LayerNorm"),
        *table.attention(f"{BLOCK}/attention", f"{layer}self_attn.", LAYERS),
        *(Line(f"{BLOCK}/ffn/{a}", f"{layer}mlp.{b}", "dense") for a, b in parts.items()),
        Line(f"{BLOCK}/attention_norm", f"{layer}post_attention_layernorm", "norm"),
        Line(f"{BLOCK}/ffn_norm", f"{layer}post_mlp_layernorm", "norm"),
    )


def head_lines(config: Config) -> tuple[Line, ...]:
    """Returns the lines of the heads."""
    head = "cls.predictions."
    bias = "bias" if config("tie_word_embeddings", bool, True) else "decoder.bias"
    return (
        *table.vocabulary(
            f"{head}transform.dense",
            f"{head}transform.layer_norm",
            head + bias,
            f"{head}decoder.weight",
        ),
        *table.tasks("classifier", f"{ROOT}pooler.dense"),
    )


def inner(config: Config, architecture: str) -> tuple[Line, ...]:
    """Returns the rename table of the names in memory."""
    return (*inner_lines(ROOT, "gate_proj", "up_proj", "down_proj"), *head_lines(config))


def lines(config: Config, architecture: str) -> tuple[Line, ...]:
    layer = f"{ROOT}encoder.layers.{{i}}."
    parts = {"up": "fc12", "gate": "fc11", "down": "fc2"}
    return (
        *embedding_lines(ROOT, "emb_ln"),
        *table.joined(f"{BLOCK}/attention", f"{layer}attn.Wqkv", "dense"),
        Line(f"{BLOCK}/attention/out", f"{layer}attn.out_proj", "dense", ins=2),
        *(Line(f"{BLOCK}/ffn/{a}", f"{layer}mlp.{b}", "dense") for a, b in parts.items()),
        Line(f"{BLOCK}/attention_norm", f"{layer}norm1", "norm"),
        Line(f"{BLOCK}/ffn_norm", f"{layer}norm2", "norm"),
        *head_lines(config),
    )


def encoder_fields(core: Transformer) -> dict[str, Any]:
    """Returns the fields of a config.json that `encoder` reads."""
    embed, block = core.embed, core.stack.block
    attention = block.attention
    return {
        "vocab_size": embed.vocab.size,
        **special_ids(embed.vocab, "pad", "bos", "eos"),
        "hidden_size": attention.width,
        "num_hidden_layers": core.stack.layers,
        "num_attention_heads": attention.heads,
        "intermediate_size": block.ffn.hidden,
        "hidden_act": PUBLISHED[block.ffn.activation],
        "hidden_dropout_prob": block.dropout,
        "attention_probs_dropout_prob": attention.dropout,
        "max_position_embeddings": embed.position.limit,
        "type_vocab_size": embed.types,
        "layer_norm_eps": block.ffn_norm.eps,
        "initializer_range": embed.initializer.std,
        "rope_parameters": angles.angles(attention.rotary.theta),
    }


def config(system: System) -> dict[str, Any]:
    core, heads = system.towers["main"].encoder, system.towers["main"].heads
    return {
        **encoder_fields(core),
        "head_dim": core.stack.block.attention.each[1],
        "tie_word_embeddings": tied(heads, "mlm"),
    } | task_fields(heads)


families.add(
    Family(
        model_type="nomic_bert",
        build=build,
        lines=lines,
        inner=inner,
        config=config,
        root=ROOT,
        renames=((r"^bert\.", ROOT),),
        heads=HEADS,
        ties={
            "cls.predictions.decoder.weight": f"{ROOT}embeddings.word_embeddings.weight",
            "cls.predictions.decoder.bias": "cls.predictions.bias",
        },
        fill={
            "cls.predictions.bias": ("cls.predictions.decoder.bias",),
            "cls.predictions.decoder.bias": ("cls.predictions.bias",),
        },
    )
)
