"""XLNet (Yang et al. 2019): two streams, relative positions and types, a memory; with `attn_type` "uni", a left-to-right
model.

With `bi_data` Transformers reads the second half of a batch from right to left; here `backward` [B] sets the direction of
each row. `untie_r` concerns only the initialisation: in Transformers' checkpoints every layer has its own u and v.
"""

from __future__ import annotations

from typing import Any

from ptm_jax.convert.config import ACTIVATIONS, PUBLISHED, Config
from ptm_jax.convert.families.xlm import answer_head, answer_lines, head_fields, renamed, summary_of
from ptm_jax.convert.family import Family, families
from ptm_jax.convert.records import PROBLEMS, adopted, objective_of, special_ids, tied
from ptm_jax.convert.table import Line
from ptm_jax.core.system import System
from ptm_jax.core.types import Vocab
from ptm_jax.encoders.model import Model
from ptm_jax.encoders.xlnet import XLNetEncoder
from ptm_jax.nn.attention.directed import DirectedScores
from ptm_jax.nn.embeddings.summed import Embeddings
from ptm_jax.nn.heads.tasks import ChoiceHead, SequenceHead, SpanHead, TokenHead
from ptm_jax.nn.heads.vocabulary import LMHead
from ptm_jax.nn.initializers import Normal
from ptm_jax.objectives.language import LM, PLM
from ptm_jax.systems.xl import recurrent, xlnet

HEADS = {
    "XLNetModel": (),
    "XLNetLMHeadModel": ("lm",),
    "XLNetForSequenceClassification": ("classify",),
    "XLNetForTokenClassification": ("tag",),
    "XLNetForMultipleChoice": ("choose",),
    "XLNetForQuestionAnsweringSimple": ("span",),
    "XLNetForQuestionAnswering": ("answer",),
}


def _todays(config: Config) -> Config:
    return renamed(
        config, n_token="vocab_size", hidden_size="d_model", num_hidden_layers="n_layer", num_attention_heads="n_head"
    )


def vocab_of(config: Config) -> Vocab:
    """Returns the size and special ids of a config. The ids of a tokenizer override them."""
    specials = {"pad": 5, "bos": 1, "eos": 2}
    named = {name: config(f"{name}_token_id", int, default) for name, default in specials.items()}
    return Vocab(size=config.positive("vocab_size", 32000), **named)


