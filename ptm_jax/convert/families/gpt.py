"""GPT, GPT-2 (DialoGPT, DistilGPT2, Megatron's in that format) and CTRL: causal decoders."""

from __future__ import annotations

from typing import Any

from ptm_jax.convert import table
from ptm_jax.convert.config import ACTIVATIONS, PUBLISHED, Config
from ptm_jax.convert.families.bert import crossed, crossing
from ptm_jax.convert.family import Family, classes, families
from ptm_jax.convert.records import record_with, special_ids, task_fields, tied
from ptm_jax.convert.table import Line
from ptm_jax.core.spec import override, values_of
from ptm_jax.core.system import System
from ptm_jax.core.types import Vocab
from ptm_jax.encoders.transformer.transformer import Transformer, transformer
from ptm_jax.nn.attention.depth import InverseDepth, NumberedStack
from ptm_jax.nn.embeddings.summed import LearnedPositions, Sinusoids
from ptm_jax.nn.heads.pooling import Summary
from ptm_jax.nn.heads.task_heads import ChoiceHead, SequenceHead, SpanHead, TokenHead
from ptm_jax.nn.heads.vocabulary import LMHead
from ptm_jax.nn.initializers import Normal
from ptm_jax.systems.transformers.bert_gpt import gpt, gpt2
from ptm_jax.systems.transformers.ctrl import ctrl

DOUBLE, TEXTS = (
    {"LMHeadModel": ("lm",), "DoubleHeadsModel": ("lm", "choose")},
    ("ForSequenceClassification",),
)
GPT_HEADS = classes("OpenAIGPT", DOUBLE, TEXTS)
GPT2_HEADS = classes("GPT2", DOUBLE, (*TEXTS, "ForTokenClassification", "ForQuestionAnswering"))
CTRL_HEADS = classes("CTRL", {"LMHeadModel": ("lm",)}, TEXTS)

KV = ("key", "value")
AFN = {"gelu": "gelu_tanh", "relu": "relu", "silu": "silu", "swish": "silu"}
"""GPT's activation names: its "gelu" is the tanh form."""


def _vocab(config: Config) -> Vocab:
    size = config.positive("vocab_size")
    ids = {name: config(f"{name}_token_id", int, None) for name in ("pad", "bos", "eos")}
    # A small model may keep the default id of its class. An id outside the table means that the
    # token does not exist.
    return Vocab(
        size=size, **{name: i for name, i in ids.items() if i is not None and 0 <= i < size}
    )


def _record(
    config: Config, parent: System, core: Transformer, names: tuple[str, ...], lm_bias: bool = False
) -> System:
    """Returns the record of a causal model. Sequence-level heads read the last token directly."""
    init, tied = core.stack.block.attention.initializer, config("tie_word_embeddings", bool, True)
    if "choose" in names:
        reason = (
            "the multiple choice head is one layer on the last token; other summaries are not "
            "supported"
        )
        fields = {
            "summary_type": "cls_index",
            "summary_use_proj": True,
            "summary_proj_to_labels": True,
        }
        for name, value in {**fields, "summary_activation": ""}.items():
            config.refuse(name, value, reason)
    last, dropout = (
        Summary("none", at="last", initializer=init),
        config("summary_first_dropout", float, 0.1),
    )
    head_fields = {} if tied else {"vocab": core.embed.vocab, "tied": False, "initializer": init}
    heads = {
        "lm": LMHead(bias=lm_bias, **head_fields),
        "choose": ChoiceHead(
            config.positive("num_choices", 2), last, dropout=dropout, initializer=init
        ),
        "classify": SequenceHead(config.labels, last, bias=False, initializer=init),
        "tag": TokenHead(
            config.labels, dropout=config("classifier_dropout", float, 0.1), initializer=init
        ),
        "span": SpanHead(initializer=init),
    }
    return record_with(config, parent, core, heads, names)


