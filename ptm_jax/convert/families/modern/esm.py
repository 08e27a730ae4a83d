"""ESM-2 and ESM-1b (Lin et al. 2023, Rives et al. 2021): encoders of proteins.

The regression that predicts contacts from attention maps is neither read nor written: no class of
pre-training or of a task uses it.
"""

from __future__ import annotations

from typing import Any

from ptm_jax.convert import table
from ptm_jax.convert.config import Config
from ptm_jax.convert.families.bert import ATTENTION
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
from ptm_jax.core.errors import UserError
from ptm_jax.core.system import System
from ptm_jax.encoders.transformer.transformer import Transformer
from ptm_jax.nn.embeddings.summed import LearnedPositions, RotaryPositions
from ptm_jax.nn.heads.pooling import Summary
from ptm_jax.nn.heads.vocabulary import Pooler
from ptm_jax.nn.initializers import TruncatedNormal
from ptm_jax.nn.layers import Identity
from ptm_jax.systems.transformers.modern import esm2

ROOT = "esm."
TASKS = "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification"
HEADS = classes("Esm", {}, TASKS) | {"EsmModel": ("pool",)}
NAMES = "LayerNorm", "intermediate.dense", "output.dense"
"""Published norm before the feed-forward layers, and these, of a layer."""
IGNORED = (
    r"(^|\.)position_ids$",
    r"inv_freq$",
    r"position_embeddings\.weight$",
    r"contact_head\.regression\.",
)
"""Buffers, the table of positions that files of rotary models may hold, and the contact head."""


def encoder(config: Config) -> Transformer:
    """Returns the encoder of a config. Raises UserError for a decoder and for ESMFold."""
    config.refuse("is_folding_model", False, "ESMFold is not supported")
    config.refuse("is_decoder", False, "a decoder of this family is not supported")
    size, init = (
        config.positive("max_position_embeddings", 1026),
        TruncatedNormal(config("initializer_range", float, 0.02)),
    )
    vocab = vocab_of(config, pad=1, cls=0, eos=2, mask=None)
    dropped = config("token_dropout", bool, False)
    if dropped and vocab.mask is None:
        raise UserError(f"{config.file}: token_dropout needs mask_token_id")
    kinds = {"rotary": True, "absolute": False}
    theta, positions = None, LearnedPositions(size, offset=vocab.pad + 1, initializer=init)
    if config.one_of("position_embedding_type", kinds, "absolute"):
        theta, positions = config("rope_theta", float, 10_000.0), RotaryPositions(limit=size)
    return esm2.encoder(
        vocab=vocab,
        layers=config.count("num_hidden_layers"),
        width=config.positive("hidden_size"),
        heads=config.positive("num_attention_heads"),
        hidden=config.positive("intermediate_size"),
        positions=positions,
        theta=theta,
        eps=config("layer_norm_eps", float, 1e-12),
        embed_norm=config("emb_layer_norm_before", bool, False),
        token_dropout=dropped,
        dropout=config("hidden_dropout_prob", float, 0.1),
        attention_dropout=config("attention_probs_dropout_prob", float, 0.1),
        initializer=init,
    )


def build(config: Config, architecture: str) -> System:
    core, rate = encoder(config), config("hidden_dropout_prob", float, 0.1)
    init = core.embed.initializer
    heads = {"mlm": mlm_head(config, core), "pool": Pooler(initializer=init)}
    heads |= task_heads(config, Summary(dropout=rate, initializer=init), init, rate)
    parent = esm2.esm2("", 2, 40)
    return record_with(config, parent, core, heads, HEADS[architecture])


def lines(config: Config, architecture: str) -> tuple[Line, ...]:
    block, layer = "encoder/stack/block", f"{ROOT}encoder.layer.{{i}}."
    return (
        Line("encoder/embed/token", f"{ROOT}embeddings.word_embeddings.weight"),
        Line("encoder/embed/position/table", f"{ROOT}embeddings.position_embeddings.weight"),
        Line("encoder/embed/norm", f"{ROOT}embeddings.layer_norm", "norm"),
        *table.attention(f"{block}/attention", f"{layer}attention.", ATTENTION),
        *table.block(block, layer, ("attention.LayerNorm", *NAMES[1:], NAMES[0])),
        Line("encoder/stack/final_norm", f"{ROOT}encoder.emb_layer_norm_after", "norm"),
        *table.vocabulary(
            "lm_head.dense", "lm_head.layer_norm", "lm_head.bias", "lm_head.decoder.weight"
        ),
        Line("heads_pool/dense", f"{ROOT}pooler.dense", "dense"),
        *table.tasks("classifier.out_proj", "classifier.dense"),
    )


def config(system: System) -> dict[str, Any]:
    """Returns the fields of a config.json."""
    core, heads = system.towers["main"].encoder, system.towers["main"].heads
    embed, block, position = core.embed, core.stack.block, core.embed.position
    rotary = block.attention.rotary
    return {
        "vocab_size": embed.vocab.size,
        **special_ids(embed.vocab, "pad", "cls", "eos", "mask"),
        "hidden_size": block.attention.width,
        "num_hidden_layers": core.stack.layers,
        "num_attention_heads": block.attention.heads,
        "intermediate_size": block.ffn.hidden,
        "hidden_dropout_prob": block.dropout,
        "attention_probs_dropout_prob": block.attention.dropout,
        "max_position_embeddings": position.longest if rotary else position.size,
        "position_embedding_type": "rotary" if rotary else "absolute",
        "rope_theta": rotary.theta if rotary else 10_000.0,
        "layer_norm_eps": core.stack.final_norm.eps,
        "initializer_range": embed.initializer.std,
        "emb_layer_norm_before": embed.norm != Identity(),
        "token_dropout": embed.expand != Identity(),
        "is_folding_model": False,
        "tie_word_embeddings": tied(heads, "mlm"),
    } | task_fields(heads)


families.add(
    Family(
        model_type="esm",
        build=build,
        lines=lines,
        config=config,
        root=ROOT,
        heads=HEADS,
        ties={"lm_head.decoder.weight": f"{ROOT}embeddings.word_embeddings.weight"},
        ignore=IGNORED,
    )
)
