"""Transformer-XL (Dai et al. 2019): adaptive input and softmax, relative positions, and a memory
initialised with zeros that tokens attend to. Transformers contains it up to 4.35.

Transformers treats left padding as words, also in the memory; here padding is masked. `init`,
`init_range` and `proj_init_std` concern only the initialisation. `adaptive` and
`trainer_compatible` do not affect the computation. Dropout of the sinusoids is omitted
(`systems.transformers.transformer_xl`).
"""

from __future__ import annotations

import dataclasses
from typing import Any

from ptm_jax.convert import table
from ptm_jax.convert.config import Config
from ptm_jax.convert.family import Family, classes, families
from ptm_jax.convert.records import label_fields, record_with, vocab_of
from ptm_jax.convert.table import Line
from ptm_jax.core.errors import UserError
from ptm_jax.core.reading import shown
from ptm_jax.core.system import System
from ptm_jax.core.types import Vocab
from ptm_jax.encoders.transformer.xl import TransformerXL
from ptm_jax.nn.attention.relative import ShiftedScores
from ptm_jax.nn.embeddings.adaptive import AdaptiveEmbeddings, AdaptiveHead, clusters
from ptm_jax.nn.heads.pooling import Summary
from ptm_jax.nn.heads.task_heads import SequenceHead
from ptm_jax.nn.initializers import Normal
from ptm_jax.systems.transformers.transformer_xl import CUTOFFS, Training, of_words, recurrent

HEADS = classes("TransfoXL", {"LMHeadModel": ("lm",)}, ("ForSequenceClassification",))
SHARED = "relative/[uv]$"
MOST = 96
"""Maximum number of layers and clusters with known published duplicates."""


def _vocab(config: Config) -> Vocab:
    return vocab_of(config, 267_735, pad=None, eos=0)


def _cut(config: Config) -> dict[str, Any]:
    """Returns the cluster settings of a config: `cutoffs`, `divide` and the width of the tables."""
    cutoffs = config.numbers("cutoffs", CUTOFFS)
    clusters(_vocab(config), cutoffs)
    width, table = config.positive("d_model", 1024), config.positive("d_embed", 1024)
    divide = config.positive("div_val", 4)
    return {"cutoffs": cutoffs, "divide": divide, "table_width": None if table == width else table}


def _projections(config: Config) -> str:
    """Returns which projections the head shares with the embeddings: "none", "tail" or "all"."""
    count = len(config.numbers("cutoffs", CUTOFFS))
    tail = config("proj_share_all_but_first", bool, True)
    flags = config("tie_projs", list, [False] + [tail] * count)
    flags = [*map(bool, flags), *[False] * (count + 1 - len(flags))]
    kinds = {
        "none": [False] * (count + 1),
        "tail": [False] + [True] * count,
        "all": [True] * (count + 1),
    }
    kind = next((name for name, ties in kinds.items() if ties == flags), None)
    if kind is None:
        raise UserError(
            f"{config.file}: tie_projs is {shown(flags)}: supported are none, all, and all "
            "but the first"
        )
    return kind


def encoder(config: Config) -> TransformerXL:
    """Returns the encoder of a Transformer-XL config."""
    config.refuse("attn_type", 0, "the library has no other attention than Transformer-XL's, 0")
    init, rate = Normal(config("init_std", float, 0.02)), config("dropout", float, 0.1)
    width, heads = config.positive("d_model", 1024), config.positive("n_head", 16)
    if width % 2:
        raise UserError(f"{config.file}: d_model is {width}: sinusoids need an even one")
    head_width, clamp = config.positive("d_head", 64), config("clamp_len", int, 1000)
    memory, same = config.memory("mem_len", 1600), config("same_length", bool, True)
    if memory <= 0 and same:
        raise UserError(
            f"{config.file}: same_length with mem_len {memory} hides every token; set "
            "same_length to false"
        )
    stack = recurrent(
        config.count("n_layer", 18), width, heads, config.positive("d_inner", 4096),
        dropout=rate, attention_dropout=config("dropatt", float, 0.0), inner=rate,
        activation="relu",
        eps=config("layer_norm_epsilon", float, 1e-5),
        norm="pre" if config("pre_lnorm", bool, False) else "post",
        scores=ShiftedScores, segments=False, initializer=init, clamp=clamp if clamp > 0 else None,
        head_width=None if heads * head_width == width else head_width,
    )  # fmt: skip
    if not config("untie_r", bool, True):
        stack = dataclasses.replace(stack, shared=SHARED)
    vocab, cut = _vocab(config), _cut(config)
    embed = AdaptiveEmbeddings(
        vocab=vocab, width=width, scale=width**0.5, dropout=rate, initializer=init, **cut
    )
    return TransformerXL(
        embed=embed, stack=stack, memory=max(memory, 0), dropout=rate, zeros=True, same_length=same
    )


def _classifier(config: Config, init: Normal) -> SequenceHead:
    width = config.positive("d_model", 1024)
    config.refuse("d_embed", width, f"the classifier reads states, which are {width} wide")
    return SequenceHead(
        config.labels, Summary("none", at="last", initializer=init), bias=False, initializer=init
    )


