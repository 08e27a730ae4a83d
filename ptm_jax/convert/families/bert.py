"""BERT and models in its format.
SpanBERT, MiniLM, TinyBERT, UniLM, SciBERT, BioBERT, Chinese wwm, StructBERT, InfoWord."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ptm_jax.convert import table
from ptm_jax.convert.config import ACTIVATIONS, PUBLISHED, Config
from ptm_jax.convert.family import Family, classes, families
from ptm_jax.convert.records import mlm_head, record_with, task_fields, task_heads, tied, vocab_of
from ptm_jax.convert.table import Line
from ptm_jax.core.spec import override
from ptm_jax.core.system import System
from ptm_jax.encoders.transformer.transformer import Transformer, transformer
from ptm_jax.nn.attention.multihead import CrossAttention, OptionalCrossAttention
from ptm_jax.nn.blocks import Block
from ptm_jax.nn.embeddings.summed import LearnedPositions
from ptm_jax.nn.heads.pooling import Summary
from ptm_jax.nn.heads.vocabulary import Classifier, Pooler
from ptm_jax.nn.initializers import TruncatedNormal
from ptm_jax.systems.transformers.bert_gpt import bert

if TYPE_CHECKING:
    from ptm_jax.core.slots import Objective


SHARED = {
    "Model": ("pool",),
    "ForPreTraining": ("mlm", "pool", "nsp"),
    "ForNextSentencePrediction": ("pool", "nsp"),
}
"""The classes of pre-training in all families with BERT's classes."""

ATTENTION = ("self.query", "self.key", "self.value", "output.dense")
REST = ("attention.output.LayerNorm", "intermediate.dense", "output.dense", "output.LayerNorm")
"""Published parts of a layer."""


def encoder(config: Config) -> Transformer:
    """Returns the encoder of a BERT config; related families replace slots of it."""
    eps, init = (
        config("layer_norm_eps", float, 1e-12),
        TruncatedNormal(config("initializer_range", float, 0.02)),
    )
    causal = config("is_decoder", bool, False)
    if not causal:
        config.refuse(
            "add_cross_attention", False, "cross-attention is for a decoder; set is_decoder"
        )
    config.refuse("position_embedding_type", "absolute", "relative keys of BERT are not supported")
    core = transformer(
        vocab=vocab_of(config, pad=None),
        layers=config.count("num_hidden_layers"),
        width=config.positive("hidden_size"),
        heads=config.positive("num_attention_heads"),
        hidden=config.positive("intermediate_size"),
        positions=LearnedPositions(config.positive("max_position_embeddings"), initializer=init),
        types=config.positive("type_vocab_size", 2),
        eps=eps,
        activation=config.one_of("hidden_act", ACTIVATIONS, "gelu"),
        dropout=config("hidden_dropout_prob", float, 0.1),
        attention_dropout=config("attention_probs_dropout_prob", float, 0.1),
        direction="causal" if causal else "bidirectional",
        initializer=init,
    )
    return crossed(core) if config("add_cross_attention", bool, False) else core


def crossed(core: Transformer) -> Transformer:
    """Returns a decoder with attention to other states in each layer, where it has them."""
    block = core.stack.block
    cross = OptionalCrossAttention(block.attention, block.norm, block.dropout, block.attention_norm)
    return override(core, {"stack.block.cross": cross})


def record(
    config: Config,
    parent: System,
    core: Transformer,
    names: tuple[str, ...],
    dropout: float | None = None,
    *,
    objective: Objective | None = None,
) -> System:
    """Returns the parent's record with an encoder and the named heads.
    `dropout` is for task heads (None: the config's)."""
    init = core.embed.initializer
    mlm, pair = (
        mlm_head(config, core, activation=core.stack.block.ffn.activation),
        Classifier(2, initializer=init),
    )
    heads = {"mlm": mlm, "lm": mlm, "pool": Pooler(initializer=init), "nsp": pair, "sop": pair}
    heads |= task_heads(config, Summary(initializer=init), init, dropout)
    return record_with(config, parent, core, heads, names, objective=objective)