def _decoder(config: Config, **words: Any) -> Transformer:
    """Returns a causal Transformer with a separate embedding dropout."""
    init = Normal(config("initializer_range", float, 0.02))
    if "positions" not in words:
        words["positions"] = LearnedPositions(config.positive("n_positions"), initializer=init)
    core = transformer(
        vocab=_vocab(config),
        layers=config.count("n_layer"),
        width=config.positive("n_embd"),
        heads=config.positive("n_head"),
        dropout=config("resid_pdrop", float, 0.1),
        embed_norm=False,
        direction="causal",
        initializer=init,
        **{
            "attention_dropout": config("attn_pdrop", float, 0.1),
            "eps": config("layer_norm_epsilon", float, 1e-5),
            **words,
        },
    )
    return override(core, {"embed.dropout": config("embd_pdrop", float, 0.1)})


def build_gpt(config: Config, architecture: str) -> System:
    core = _decoder(config, activation=config.one_of("afn", AFN, "gelu"))
    return _record(config, gpt(""), core, GPT_HEADS[architecture])


def build_gpt2(config: Config, architecture: str) -> System:
    std, layers = config("initializer_range", float, 0.02), config.count("n_layer")
    by_depth = config("scale_attn_by_inverse_layer_idx", bool, False)
    if by_depth:
        config.refuse(
            "add_cross_attention",
            False,
            "cross-attention that is scaled by the layer's number is not supported",
        )
    core = _decoder(
        config,
        hidden=config.positive("n_inner", None),
        norm="pre",
        activation=config.one_of("activation_function", ACTIVATIONS, "gelu_new"),
        final_norm=True,
        out_init=Normal(std / (2 * layers) ** 0.5),
    )
    if not config("scale_attn_weights", bool, True):
        core = override(core, {"stack.block.attention.scale": 1.0})
    if config("add_cross_attention", bool, False):
        core = crossed(core)
    if by_depth:
        stack = override(core.stack, {"block.attention.relative": InverseDepth()})
        core = override(core, {"stack": NumberedStack(**values_of(stack))})
    return _record(config, gpt2("", 2, 128, 2), core, GPT2_HEADS[architecture])


def build_ctrl(config: Config, architecture: str) -> System:
    core = _decoder(
        config,
        attention_dropout=0.0,
        hidden=config.positive("dff"),
        positions=Sinusoids(),
        norm="pre",
        eps=1e-6,
        activation="relu",
        final_norm=True,
    )
    last = config("layer_norm_epsilon", float, 1e-6)
    core = override(core, {"stack.final_norm.eps": last, "embed.scale": core.embed.width**0.5})
    return _record(config, ctrl(), core, CTRL_HEADS[architecture], lm_bias=True)


def _conv_lines(token: str, position: str) -> tuple[Line, ...]:
    """Returns the lines of GPT and GPT-2.
    Query, key and value are one Conv1D. GPT has no last norm."""
    block, layer = "encoder/stack/block", "transformer.h.{i}."
    return (
        Line("encoder/embed/token", f"transformer.{token}.weight"),
        Line("encoder/embed/position/table", f"transformer.{position}.weight"),
        *table.joined(f"{block}/attention", f"{layer}attn.c_attn", "conv1d"),
        Line(f"{block}/attention/out", f"{layer}attn.c_proj", "conv1d", ins=2),
        *table.block(block, layer, ("ln_1", "mlp.c_fc", "mlp.c_proj", "ln_2"), "conv1d"),
        Line("encoder/stack/final_norm", "transformer.ln_f", "norm"),
        Line("heads_lm/table", "lm_head.weight"),
        *table.tasks("score", score="multiple_choice_head.summary"),
    )


def lines_gpt(config: Config, architecture: str) -> tuple[Line, ...]:
    return _conv_lines("tokens_embed", "positions_embed")


def lines_gpt2(config: Config, architecture: str) -> tuple[Line, ...]:
    cross, layer = "encoder/stack/block/cross", "transformer.h.{i}."
    return (
        *_conv_lines("wte", "wpe"),
        Line(f"{cross}/attention/query", f"{layer}crossattention.q_attn", "conv1d"),
        *(
            Line(f"{cross}/attention/{n}", f"{layer}crossattention.c_attn", "conv1d", part=(i, 2))
            for i, n in enumerate(KV)
        ),
        Line(f"{cross}/attention/out", f"{layer}crossattention.c_proj", "conv1d", ins=2),
        Line(f"{cross}/attention_norm", f"{layer}ln_cross_attn", "norm"),
    )


