"""EncoderDecoderModel (Rothe et al. 2020, arXiv 1907.12461): an encoder and a decoder of BERT's or
RoBERTa's format, the latter with attention to the former (BERT2BERT, RoBERTa2RoBERTa). The pooler
that the encoder's file may have is not used."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from ptm_jax.convert.config import Config
from ptm_jax.convert.family import Family, families, family_of
from ptm_jax.convert.records import record_with, special_ids, vocab_of
from ptm_jax.convert.table import Line
from ptm_jax.core.errors import UserError, unknown
from ptm_jax.core.spec import respell
from ptm_jax.core.system import System
from ptm_jax.core.types import Vocab
from ptm_jax.encoders.model import Model
from ptm_jax.encoders.transformer.seq2seq import BridgedEncoderDecoder, EncoderDecoder
from ptm_jax.nn.layers import Dense
from ptm_jax.systems.sequence_to_sequence.bart import bart

HALVES = {
    "bert": "BertLMHeadModel",
    "roberta": "RobertaForCausalLM",
    "xlm-roberta": "XLMRobertaForCausalLM",
    "camembert": "CamembertForCausalLM",
}
"""Maps the families of a half to their class of a decoder."""


def half(config: Config, side: str) -> tuple[Family, Config]:
    """Returns the family and the config of a side, with the fields that make it a half.
    Raises UserError."""
    fields = config(side, dict)
    name = fields.get("model_type")
    if name not in HALVES:
        raise UserError(f"{config.file}: {side}: {unknown('model_type', str(name), HALVES)}")
    hidden = {"is_decoder": side == "decoder", "add_cross_attention": side == "decoder"}
    side_config = Config({**fields, **hidden}, f"{config.file}: {side}")
    return family_of(side_config), side_config


def build(config: Config, architecture: str) -> System:
    config.refuse(
        "tie_encoder_decoder", False, "one set of layers for both halves is not supported"
    )
    (first, source), (second, target) = half(config, "encoder"), half(config, "decoder")
    name = HALVES[second.model_type]
    encoder = first.build(source, first.bare).towers["main"].encoder
    tower = second.build(target, name).towers["main"]
    decoder = tower.encoder
    if encoder.embed.vocab.size != decoder.embed.vocab.size:
        sizes = f"{encoder.embed.vocab.size} and {decoder.embed.vocab.size}"
        raise UserError(
            f"{config.file}: halves with vocabularies of {sizes} pieces are not supported"
        )
    ids = config.filled(pad_token_id=encoder.embed.vocab.pad, vocab_size=encoder.embed.vocab.size)
    halves = encoder, decoder, config("decoder_start_token_id", int, None)
    width, init = decoder.embed.width, encoder.embed.initializer
    bridged = encoder.embed.width != width
    core = (
        BridgedEncoderDecoder(*halves, Dense(width, initializer=init))
        if bridged
        else EncoderDecoder(*halves)
    )
    parent = bart("", 2, 128, 2, lr=5e-5, warmup=1000)
    facts = {"paper": "Rothe et al. 2020, arXiv 1907.12461", "section": "2", "rows": ()}
    system = record_with(config, parent, core, tower.heads, ("lm",), **facts)
    vocab = vocab_of(ids, pad=None, bos=encoder.embed.vocab.bos, eos=encoder.embed.vocab.eos)
    return dataclasses.replace(system, towers=respell(dict(system.towers), Vocab, vocab))


def lines(config: Config, architecture: str) -> tuple[Line, ...]:
    (first, source), (second, target) = half(config, "encoder"), half(config, "decoder")

    def moved(line, ours, theirs):
        return dataclasses.replace(line, ours=ours, theirs=theirs)

    table = []
    for line in first.lines(source, first.bare):
        if line.ours.startswith("encoder/"):
            table.append(
                moved(
                    line, f"encoder/{line.ours}", "encoder." + line.theirs.removeprefix(first.root)
                )
            )
    for line in second.lines(target, HALVES[second.model_type]):
        part, _, below = line.ours.partition("/")
        if part in ("encoder", "heads_lm"):
            ours = f"encoder/decoder/{below}" if part == "encoder" else line.ours
            table.append(moved(line, ours, f"decoder.{line.theirs}"))
    return (*table, Line("encoder/bridge", "enc_to_dec_proj", "dense"))


def config(system: System) -> dict[str, Any]:
    core, heads = system.towers["main"].encoder, system.towers["main"].heads
    sides: dict[str, Mapping[str, Any]] = {}
    for side, part in (("encoder", core.encoder), ("decoder", core.decoder)):
        name = "roberta" if part.embed.position.offset else "bert"
        alone = Model(encoder=part, heads=heads if side == "decoder" else {})
        fields = families.get(name).config(dataclasses.replace(system, towers={"main": alone}))
        if part.embed.position.offset:  # the first position follows the position of the padding
            fields["pad_token_id"] = part.embed.position.offset - 1
        sides[side] = {**fields, "model_type": name, "add_cross_attention": side == "decoder"}
    ids = special_ids(core.encoder.embed.vocab, "pad", "bos", "eos")
    return {**sides, **ids, "decoder_start_token_id": core.start, "is_encoder_decoder": True}


TIES = {
    "decoder.cls.predictions.decoder.weight": "decoder.bert.embeddings.word_embeddings.weight",
    "decoder.cls.predictions.decoder.bias": "decoder.cls.predictions.bias",
    "decoder.lm_head.decoder.weight": "decoder.roberta.embeddings.word_embeddings.weight",
    "decoder.lm_head.decoder.bias": "decoder.lm_head.bias",
}
BIASES = [name for name in TIES if name.endswith("bias")]

families.add(
    Family(
        model_type="encoder-decoder",
        build=build,
        lines=lines,
        config=config,
        root="",
        heads={"EncoderDecoderModel": ("lm",)},
        ties=TIES,
        ignore=(r"(^|\.)position_ids$", r"^encoder\.pooler\.", r"(^|\.)token_type_ids$"),
        fill={
            one: (other,)
            for name in BIASES
            for one, other in ((name, TIES[name]), (TIES[name], name))
        },
    )
)
