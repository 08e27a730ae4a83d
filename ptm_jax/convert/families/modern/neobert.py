"""NeoBERT (Le Breton et al. 2025): the classes of its released code, which Transformers lacks."""

from __future__ import annotations

from typing import Any

from ptm_jax.convert import table
from ptm_jax.convert.config import Config
from ptm_jax.convert.family import Family, families
from ptm_jax.convert.records import record_with, task_fields, vocab_of
from ptm_jax.convert.table import Line
from ptm_jax.core.errors import UserError
from ptm_jax.core.system import System
from ptm_jax.nn.heads.pooling import Summary
from ptm_jax.nn.heads.task_heads import SequenceHead
from ptm_jax.nn.heads.vocabulary import LMHead
from ptm_jax.nn.initializers import Uniform
from ptm_jax.systems.transformers.modern import eurobert, neobert

ROOT = "model."
HEADS = {
    "NeoBERT": (),
    "NeoBERTLMHead": ("mlm",),
    "NeoBERTForSequenceClassification": ("classify",),
}
HIDDEN_ACT = {"SwiGLU": "silu", "swiglu": "silu"}
ALONE = {"rms_norm": True, "rope": True, "ngpt": False}
"""Fields of which one value is supported."""


def build(config: Config, architecture: str) -> System:
    """Returns the record of a checkpoint. A text's head reads the first token."""
    for name, value in ALONE.items():
        config.refuse(name, value, f"supported is {value}")
    init = Uniform(config("embedding_init_range", float, 0.02))
    rate = config("classifier_dropout", float, 0.1)
    core = eurobert.encoder(
        vocab=vocab_of(config, pad=0),
        layers=config.count("num_hidden_layers"),
        width=config.positive("hidden_size"),
        heads=config.positive("num_attention_heads"),
        hidden=neobert.inner_width(config.positive("intermediate_size")),
        limit=config.positive("max_length", 1024),
        rotary=neobert.ROTARY,
        eps=config("norm_eps", float, 1e-6),
        activation=config.one_of("hidden_act", HIDDEN_ACT, "SwiGLU"),
        initializer=init,
    )
    summary = Summary("tanh", dropout=rate, initializer=init)
    heads = {
        "mlm": LMHead(vocab=core.embed.vocab, bias=True, tied=False, initializer=init),
        "classify": SequenceHead(config.labels, summary, dropout=rate, initializer=init),
    }
    parent = neobert.neobert("", 2, 128, 2, 256)
    return record_with(config, parent, core, heads, HEADS[architecture])


def lines(config: Config, architecture: str) -> tuple[Line, ...]:
    """Returns the rename table. Each head's query, key and value stand together."""
    block, layer = "encoder/stack/block", f"{ROOT}transformer_encoder.{{i}}."
    heads, attention = config.positive("num_attention_heads"), f"{block}/attention"
    joined = enumerate(table.QKV)
    halves = enumerate(("up", "gate"))
    return (
        Line("encoder/embed/token", f"{ROOT}encoder.weight"),
        *(
            Line(f"{attention}/{name}", f"{layer}qkv", "dense", part=(i, 3), groups=heads)
            for i, name in joined
        ),
        Line(f"{attention}/out", f"{layer}wo", "dense", ins=2),
        *(
            Line(f"{block}/ffn/{name}", f"{layer}ffn.w12", "dense", part=(i, 2))
            for i, name in halves
        ),
        Line(f"{block}/ffn/down", f"{layer}ffn.w3", "dense"),
        Line(f"{block}/attention_norm", f"{layer}attention_norm", "norm"),
        Line(f"{block}/ffn_norm", f"{layer}ffn_norm", "norm"),
        Line("encoder/stack/final_norm", f"{ROOT}layer_norm", "norm"),
        Line("heads_mlm/table", "decoder.weight"),
        Line("heads_mlm/bias", "decoder.bias"),
        *table.tasks("classifier", "dense"),
    )


def config(system: System) -> dict[str, Any]:
    """Returns the fields of a config.json. Raises UserError for another number of features."""
    core, heads = system.towers["main"].encoder, system.towers["main"].heads
    embed, block = core.embed, core.stack.block
    attention, hidden = block.attention, block.ffn.hidden
    if hidden % 8:
        raise UserError(f"NeoBERT's layers have a multiple of 8 features, not {hidden}")
    return {
        "vocab_size": embed.vocab.size,
        "pad_token_id": embed.vocab.pad,
        "hidden_size": attention.width,
        "num_hidden_layers": core.stack.layers,
        "num_attention_heads": attention.heads,
        "intermediate_size": 3 * hidden // 2,
        "hidden_act": "swiglu",
        "max_length": embed.position.limit,
        "norm_eps": core.stack.final_norm.eps,
        "embedding_init_range": embed.initializer.limit,
        "decoder_init_range": embed.initializer.limit,
        **ALONE,
    } | task_fields(heads)


families.add(
    Family(
        model_type="neobert",
        build=build,
        lines=lines,
        config=config,
        root=ROOT,
        heads=HEADS,
        ignore=(r"freqs_cis$",),
    )
)
