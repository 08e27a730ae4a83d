"""GPT, GPT-2 (DialoGPT, DistilGPT2, Megatron's in that format) and CTRL: causal decoders."""

from __future__ import annotations

import dataclasses
from typing import Any

from ptm_jax.convert.config import ACTIVATIONS, PUBLISHED, Config
from ptm_jax.convert.family import Family, families
from ptm_jax.convert.records import adopted, objective_of, special_ids, task_fields, tied
from ptm_jax.convert.table import Line, attention
from ptm_jax.core.spec import respell
from ptm_jax.core.system import System
from ptm_jax.core.types import Vocab
from ptm_jax.encoders.model import Model
from ptm_jax.encoders.transformer import transformer
from ptm_jax.nn.attention.multihead import Attention
from ptm_jax.nn.embeddings.summed import Embeddings, LearnedPositions, Sinusoids
from ptm_jax.nn.heads.tasks import ChoiceHead, SequenceHead, SpanHead, Summary, TokenHead
from ptm_jax.nn.heads.vocabulary import LMHead
from ptm_jax.nn.initializers import Normal
from ptm_jax.systems.ctrl import ctrl
from ptm_jax.systems.transformers import gpt, gpt2

GPT_HEADS = {
    "OpenAIGPTModel": (),
    "OpenAIGPTLMHeadModel": ("lm",),
    "OpenAIGPTDoubleHeadsModel": ("lm", "choose"),
    "OpenAIGPTForSequenceClassification": ("classify",),
}
GPT2_HEADS = {
    "GPT2Model": (),
    "GPT2LMHeadModel": ("lm",),
    "GPT2DoubleHeadsModel": ("lm", "choose"),
    "GPT2ForSequenceClassification": ("classify",),
    "GPT2ForTokenClassification": ("tag",),
    "GPT2ForQuestionAnswering": ("span",),
}
CTRL_HEADS = {"CTRLModel": (), "CTRLLMHeadModel": ("lm",), "CTRLForSequenceClassification": ("classify",)}

AFN = {"gelu": "gelu_tanh", "relu": "relu", "silu": "silu", "swish": "silu"}
"""GPT's activation names: its "gelu" is the tanh form."""


def _vocab(config: Config) -> Vocab:
    size = config.positive("vocab_size")
    ids = {name: config(f"{name}_token_id", int, None) for name in ("pad", "bos", "eos")}
    # A small model may keep the default id of its class. An id outside the table means that the token does not exist.
    return Vocab(size=size, **{name: i for name, i in ids.items() if i is not None and 0 <= i < size})


def _heads(config: Config, init: Normal, dropout: float, lm_bias: bool = False) -> dict[str, Any]:
    """Returns the heads of a causal model. Sequence-level heads read the last token directly."""
    last = Summary("none", at="last", initializer=init)
    vocab, tied = _vocab(config), config("tie_word_embeddings", bool, True)
    lm = LMHead(bias=lm_bias) if tied else LMHead(vocab=vocab, bias=lm_bias, tied=False, initializer=init)
    return {
        "lm": lm,
        "choose": ChoiceHead(config.positive("num_choices", 2), last, dropout=dropout, initializer=init),
        "classify": SequenceHead(config.labels, last, bias=False, initializer=init),
        "tag": TokenHead(config.labels, dropout=config("classifier_dropout", float, 0.1), initializer=init),
        "span": SpanHead(initializer=init),
    }


def _decoder(config: Config, init: Normal, dropout: float, **words: Any):
    """Returns a causal Transformer with a separate embedding dropout."""
    decoder = transformer(
        vocab=_vocab(config),
        layers=config.positive("n_layer"),
        width=config.positive("n_embd"),
        heads=config.positive("n_head"),
        dropout=dropout,
        embed_norm=False,
        direction="causal",
        initializer=init,
        **words,
    )
    kept = config("embd_pdrop", float, 0.1)
    return respell(decoder, Embeddings, lambda embed: dataclasses.replace(embed, dropout=kept))


def _system(parent: System, core: Any, heads: dict[str, Any], names: tuple[str, ...]) -> System:
    chosen = {name: heads[name] for name in names}
    return adopted(parent, Model(encoder=core, heads=chosen), objective_of(chosen))