def build(config: Config, architecture: str) -> System:
    return record(config, bert("", 2, 128, 2), encoder(config), BERT.heads[architecture])


def encoder_lines(root: str) -> tuple[Line, ...]:
    """Returns the lines of the embeddings and layers under BERT's names."""
    ours, layer = "encoder/stack/block", f"{root}encoder.layer.{{i}}."
    return (
        Line("encoder/embed/token", f"{root}embeddings.word_embeddings.weight"),
        Line("encoder/embed/position/table", f"{root}embeddings.position_embeddings.weight"),
        Line("encoder/embed/type", f"{root}embeddings.token_type_embeddings.weight"),
        Line("encoder/embed/norm", f"{root}embeddings.LayerNorm", "norm"),
        *table.attention(f"{ours}/attention", f"{layer}attention.", ATTENTION),
        *table.attention(f"{ours}/cross/attention", f"{layer}crossattention.", ATTENTION),
        Line(f"{ours}/cross/attention_norm", f"{layer}crossattention.output.LayerNorm", "norm"),
        *table.block(ours, layer, REST),
    )


def lines(config: Config, architecture: str, root: str = "bert.") -> tuple[Line, ...]:
    """Returns the lines of BERT's classes, the bare model under `root`.
    An untied head has its own bias."""
    head, bias = (
        "cls.predictions.",
        "bias" if config("tie_word_embeddings", bool, True) else "decoder.bias",
    )
    return (
        *encoder_lines(root),
        *table.vocabulary(
            f"{head}transform.dense",
            f"{head}transform.LayerNorm",
            head + bias,
            f"{head}decoder.weight",
        ),
        Line("heads_pool/dense", f"{root}pooler.dense", "dense"),
        *(Line(f"heads_{pair}/dense", "cls.seq_relationship", "dense") for pair in ("nsp", "sop")),
        *table.tasks("classifier", f"{root}pooler.dense"),
    )


def crossing(block: Block) -> dict[str, bool]:
    """Returns the field of a config for a block with attention to other states."""
    return {"add_cross_attention": True} if isinstance(block.cross, CrossAttention) else {}


def config(system: System) -> dict[str, Any]:
    core, heads = system.towers["main"].encoder, system.towers["main"].heads
    embed, block, vocab = core.embed, core.stack.block, core.embed.vocab
    return {
        "vocab_size": vocab.size,
        "pad_token_id": vocab.pad,
        "hidden_size": block.attention.width,
        "num_hidden_layers": core.stack.layers,
        "num_attention_heads": block.attention.heads,
        "intermediate_size": block.ffn.hidden,
        "hidden_act": PUBLISHED[block.ffn.activation],
        "hidden_dropout_prob": block.dropout,
        "attention_probs_dropout_prob": block.attention.dropout,
        "max_position_embeddings": embed.position.size
        if isinstance(embed.position, LearnedPositions)
        else 512,
        "type_vocab_size": embed.types,
        "layer_norm_eps": block.attention_norm.eps,
        "initializer_range": embed.initializer.std,
        "is_decoder": core.direction == "causal",
        "tie_word_embeddings": tied(heads, "mlm", "lm"),
        **crossing(block),
    } | task_fields(heads)


def family(
    model_type: str, prefix: str, root: str, more: Mapping[str, tuple[str, ...]], **rules: Any
) -> Family:
    """Returns a family with BERT's classes and names, which `more` classes and `rules` add to."""
    bias, other = "cls.predictions.bias", "cls.predictions.decoder.bias"
    ties = {
        "cls.predictions.decoder.weight": f"{root}embeddings.word_embeddings.weight",
        other: bias,
    }
    # Before Transformers 5 an untied head also had only one bias, under the first name.
    rules = {"ties": ties, "fill": {bias: (other,), other: (bias,)}, **rules}
    return Family(
        model_type=model_type, root=root, heads=classes(prefix, {**SHARED, **more}), **rules
    )


BERT = family(
    "bert", "Bert", "bert.", {"LMHeadModel": ("lm",)}, build=build, lines=lines, config=config
)
families.add(BERT)
