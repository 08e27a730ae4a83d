"""BART, mBART and PEGASUS.
mBART and PEGASUS have norms before the branches, PEGASUS also fixed sinusoids."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from ptm_jax.convert import table
from ptm_jax.convert.config import ACTIVATIONS, PUBLISHED, Config
from ptm_jax.convert.family import Family, classes, families, is_pair, several_tables
from ptm_jax.convert.files import Tensors
from ptm_jax.convert.records import pair_heads, record_with, special_ids, task_fields, vocab_of
from ptm_jax.convert.table import Line
from ptm_jax.core import spec
from ptm_jax.core.system import System
from ptm_jax.data.tokenizers.published_pieces import LANGUAGES
from ptm_jax.encoders.transformer.seq2seq import EncoderDecoder
from ptm_jax.encoders.transformer.transformer import Transformer, transformer
from ptm_jax.nn.attention.multihead import CrossAttention
from ptm_jax.nn.embeddings.summed import LearnedPositions, Positions, SinusoidTable, SlotPositions
from ptm_jax.nn.heads.vocabulary import LMHead
from ptm_jax.nn.initializers import Normal
from ptm_jax.nn.layerdrop import dropped, skip_of
from ptm_jax.systems.sequence_to_sequence.bart import PEGASUS, bart, pegasus
from ptm_jax.systems.sequence_to_sequence.mbart import mbart

OFFSET, EPS = 2, 1e-5


def _by_slots(positions: LearnedPositions) -> LearnedPositions:
    """Returns a table with an offset that counts slots, as the library's classes have it."""
    return SlotPositions(**spec.values_of(positions)) if positions.offset else positions