def encoder(config: Config) -> XLNetEncoder:
    """Returns the encoder of an XLNet config."""
    init, rate = Normal(config("initializer_range", float, 0.02)), config("dropout", float, 0.1)
    width, heads = config.positive("d_model", 1024), config.positive("n_head", 16)
    config.refuse("d_head", width // heads, "heads of another width are not supported")
    direction = config.one_of("attn_type", {"bi": "bidirectional", "uni": "causal"}, "bi")
    if direction == "causal":
        config.refuse("same_length", False, "every token seeing equally many is not supported")
    clamp = config("clamp_len", int, -1)
    stack = recurrent(
        config.positive("n_layer", 24), width, heads, config.positive("d_inner", 4096),
        dropout=rate, attention_dropout=rate, inner=rate,
        activation=config.one_of("ff_activation", ACTIVATIONS, "gelu"), eps=config("layer_norm_eps", float, 1e-12),
        scores=DirectedScores, segments=True, initializer=init, clamp=clamp if clamp > 0 else None,
    )  # fmt: skip
    memory = config("mem_len", int, None if "mem_len" in config else 512)
    return XLNetEncoder(
        embed=Embeddings(vocab=vocab_of(config), width=width, dropout=rate, initializer=init),
        stack=stack,
        memory=memory or 0,
        direction=direction,
        query=init,
        dropout=rate,
        reuse=config("reuse_len", int, None) or 1.0,
        alone=True,
    )


def heads_of(config: Config, init: Any) -> dict[str, Any]:
    """Returns all heads of XLNet's classes."""
    config.refuse("summary_proj_to_labels", False, "the classifier would be given classes in the place of states")
    summary = summary_of(config, init, "last", "tanh")
    last, vocab = config("summary_last_dropout", float, 0.1), vocab_of(config)
    return {
        "lm": LMHead(vocab=vocab, bias=True, tied=config("tie_word_embeddings", bool, True), initializer=init),
        "classify": SequenceHead(config.labels, summary, dropout=last, initializer=init),
        "choose": ChoiceHead(config.positive("num_choices", 2), summary, dropout=last, initializer=init),
        "tag": TokenHead(config.labels, initializer=init),
        "span": SpanHead(initializer=init),
        "answer": answer_head(config, init),
    }


def build(config: Config, architecture: str) -> System:
    config = _todays(config)
    core = encoder(config)
    heads = heads_of(config, core.query)
    chosen = {name: heads[name] for name in HEADS[architecture]}
    objective = objective_of(chosen, kind=PROBLEMS.get(config("problem_type", str, "")))
    if isinstance(objective, LM) and core.direction == "bidirectional":
        objective = PLM()
    return adopted(xlnet("", 2, 128, 2), Model(encoder=core, heads=chosen), objective)


def lines(config: Config, architecture: str) -> tuple[Line, ...]:
    block, layer = "encoder/stack/block/block", "transformer.layer.{i}"
    attention = f"{layer}.rel_attn"
    inner = {"query": "q", "key": "k", "value": "v", "relative/position": "r"}
    return (
        Line("encoder/embed/token", "transformer.word_embedding.weight"),
        Line("encoder/query", "transformer.mask_emb", shape=(1, 1, -1)),
        *(Line(f"{block}/attention/{ours}/kernel", f"{attention}.{theirs}") for ours, theirs in inner.items()),
        Line(f"{block}/attention/out/kernel", f"{attention}.o", axes=(1, 2, 0)),
        Line(f"{block}/attention/relative/u", f"{attention}.r_w_bias"),
        Line(f"{block}/attention/relative/v", f"{attention}.r_r_bias"),
        Line(f"{block}/attention/relative/type_bias", f"{attention}.r_s_bias"),
        Line(f"{block}/attention/relative/type", f"{attention}.seg_embed"),
        Line(f"{block}/attention_norm", f"{attention}.layer_norm", "norm"),
        Line(f"{block}/ffn/up", f"{layer}.ff.layer_1", "dense"),
        Line(f"{block}/ffn/down", f"{layer}.ff.layer_2", "dense"),
        Line(f"{block}/ffn_norm", f"{layer}.ff.layer_norm", "norm"),
        Line("heads_lm/bias", "lm_loss.bias"),
        Line("heads_lm/table", "lm_loss.weight"),
        Line("heads_classify/summary/dense", "sequence_summary.summary", "dense"),
        Line("heads_classify/classes", "logits_proj", "dense"),
        Line("heads_choose/summary/dense", "sequence_summary.summary", "dense"),
        Line("heads_choose/score", "logits_proj", "dense"),
        Line("heads_tag/classes", "classifier", "dense"),
        Line("heads_span/ends", "qa_outputs", "dense"),
        *answer_lines(""),
    )


def config(system: System) -> dict[str, Any]:
    core, heads = system.towers["main"].encoder, system.towers["main"].heads
    block, vocab = core.stack.block.block, core.embed.vocab
    fields = special_ids(vocab, "pad", "bos", "eos") | head_fields(heads)
    return fields | {
        "vocab_size": vocab.size,
        "d_model": block.attention.width,
        "n_layer": core.stack.layers,
        "n_head": block.attention.heads,
        "d_inner": block.ffn.hidden,
        "ff_activation": PUBLISHED[block.ffn.activation],
        "attn_type": {"bidirectional": "bi", "causal": "uni"}[core.direction],
        "initializer_range": core.embed.initializer.std,
        "layer_norm_eps": block.attention_norm.eps,
        "dropout": block.dropout,
        "mem_len": core.memory or None,
        "reuse_len": core.reuse if isinstance(core.reuse, int) else None,
        "clamp_len": block.attention.relative.clamp or -1,
        "tie_word_embeddings": tied(heads, "lm"),
    }


TIES = {"lm_loss.weight": "transformer.word_embedding.weight"}

families.add(
    Family(model_type="xlnet", build=build, lines=lines, config=config, root="transformer.", heads=HEADS, ties=TIES)
)