def lines_ctrl(config: Config, architecture: str) -> tuple[Line, ...]:
    block, layer = "encoder/stack/block", "transformer.h.{i}."
    return (
        Line("encoder/embed/token", "transformer.w.weight"),
        *table.attention(
            f"{block}/attention", f"{layer}multi_head_attention.", ("Wq", "Wk", "Wv", "dense")
        ),
        *table.block(block, layer, ("layernorm1", "ffn.0", "ffn.2", "layernorm2")),
        Line("encoder/stack/final_norm", "transformer.layernorm", "norm"),
        Line("heads_lm/table", "lm_head.weight"),
        Line("heads_lm/bias", "lm_head.bias"),
        *table.tasks("classifier"),
    )


def _fields(system: System) -> dict[str, Any]:
    """Returns the fields that the three families share."""
    core, heads = system.towers["main"].encoder, system.towers["main"].heads
    vocab, block = core.embed.vocab, core.stack.block
    return {
        "vocab_size": vocab.size,
        **special_ids(vocab, "pad", "bos", "eos"),
        "n_embd": block.attention.width,
        "n_layer": core.stack.layers,
        "n_head": block.attention.heads,
        "resid_pdrop": block.dropout,
        "embd_pdrop": core.embed.dropout,
        "initializer_range": core.embed.initializer.std,
        "tie_word_embeddings": tied(heads, "lm"),
        "summary_first_dropout": heads["choose"].dropout if "choose" in heads else 0.1,
    } | {
        name: value
        for name, value in task_fields(heads).items()
        if name != "classifier_dropout" or "tag" in heads
    }


def config_gpt(system: System) -> dict[str, Any]:
    core = system.towers["main"].encoder
    block = core.stack.block
    return _fields(system) | {
        "n_positions": core.embed.position.size,
        "attn_pdrop": block.attention.dropout,
        "afn": {"gelu_tanh": "gelu"}.get(block.ffn.activation, block.ffn.activation),
        "layer_norm_epsilon": block.attention_norm.eps,
    }


def config_gpt2(system: System) -> dict[str, Any]:
    block = system.towers["main"].encoder.stack.block
    fields = config_gpt(system)
    del fields["afn"]
    return fields | {
        "n_inner": block.ffn.hidden,
        "activation_function": PUBLISHED[block.ffn.activation],
        "scale_attn_weights": block.attention.scale is None,
        **crossing(block),
        "scale_attn_by_inverse_layer_idx": isinstance(block.attention.relative, InverseDepth),
    }


def config_ctrl(system: System) -> dict[str, Any]:
    stack = system.towers["main"].encoder.stack
    return _fields(system) | {
        "dff": stack.block.ffn.hidden,
        "layer_norm_epsilon": stack.final_norm.eps,
        "n_positions": 256,
    }


BUFFERS = (
    r"(^|\.)(attn|crossattention)\.(bias|masked_bias)$",
    r"(^|\.)position_ids$",
    r"(^|\.)pos_encoding$",
)
"""Buffers in old files: causal masks and position tables."""

families.add(
    Family(
        model_type="openai-gpt", build=build_gpt, lines=lines_gpt, config=config_gpt,
        root="transformer.",
        heads=GPT_HEADS, ties={"lm_head.weight": "transformer.tokens_embed.weight"}, ignore=BUFFERS,
        fill={"transformer.tokens_embed.weight": ("lm_head.weight",)},
    ),
    Family(
        model_type="gpt2", build=build_gpt2, lines=lines_gpt2, config=config_gpt2,
        root="transformer.",
        heads=GPT2_HEADS, ties={"lm_head.weight": "transformer.wte.weight"}, ignore=BUFFERS,
    ),
    Family(
        model_type="ctrl", build=build_ctrl, lines=lines_ctrl, config=config_ctrl,
        root="transformer.",
        heads=CTRL_HEADS, ties={"lm_head.weight": "transformer.w.weight"}, ignore=BUFFERS,
    ),
)  # fmt: skip
