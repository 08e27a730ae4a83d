"""XLNet (Yang et al. 2019): two streams, relative positions and types, a memory.
With `attn_type` "uni" it is a left-to-right model.

With `bi_data` Transformers reads the second half of a batch from right to left. Such a config is
refused; here `backward` [B] in a batch sets the direction of each row. `untie_r` concerns only the
initialisation: in Transformers' checkpoints every layer has its own u and v.
"""

from __future__ import annotations

from typing import Any

from ptm_jax.convert import table
from ptm_jax.convert.config import ACTIVATIONS, PUBLISHED, Config
from ptm_jax.convert.families.xlm import (
    ANSWERS,
    TEXTS,
    answer_head,
    answer_lines,
    head_fields,
    summary_of,
)
from ptm_jax.convert.family import Family, classes, families
from ptm_jax.convert.records import record_with, special_ids, task_heads, tied, vocab_of
from ptm_jax.convert.table import Line
from ptm_jax.core.system import System
from ptm_jax.encoders.transformer.xlnet import XLNetEncoder
from ptm_jax.nn.attention.directed import DirectedScores
from ptm_jax.nn.embeddings.summed import Embeddings
from ptm_jax.nn.heads.task_heads import TokenHead
from ptm_jax.nn.heads.vocabulary import LMHead
from ptm_jax.nn.initializers import Normal
from ptm_jax.objectives.text.language import PLM
from ptm_jax.systems.transformers.transformer_xl import recurrent, xlnet

HEADS = classes("XLNet", {"LMHeadModel": ("lm",), **ANSWERS}, TEXTS)


def encoder(config: Config) -> XLNetEncoder:
    """Returns the encoder of an XLNet config."""
    init, rate = Normal(config("initializer_range", float, 0.02)), config("dropout", float, 0.1)
    width, heads = config.positive("d_model", 1024), config.positive("n_head", 16)
    head_width = config.positive("d_head", width // heads)
    direction = config.one_of("attn_type", {"bi": "bidirectional", "uni": "causal"}, "bi")
    clamp, same = config("clamp_len", int, -1), config("same_length", bool, False)
    stack = recurrent(
        config.count("n_layer", 24), width, heads, config.positive("d_inner", 4096),
        dropout=rate, attention_dropout=rate, inner=rate,
        activation=config.one_of("ff_activation", ACTIVATIONS, "gelu"),
        eps=config("layer_norm_eps", float, 1e-12),
        scores=DirectedScores, segments=True, initializer=init, clamp=clamp if clamp > 0 else None,
        head_width=None if heads * head_width == width else head_width,
    )  # fmt: skip
    memory = config.memory("mem_len", None if "mem_len" in config else 512)
    return XLNetEncoder(
        embed=Embeddings(
            vocab=vocab_of(config, 32000, pad=5, bos=1, eos=2),
            width=width,
            dropout=rate,
            initializer=init,
        ),
        stack=stack,
        memory=memory or 0,
        direction=direction,
        query=init,
        dropout=rate,
        reuse=config("reuse_len", int, None) or 1.0,
        alone=True,
        same_length=same and direction == "causal",
    )


def build(config: Config, architecture: str) -> System:
    config = config.renamed(
        n_token="vocab_size",
        hidden_size="d_model",
        num_hidden_layers="n_layer",
        num_attention_heads="n_head",
    )
    backward = (
        "half of a batch read from the right is not supported; set it to false and give "
        "`backward` [B] in a batch"
    )
    config.refuse("bi_data", False, backward)
    config.refuse(
        "summary_proj_to_labels",
        False,
        "the classifier would be given classes in the place of states",
    )
    core, names, tied = (
        encoder(config),
        HEADS[architecture],
        config("tie_word_embeddings", bool, True),
    )
    init, last = core.query, config("summary_last_dropout", float, 0.1)
    heads = task_heads(config, summary_of(config, init, "last", "tanh"), init, last) | {
        "lm": LMHead(vocab=core.embed.vocab, bias=True, tied=tied, initializer=init),
        "tag": TokenHead(config.labels, initializer=init),
        "answer": answer_head(config, init),
    }
    objective = PLM() if "lm" in names and core.direction == "bidirectional" else None
    return record_with(config, xlnet("", 2, 128, 2), core, heads, names, objective=objective)


def lines(config: Config, architecture: str) -> tuple[Line, ...]:
    block, attention = "encoder/stack/block/block", "transformer.layer.{i}.rel_attn"
    inner = {"query": "q", "key": "k", "value": "v", "relative/position": "r"}
    return (
        Line("encoder/embed/token", "transformer.word_embedding.weight"),
        Line("encoder/query", "transformer.mask_emb", shape=(1, 1, -1)),
        *(
            Line(f"{block}/attention/{ours}/kernel", f"{attention}.{theirs}")
            for ours, theirs in inner.items()
        ),
        Line(f"{block}/attention/out/kernel", f"{attention}.o", axes=(1, 2, 0)),
        Line(f"{block}/attention/relative/u", f"{attention}.r_w_bias"),
        Line(f"{block}/attention/relative/v", f"{attention}.r_r_bias"),
        Line(f"{block}/attention/relative/type_bias", f"{attention}.r_s_bias"),
        Line(f"{block}/attention/relative/type", f"{attention}.seg_embed"),
        *table.block(
            block,
            "transformer.layer.{i}.",
            ("rel_attn.layer_norm", "ff.layer_1", "ff.layer_2", "ff.layer_norm"),
        ),
        Line("heads_lm/bias", "lm_loss.bias"),
        Line("heads_lm/table", "lm_loss.weight"),
        *table.tasks("logits_proj", "sequence_summary.summary"),
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
        "d_head": block.attention.each[1],
        "d_inner": block.ffn.hidden,
        "ff_activation": PUBLISHED[block.ffn.activation],
        "attn_type": {"bidirectional": "bi", "causal": "uni"}[core.direction],
        "same_length": core.same_length,
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
    Family(
        model_type="xlnet",
        build=build,
        lines=lines,
        config=config,
        root="transformer.",
        heads=HEADS,
        ties=TIES,
    )
)