def _lm(config: Config, init: Normal) -> AdaptiveHead:
    config.refuse(
        "sample_softmax", -1, "sampled softmax is not supported, nor was it by the library"
    )
    config.refuse(
        "tie_weight", True, "say tie_word_embeddings: the library does not read tie_weight"
    )
    tied = config("tie_word_embeddings", bool, True)
    kinds = {
        "tied": tied,
        "parts": "all" if tied else "tables",
        "projections": _projections(config),
        "initializer": init,
    }
    return AdaptiveHead(vocab=_vocab(config), **_cut(config), **kinds)


def build(config: Config, architecture: str) -> System:
    core, makers = encoder(config), {"lm": _lm, "classify": _classifier}
    heads = {name: makers[name](config, core.embed.initializer) for name in HEADS[architecture]}
    parent = of_words("", 2, 128, 2, 512, divide=1, training=Training(length=64, batch=16, steps=1))
    return record_with(config, parent, core, heads, heads)


def lines(config: Config, architecture: str) -> tuple[Line, ...]:
    block, layer = "encoder/stack/block/block", "transformer.layers.{i}."
    attention = f"{layer}dec_attn"
    of_scores = attention if config("untie_r", bool, True) else "transformer"
    return (
        *table.joined(f"{block}/attention", f"{attention}.qkv_net", "dense"),
        Line(f"{block}/attention/out", f"{attention}.o_net", "dense", ins=2),
        Line(f"{block}/attention/relative/position", f"{attention}.r_net", "dense"),
        Line(f"{block}/attention/relative/u", f"{of_scores}.r_w_bias"),
        Line(f"{block}/attention/relative/v", f"{of_scores}.r_r_bias"),
        *table.block(
            block,
            layer,
            ("dec_attn.layer_norm", "pos_ff.CoreNet.0", "pos_ff.CoreNet.3", "pos_ff.layer_norm"),
        ),
        Line("heads_lm/clusters", "crit.cluster_weight"),
        Line("heads_lm/clusters_bias", "crit.cluster_bias"),
        *table.tasks("score"),
        *_cluster_lines(config),
    )


def _cluster_lines(config: Config) -> tuple[Line, ...]:
    """Returns the lines of tables, biases and projections.
    Clusters of equal width share one published table."""
    vocab, cut, table = _vocab(config), _cut(config), []
    for i, (first, _) in enumerate(clusters(vocab, cut["cutoffs"])):
        at, rows = (0, (first, vocab.size)) if cut["divide"] == 1 else (i, None)
        table += [
            Line(
                f"encoder/embed/token{i}", f"transformer.word_emb.emb_layers.{at}.weight", rows=rows
            ),
            Line(f"encoder/embed/project{i}", f"transformer.word_emb.emb_projs.{i}", axes=(1, 0)),
            Line(f"heads_lm/token{i}", f"crit.out_layers.{at}.weight", rows=rows),
            Line(f"heads_lm/bias{i}", f"crit.out_layers.{at}.bias", rows=rows),
            Line(f"heads_lm/project{i}", f"crit.out_projs.{i}"),
        ]
    return tuple(table)


def config(system: System) -> dict[str, Any]:
    core, heads = system.towers["main"].encoder, system.towers["main"].heads
    embed, block, vocab = core.embed, core.stack.block.block, core.embed.vocab
    attention, fields = block.attention, {}
    if "classify" in heads:
        fields |= label_fields(heads["classify"].classes)
    if "lm" in heads:
        head, count = heads["lm"], len(embed.cutoffs)
        tail = head.projections != "none"
        fields |= {"tie_word_embeddings": head.tied, "proj_share_all_but_first": tail}
        fields |= {"tie_projs": [head.projections == "all"] + [tail] * count}
    return fields | {
        "vocab_size": vocab.size,
        "pad_token_id": vocab.pad,
        "eos_token_id": vocab.eos,
        "cutoffs": list(embed.cutoffs),
        "div_val": embed.divide,
        "d_model": embed.width,
        "d_embed": embed.table_width or embed.width,
        "n_layer": core.stack.layers,
        "n_head": attention.heads,
        "d_head": attention.head_width or attention.width // attention.heads,
        "d_inner": block.ffn.hidden,
        "pre_lnorm": block.norm == "pre",
        "untie_r": core.stack.shared is None,
        "mem_len": core.memory,
        "same_length": core.same_length,
        "clamp_len": attention.relative.clamp or -1,
        "layer_norm_epsilon": block.attention_norm.eps,
        "dropout": block.dropout,
        "dropatt": attention.dropout,
        "init_std": embed.initializer.std,
    }


PAIRS = {name: f"transformer.layers.{{}}.dec_attn.{name}" for name in ("r_w_bias", "r_r_bias")}
"""The biases u and v. If layers share them, a file repeats them under the name of each layer."""

TIES = {
    every.format(i): f"transformer.{name}" for name, every in PAIRS.items() for i in range(MOST)
}
TIES |= {
    f"crit.out_layers.{i}.weight": f"transformer.word_emb.emb_layers.{i}.weight"
    for i in range(MOST)
}
TIES |= {f"crit.out_projs.{i}": f"transformer.word_emb.emb_projs.{i}" for i in range(MOST)}

families.add(
    Family(
        model_type="transfo-xl",
        build=build,
        lines=lines,
        config=config,
        root="transformer.",
        heads=HEADS,
        ties=TIES,
        ignore=(r"(^|\.)pos_emb\.inv_freq$",),
        fill={
            f"transformer.{name}": tuple(every.format(i) for i in range(MOST))
            for name, every in PAIRS.items()
        },
    )
)
