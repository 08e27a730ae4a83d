"""UltraBERT: EuroBERT's layers, two of three with a window, and a vocabulary head of two layers."""

from __future__ import annotations

from typing import Any

from ptm_jax.convert import table
from ptm_jax.convert.config import Config
from ptm_jax.convert.families.modern import angles, eurobert
from ptm_jax.convert.family import Family, classes, families
from ptm_jax.convert.records import record_with, special_ids, task_fields, tied, vocab_of
from ptm_jax.convert.table import Line
from ptm_jax.core.system import System
from ptm_jax.nn.attention.rotary import Rotary
from ptm_jax.nn.heads.pooling import Summary
from ptm_jax.nn.heads.task_heads import SequenceHead, SpanHead, TokenHead
from ptm_jax.nn.heads.vocabulary import TwoLayerHead
from ptm_jax.systems.transformers.modern.eurobert import eurobert as parent_of

ROOT, INNER = "ultrabert.", "model."
HEADS = classes("Ultrabert", {}, (*eurobert.TASKS, "ForQuestionAnswering"))
THETAS = {"full_attention": 2_560_000.0, "sliding_attention": 10_000.0}
POOLING = {"cls": "first", "mean": "mean"}


def current(config: Config) -> Config:
    """Returns a config with current fields: old ones list the window and theta of each layer."""
    windows, kinds = config("attention_windows", list, None), config("layer_types", list, None)
    fields: dict[str, Any] = {}
    if windows:
        fields["sliding_window"] = next((one for one in windows if one), 128)
        kinds = kinds or [angles.KINDS[not one] for one in windows]
        fields["layer_types"] = kinds
    if isinstance(config("rope_theta", None, None), list):
        pairs = zip(kinds or (), config("rope_theta", list), strict=False)
        fields["rope_parameters"] = {kind: {"rope_theta": one} for kind, one in pairs}
    others = {name: value for name, value in config.items() if name != "rope_theta"}
    return Config({**others, **fields}, config.file, config.largest, config.parts)


def build(config: Config, architecture: str) -> System:
    config = current(config)
    layers, radius = config.count("num_hidden_layers"), config.positive("sliding_window", 128)
    kinds = [angles.KINDS[(i + 1) % 3 == 0] for i in range(layers)]
    full, near = (angles.theta(config, THETAS[kind], kind) for kind in THETAS)
    core = eurobert.encoder(
        config,
        vocab_of(config, pad=0, bos=0, eos=0),
        Rotary(theta=full, local_theta=near),
        1e-6,
        angles.pattern(config, layers, radius, kinds),
    )
    init = core.embed.initializer
    task = {"dropout": config("classifier_dropout", float, 0.0), "initializer": init}
    summary = Summary("none", at=config.one_of("classifier_pooling", POOLING, "cls"))
    heads = {
        "mlm": TwoLayerHead(
            vocab=core.embed.vocab,
            hidden=config.positive("prediction_head_size", 768),
            tied=config("tie_word_embeddings", bool, False),
            initializer=init,
        ),
        "classify": SequenceHead(config.labels, summary, **task),
        "tag": TokenHead(config.labels, **task),
        "span": SpanHead(initializer=init),
    }
    parent = parent_of("", 2, 128, 2, 256)
    return record_with(config, parent, core, heads, HEADS[architecture])


def _lines(root: str, words: str) -> tuple[Line, ...]:
    return (
        *eurobert.encoder_lines(root),
        Line("heads_mlm/first", "head.linear1", "dense"),
        Line("heads_mlm/second", "head.linear2", "dense"),
        Line("heads_mlm/table", words),
        *table.tasks("classifier"),
    )


def lines(config: Config, architecture: str) -> tuple[Line, ...]:
    return _lines(ROOT, "cls.weight")


def inner(config: Config, architecture: str) -> tuple[Line, ...]:
    """Returns the rename table of the names in memory."""
    return _lines(INNER, "head.decoder.weight")


def config(system: System) -> dict[str, Any]:
    """Returns the fields of a config.json."""
    core, heads = system.towers["main"].encoder, system.towers["main"].heads
    attention = core.stack.block.attention
    rotary, local = attention.rotary, attention.local
    thetas = {"full_attention": rotary.theta, "sliding_attention": rotary.local_theta}
    fields = eurobert.encoder_fields(core) | {
        **special_ids(core.embed.vocab, "pad"),
        **eurobert.end_ids(core.embed.vocab),
        "sliding_window": local.radius,
        "layer_types": angles.types_of(local, core.stack.layers),
        "rope_parameters": {kind: angles.angles(value) for kind, value in thetas.items()},
        "tie_word_embeddings": tied(heads, "mlm"),
    }
    if "mlm" in heads:
        fields["prediction_head_size"] = heads["mlm"].hidden
    if "classify" in heads:
        names = {at: name for name, at in POOLING.items()}
        fields["classifier_pooling"] = names[heads["classify"].summary.at]
    return fields | task_fields(heads)


families.add(
    Family(
        model_type="ultrabert",
        build=build,
        lines=lines,
        inner=inner,
        config=config,
        root=ROOT,
        heads=HEADS,
        ties={
            "cls.weight": f"{ROOT}embed_tokens.weight",
            "head.decoder.weight": f"{INNER}embed_tokens.weight",
        },
    )
)