@dataclasses.dataclass(frozen=True, kw_only=True)
class BartKind:
    """The differences between the families of BART's layers.

    prefix      prefix of the class names
    parent      parent record in the catalogue
    pre         whether norms precede the branches
    embed_norm  whether the embeddings have a norm
    waves       whether positions are fixed sinusoids
    special     default special ids
    labels      default number of classes
    start       default start token of the decoder
    bias        bias of the vocabulary head of the pair
    generator   end of the name of the class that generates
    defaults    values of fields that a config.json lacks
    """

    prefix: str
    parent: System
    pre: bool
    embed_norm: bool
    waves: bool = False
    special: dict[str, int] = dataclasses.field(
        default_factory=lambda: {"bos": 0, "pad": 1, "eos": 2}
    )
    labels: int = 2
    start: int | Literal["last"] = 2
    bias: bool | Literal["fixed"] = "fixed"
    generator: str = "ForConditionalGeneration"
    defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def old(self) -> dict[str, bool]:
        """Fields of files from the time when the families were one class, with the only supported
        value."""
        return {
            "normalize_before": self.pre,
            "add_final_layer_norm": self.pre,
            "normalize_embedding": self.embed_norm,
            "static_position_embeddings": self.waves,
        }

    @property
    def heads(self) -> dict[str, tuple[str, ...]]:
        texts = () if self.waves else ("ForSequenceClassification", "ForQuestionAnswering")
        return classes(self.prefix, {self.generator: ("lm",), "ForCausalLM": ("lm",)}, texts)

    def build(self, config: Config, architecture: str) -> System:
        config = config.filled(**self.defaults)
        for name, only in self.old.items():
            config.refuse(name, only, f"{self.prefix} has it {only}")
        tied, init = (
            config("tie_word_embeddings", bool, True),
            Normal(config("init_std", float, 0.02)),
        )
        alone = architecture.endswith("ForCausalLM")
        decoder = self.half(config, "decoder", shared_table=tied and not alone, cross=not alone)
        core = (
            decoder
            if alone
            else EncoderDecoder(self.half(config, "encoder"), decoder, self.starts(config))
        )
        vocab = core.embed.vocab
        lm = LMHead(
            vocab=None if tied else vocab,
            bias=False if alone else self.bias,
            tied=tied,
            initializer=init,
        )
        heads = {"lm": lm, **pair_heads(config.filled(num_labels=self.labels), init, vocab.eos)}
        return record_with(config, self.parent, core, heads, self.heads[architecture])

    def starts(self, config: Config) -> int | Literal["last"]:
        """Returns the decoder's start token. mBART's is the row's last token (the language),
        whatever the config has."""
        return (
            self.start
            if self.start == "last"
            else config("decoder_start_token_id", int, self.start)
        )

    def half(
        self, config: Config, side: str, shared_table: bool = False, cross: bool = False
    ) -> Transformer:
        """Returns the encoder's or the decoder's Transformer, each with its own sizes."""
        width, heads = config.positive("d_model"), config.positive(f"{side}_attention_heads")
        if width % heads:
            raise ValueError(f"d_model {width} is not a multiple of {side}_attention_heads {heads}")
        init = Normal(config("init_std", float, 0.02))
        core = transformer(
            vocab=vocab_of(config, **self.special),
            layers=config.count(f"{side}_layers"),
            width=width,
            heads=heads,
            hidden=config.positive(f"{side}_ffn_dim"),
            positions=self.positions(config, width, init),
            norm="pre" if self.pre else "post",
            eps=EPS,
            activation=config.one_of("activation_function", ACTIVATIONS, "gelu"),
            dropout=config("dropout", float, 0.1),
            attention_dropout=config("attention_dropout", float, 0.0),
            embed_norm=self.embed_norm,
            final_norm=self.pre,
            direction="causal" if side == "decoder" else "bidirectional",
            initializer=init,
        )
        block = core.stack.block
        changes = {
            "embed.scale": width**0.5 if config("scale_embedding", bool, False) else 1.0,
            "embed.given": shared_table,
            "stack.block.ffn.dropout": config("activation_dropout", float, 0.0),
        }
        if cross:
            parts = (block.attention, block.norm, block.dropout, block.attention_norm)
            changes["stack.block.cross"] = CrossAttention(*parts)
        core = spec.override(core, changes)
        return spec.override(
            core,
            {"stack.block": dropped(core.stack.block, config(f"{side}_layerdrop", float, 0.0))},
        )

    def positions(self, config: Config, width: int, init: Normal) -> Positions:
        """Returns the positions of a half of `width` features. Raises ValueError for a fixed table
        that is too large."""
        limit = config.positive("max_position_embeddings")
        if not self.waves:
            return SlotPositions(limit + OFFSET, OFFSET, init)
        if limit * width > config.largest:
            raise ValueError(
                f"max_position_embeddings {limit} x d_model {width} is too large a table for "
                "its tensors"
            )
        return SinusoidTable(limit)

    def published(self, system: System) -> System:
        """Returns a pair with the library's table of positions by slots, its head with a fixed
        bias, and its start token of a row that the decoder reads itself."""
        main = system.towers["main"]
        if not is_pair(system) or "lm" not in main.heads:
            return system
        core = spec.respell(main.encoder, LearnedPositions, _by_slots)
        core = dataclasses.replace(core, start=self.start if core.start is None else core.start)
        lm = main.heads["lm"]
        lm = dataclasses.replace(lm, bias=lm.bias or self.bias)
        main = dataclasses.replace(main, encoder=core, heads={**main.heads, "lm": lm})
        return dataclasses.replace(system, towers={**system.towers, "main": main})

    def lines(self, config: Config, architecture: str) -> tuple[Line, ...]:
        tied = config("tie_word_embeddings", bool, True)
        alone = architecture.endswith("ForCausalLM")
        sides = (
            {"decoder": "encoder"}
            if alone
            else {side: f"encoder/{side}" for side in ("encoder", "decoder")}
        )

        def words(side):
            return (
                f"model.{side}.embed_tokens.weight" if alone or not tied else "model.shared.weight"
            )

        return (
            *(Line(f"{ours}/embed/token", words(side)) for side, ours in sides.items()),
            *(
                line
                for side, ours in sides.items()
                for line in self.half_lines(ours, f"model.{side}")
            ),
            Line("heads_lm/table", "lm_head.weight"),
            Line("heads_lm/bias", "final_logits_bias", shape=(1, -1)),
            *table.tasks("classification_head.out_proj", "classification_head.dense"),
        )

    def half_lines(self, ours: str, theirs: str) -> tuple[Line, ...]:
        """Returns the lines of one half: layers, positions and outer norms.
        Layers may have cross-attention."""
        block, layer = f"{ours}/stack/block", f"{theirs}.layers.{{i}}."
        names = ("q_proj", "k_proj", "v_proj", "out_proj")
        return (
            Line(f"{ours}/embed/position/table", f"{theirs}.embed_positions.weight"),
            Line(f"{ours}/embed/norm", f"{theirs}.layernorm_embedding", "norm"),
            *table.attention(f"{block}/attention", f"{layer}self_attn.", names),
            *table.attention(f"{block}/cross/attention", f"{layer}encoder_attn.", names),
            Line(f"{block}/cross/attention_norm", f"{layer}encoder_attn_layer_norm", "norm"),
            *table.block(block, layer, ("self_attn_layer_norm", "fc1", "fc2", "final_layer_norm")),
            Line(f"{ours}/stack/final_norm", f"{theirs}.layer_norm", "norm"),
        )

    def constants(self, config: Config, architecture: str) -> dict[str, np.ndarray]:
        """Returns the fixed position tables of PEGASUS; nothing for the other families."""
        if not self.waves:
            return {}
        waves = SinusoidTable(config.positive("max_position_embeddings")).waves(
            config.positive("d_model")
        )
        sides = ("decoder",) if architecture.endswith("ForCausalLM") else ("encoder", "decoder")
        return {f"model.{side}.embed_positions.weight": waves for side in sides}

    def config(self, system: System) -> dict[str, Any]:
        """Returns the fields of a config.json.
        A decoder without an encoder repeats its own sizes for the encoder."""
        core, heads, pair = (
            system.towers["main"].encoder,
            system.towers["main"].heads,
            is_pair(system),
        )
        sides = (
            {"encoder": core.encoder, "decoder": core.decoder}
            if pair
            else {"encoder": core, "decoder": core}
        )
        embed, block = sides["decoder"].embed, sides["decoder"].stack.block
        fields = {
            "vocab_size": embed.vocab.size,
            "d_model": block.attention.width,
            "max_position_embeddings": embed.position.longest,
            "activation_function": PUBLISHED[block.ffn.activation],
            "dropout": block.dropout,
            "attention_dropout": block.attention.dropout,
            "activation_dropout": block.ffn.dropout,
            "init_std": embed.initializer.std,
            "scale_embedding": embed.scale != 1.0,
            "tie_word_embeddings": embed.given if pair else heads["lm"].tied,
            "is_encoder_decoder": pair,
            "is_decoder": not pair,
        }
        fields |= special_ids(embed.vocab, *self.special)
        if pair and core.start != "last":
            fields["decoder_start_token_id"] = core.start
        for side, half in sides.items():
            fields[f"{side}_layers"] = half.stack.layers
            fields[f"{side}_attention_heads"] = half.stack.block.attention.heads
            fields[f"{side}_ffn_dim"] = half.stack.block.ffn.hidden
            fields[f"{side}_layerdrop"] = skip_of(half.stack.block)
        return fields | task_fields(heads)


