"""RoBERTa, XLM-R and CamemBERT: BERT's layers, with positions that start after the padding row."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

from ptm_jax.convert import table
from ptm_jax.convert.config import Config
from ptm_jax.convert.families import bert
from ptm_jax.convert.family import Family, classes, families
from ptm_jax.convert.records import mlm_head, record_with, special_ids, task_heads, vocab_of
from ptm_jax.convert.table import Line
from ptm_jax.core.spec import respell
from ptm_jax.core.system import System
from ptm_jax.core.types import Vocab
from ptm_jax.corruptions.masking.units import Masking, WholeWords
from ptm_jax.data.rows.annotated import Annotated
from ptm_jax.data.rows.languages.multilingual import Translated
from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec
from ptm_jax.encoders.transformer.transformer import Transformer
from ptm_jax.nn.embeddings.summed import LearnedPositions
from ptm_jax.nn.heads.pooling import Summary
from ptm_jax.nn.heads.vocabulary import Pooler
from ptm_jax.nn.initializers import Normal, TruncatedNormal
from ptm_jax.systems.transformers.bert_gpt import ROBERTA, roberta
from ptm_jax.systems.transformers.many_languages import xlm_r

PARENT = roberta("", 2, 128, 2, lr=1e-4, warmup=1)
XLM_ROBERTA = xlm_r("", 2, 128, 2, lr=1e-4, warmup=1)
XLM_ROBERTA = dataclasses.replace(
    XLM_ROBERTA, examples=dataclasses.replace(XLM_ROBERTA.examples, parallel=Translated())
)
CAMEMBERT = dataclasses.replace(
    PARENT,
    paper="Martin et al. 2020, arXiv 1911.03894",
    section="4.2.2",
    rows=(134,),
    tokenizer=TokenizerSpec(kind="unigram", vocab=32_005, lowercase=False),
    examples=Annotated(examples=PARENT.examples, fields=("word_starts",)),
    corruption=Masking(vocab=ROBERTA, units=WholeWords()),
)


def encoder(config: Config) -> Transformer:
    """Returns BERT's encoder with a position table that starts after the padding row."""
    core, vocab = bert.encoder(config), vocab_of(config, pad=1, bos=0, eos=2)
    init, first, size = (
        Normal(core.embed.initializer.std),
        vocab.pad + 1,
        config.positive("max_position_embeddings"),
    )
    if size <= first:
        raise ValueError(
            f"max_position_embeddings {size} has no row after the {first} that pad_token_id "
            f"{vocab.pad} takes"
        )
    core = respell(respell(core, Vocab, vocab), TruncatedNormal, lambda _: init)
    positions = LearnedPositions(size, offset=first, initializer=init)
    return dataclasses.replace(core, embed=dataclasses.replace(core.embed, position=positions))


def build(
    parent: System,
    heads: Mapping[str, tuple[str, ...]],
    config: Config,
    architecture: str,
    encoder: Callable[[Config], Transformer] = encoder,
) -> System:
    """Returns the parent's record with the encoder of a config and the heads of a class."""
    core, hidden = encoder(config), config("hidden_dropout_prob", float, 0.1)
    init, mlm = (
        core.embed.initializer,
        mlm_head(config, core),
    )  # always GELU, independent of the layers' activation
    rate = config("classifier_dropout", float, hidden)
    named = {"mlm": mlm, "lm": mlm, "pool": Pooler(initializer=init)}
    named |= task_heads(config, Summary(dropout=rate, initializer=init), init, rate)
    named["choose"] = dataclasses.replace(
        named["choose"], summary=Summary(initializer=init), dropout=hidden
    )
    return record_with(config, parent, core, named, heads[architecture])


def lines(config: Config, architecture: str) -> tuple[Line, ...]:
    """Returns the lines of all classes.
    An untied vocabulary head has its own bias and an unused second one."""
    bias = "lm_head.bias" if config("tie_word_embeddings", bool, True) else "lm_head.decoder.bias"
    return (
        *bert.encoder_lines("roberta."),
        *table.vocabulary("lm_head.dense", "lm_head.layer_norm", bias, "lm_head.decoder.weight"),
        Line("heads_pool/dense", "roberta.pooler.dense", "dense"),
        *table.tasks(
            "classifier.out_proj", "classifier.dense", "classifier", "roberta.pooler.dense"
        ),
    )


def config(system: System) -> dict[str, Any]:
    return bert.config(system) | special_ids(
        system.towers["main"].encoder.embed.vocab, "bos", "eos"
    )


BIASES = ("lm_head.bias", "lm_head.decoder.bias")
"""Names of the bias. A tied head has one bias; files of some versions use the other name."""
TIES = {
    "lm_head.decoder.weight": "roberta.embeddings.word_embeddings.weight",
    BIASES[1]: BIASES[0],
}
FILL = {BIASES[0]: BIASES[1:], BIASES[1]: BIASES[:1]}

for kind, prefix, parent in (
    ("roberta", "Roberta", PARENT),
    ("xlm-roberta", "XLMRoberta", XLM_ROBERTA),
    ("camembert", "Camembert", CAMEMBERT),
):
    heads = classes(prefix, {"Model": ("pool",), "ForCausalLM": ("lm",)})
    families.add(
        Family(
            model_type=kind,
            build=functools.partial(build, parent, heads),
            lines=lines,
            config=config,
            root="roberta.",
            heads=heads,
            ties=TIES,
            fill=FILL,
        )
    )