def _summary(config: Config) -> None:
    """Raises UserError for a multiple choice head with an unsupported summary."""
    reason = "the multiple choice head is one layer on the last token; other summaries are not supported"
    for name, value in (("summary_type", "cls_index"), ("summary_use_proj", True), ("summary_proj_to_labels", True)):
        config.refuse(name, value, reason)
    config.refuse("summary_activation", "", reason)


def build_gpt(config: Config, architecture: str) -> System:
    init = Normal(config("initializer_range", float, 0.02))
    if "choose" in GPT_HEADS[architecture]:
        _summary(config)
    core = _decoder(
        config,
        init,
        config("resid_pdrop", float, 0.1),
        attention_dropout=config("attn_pdrop", float, 0.1),
        positions=LearnedPositions(config.positive("n_positions"), initializer=init),
        eps=config("layer_norm_epsilon", float, 1e-5),
        activation=config.one_of("afn", AFN, "gelu"),
    )
    heads = _heads(config, init, config("summary_first_dropout", float, 0.1))
    return _system(gpt(""), core, heads, GPT_HEADS[architecture])


def build_gpt2(config: Config, architecture: str) -> System:
    std, layers = config("initializer_range", float, 0.02), config.positive("n_layer")
    if "choose" in GPT2_HEADS[architecture]:
        _summary(config)
    config.refuse("add_cross_attention", False, "a GPT-2 with cross-attention is half of an encoder-decoder; not supported")
    config.refuse("scale_attn_by_inverse_layer_idx", False, "layers of one stack share the scale of their scores")
    core = _decoder(
        config,
        Normal(std),
        config("resid_pdrop", float, 0.1),
        attention_dropout=config("attn_pdrop", float, 0.1),
        hidden=config.positive("n_inner", None),
        positions=LearnedPositions(config.positive("n_positions"), initializer=Normal(std)),
        norm="pre",
        eps=config("layer_norm_epsilon", float, 1e-5),
        activation=config.one_of("activation_function", ACTIVATIONS, "gelu_new"),
        final_norm=True,
        out_init=Normal(std / (2 * layers) ** 0.5),
    )
    if not config("scale_attn_weights", bool, True):
        core = respell(core, Attention, lambda layer: dataclasses.replace(layer, scale=1.0))
    heads = _heads(config, Normal(std), config("summary_first_dropout", float, 0.1))
    return _system(gpt2("", 2, 128, 2), core, heads, GPT2_HEADS[architecture])


def build_ctrl(config: Config, architecture: str) -> System:
    init, width = Normal(config("initializer_range", float, 0.02)), config.positive("n_embd")
    core = _decoder(
        config,
        init,
        config("resid_pdrop", float, 0.1),
        attention_dropout=0.0,
        hidden=config.positive("dff"),
        positions=Sinusoids(),
        norm="pre",
        eps=1e-6,
        activation="relu",
        final_norm=True,
    )
    stack = core.stack
    final = dataclasses.replace(stack.final_norm, eps=config("layer_norm_epsilon", float, 1e-6))
    core = dataclasses.replace(core, stack=dataclasses.replace(stack, final_norm=final))
    core = respell(core, Embeddings, lambda embed: dataclasses.replace(embed, scale=width**0.5))
    return _system(ctrl(), core, _heads(config, init, 0.0, lm_bias=True), CTRL_HEADS[architecture])


def _conv_lines(token: str, position: str, final: tuple[Line, ...]) -> tuple[Line, ...]:
    """Returns the lines of GPT and GPT-2. Query, key and value are one Conv1D."""
    block, layer = "encoder/stack/block", "transformer.h.{i}"
    joined = f"{layer}.attn.c_attn"
    parts = tuple(
        Line(f"{block}/attention/{name}", joined, "conv1d", part=(number, 3))
        for number, name in enumerate(("query", "key", "value"))
    )
    return (
        Line("encoder/embed/token", f"transformer.{token}.weight"),
        Line("encoder/embed/position/table", f"transformer.{position}.weight"),
        *parts,
        Line(f"{block}/attention/out", f"{layer}.attn.c_proj", "conv1d", ins=2),
        Line(f"{block}/attention_norm", f"{layer}.ln_1", "norm"),
        Line(f"{block}/ffn/up", f"{layer}.mlp.c_fc", "conv1d"),
        Line(f"{block}/ffn/down", f"{layer}.mlp.c_proj", "conv1d"),
        Line(f"{block}/ffn_norm", f"{layer}.ln_2", "norm"),
        *final,
        Line("heads_lm/table", "lm_head.weight"),
        Line("heads_choose/score", "multiple_choice_head.summary", "dense"),
        Line("heads_classify/classes", "score", "dense"),
        Line("heads_tag/classes", "classifier", "dense"),
        Line("heads_span/ends", "qa_outputs", "dense"),
    )