def completed(config: Config, tensors: Tensors) -> Config:
    """Returns the config without ties if the file has two tables, which Transformers ties not."""
    if not several_tables(tensors):
        return config
    return Config(
        {**config, "tie_word_embeddings": False}, config.file, config.largest, config.parts
    )


TABLES = tuple(f"model.{side}.embed_tokens.weight" for side in ("encoder", "decoder"))
IGNORE = (r"(^|\.)(encoder|decoder)\.version$",)
WAVES = (r"(^|\.)embed_positions\.weight$",)
"""PEGASUS's positions are fixed sinusoids."""

BART = bart("", 2, 128, 4, lr=6e-4, warmup=24_000)
MBART = mbart("", 2, 128, 4)
MBART = dataclasses.replace(
    MBART, examples=dataclasses.replace(MBART.examples, languages=tuple(LANGUAGES))
)
KINDS = {
    "bart": BartKind(prefix="Bart", parent=BART, pre=False, embed_norm=True, labels=3),
    "mbart": BartKind(prefix="MBart", parent=MBART, pre=True, embed_norm=True, start="last"),
    "pegasus": BartKind(
        prefix="Pegasus",
        parent=pegasus("", 2, 128, 4, PEGASUS, batch=256),
        pre=True,
        embed_norm=False,
        waves=True,
        special={"pad": 0, "eos": 1},
        start=0,
    ),
}


def family(name: str, kind: BartKind, **rules: Any) -> Family:
    """Returns the family of a kind, with `rules` in place of its own."""
    rules = {
        "heads": kind.heads,
        "ties": dict.fromkeys((*TABLES, "lm_head.weight"), "model.shared.weight"),
        "ignore": (*IGNORE, *WAVES) if kind.waves else IGNORE,
        "fill": {"model.shared.weight": TABLES, **dict.fromkeys(TABLES, ("model.shared.weight",))},
        "constants": kind.constants,
        "completed": completed,
        "published": kind.published,
        "halves": (f"{kind.prefix}ForCausalLM",),
        **rules,
    }
    return Family(
        model_type=name,
        build=kind.build,
        lines=kind.lines,
        config=kind.config,
        root="model.",
        **rules,
    )


for name, kind in KINDS.items():
    families.add(family(name, kind))