def lines_gpt(config: Config, architecture: str) -> tuple[Line, ...]:
    return _conv_lines("tokens_embed", "positions_embed", ())


def lines_gpt2(config: Config, architecture: str) -> tuple[Line, ...]:
    return _conv_lines("wte", "wpe", (Line("encoder/stack/final_norm", "transformer.ln_f", "norm"),))


def lines_ctrl(config: Config, architecture: str) -> tuple[Line, ...]:
    block, layer = "encoder/stack/block", "transformer.h.{i}"
    parts = tuple(f"{layer}.multi_head_attention.{name}" for name in ("Wq", "Wk", "Wv", "dense"))
    return (
        Line("encoder/embed/token", "transformer.w.weight"),
        *attention(f"{block}/attention", parts),
        Line(f"{block}/attention_norm", f"{layer}.layernorm1", "norm"),
        Line(f"{block}/ffn/up", f"{layer}.ffn.0", "dense"),
        Line(f"{block}/ffn/down", f"{layer}.ffn.2", "dense"),
        Line(f"{block}/ffn_norm", f"{layer}.layernorm2", "norm"),
        Line("encoder/stack/final_norm", "transformer.layernorm", "norm"),
        Line("heads_lm/table", "lm_head.weight"),
        Line("heads_lm/bias", "lm_head.bias"),
        Line("heads_classify/classes", "classifier", "dense"),
    )


def _fields(system: System) -> dict[str, Any]:
    """Returns the fields that the three families share."""
    core, heads = system.towers["main"].encoder, system.towers["main"].heads
    vocab, block = core.embed.vocab, core.stack.block
    ids = special_ids(vocab, "pad", "bos", "eos")
    return {
        "vocab_size": vocab.size,
        **ids,
        "n_embd": block.attention.width,
        "n_layer": core.stack.layers,
        "n_head": block.attention.heads,
        "resid_pdrop": block.dropout,
        "embd_pdrop": core.embed.dropout,
        "initializer_range": core.embed.initializer.std,
        "tie_word_embeddings": tied(heads, "lm"),
        "summary_first_dropout": heads["choose"].dropout if "choose" in heads else 0.1,
    } | {name: value for name, value in task_fields(heads).items() if name != "classifier_dropout" or "tag" in heads}


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
    core = system.towers["main"].encoder
    block = core.stack.block
    return _fields(system) | {
        "n_positions": core.embed.position.size,
        "n_inner": block.ffn.hidden,
        "attn_pdrop": block.attention.dropout,
        "activation_function": PUBLISHED[block.ffn.activation],
        "layer_norm_epsilon": block.attention_norm.eps,
        "scale_attn_weights": block.attention.scale is None,
    }


def config_ctrl(system: System) -> dict[str, Any]:
    stack = system.towers["main"].encoder.stack
    return _fields(system) | {"dff": stack.block.ffn.hidden, "layer_norm_epsilon": stack.final_norm.eps, "n_positions": 256}


BUFFERS = (r"(^|\.)attn\.(bias|masked_bias)$", r"(^|\.)position_ids$", r"(^|\.)pos_encoding$")
"""Buffers in old files: causal masks and position tables."""

families.add(
    Family(
        model_type="openai-gpt", build=build_gpt, lines=lines_gpt, config=config_gpt, root="transformer.",
        heads=GPT_HEADS, ties={"lm_head.weight": "transformer.tokens_embed.weight"}, ignore=BUFFERS,
        fill={"transformer.tokens_embed.weight": ("lm_head.weight",)},
    ),
    Family(
        model_type="gpt2", build=build_gpt2, lines=lines_gpt2, config=config_gpt2, root="transformer.",
        heads=GPT2_HEADS, ties={"lm_head.weight": "transformer.wte.weight"}, ignore=BUFFERS,
    ),
    Family(
        model_type="ctrl", build=build_ctrl, lines=lines_ctrl, config=config_ctrl, root="transformer.",
        heads=CTRL_HEADS, ties={"lm_head.weight": "transformer.w.weight"}, ignore=BUFFERS,
    ),
)  # fmt: skip
