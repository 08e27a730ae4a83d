"""RoBERTa, XLM-R and CamemBERT: BERT's layers, with positions that start after the padding row."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

from ptm_jax.convert.config import Config
from ptm_jax.convert.families import bert
from ptm_jax.convert.family import Family, families
from ptm_jax.convert.halves import ends
from ptm_jax.convert.records import PROBLEMS, adopted, objective_of, task_heads
from ptm_jax.convert.table import Line
from ptm_jax.core.spec import respell
from ptm_jax.core.system import System
from ptm_jax.core.types import Vocab
from ptm_jax.corruptions.units import Masking, WholeWords
from ptm_jax.data.rows.annotated import Annotated
from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec
from ptm_jax.encoders.model import Model
from ptm_jax.encoders.transformer import Transformer
from ptm_jax.nn.embeddings.summed import LearnedPositions
from ptm_jax.nn.heads.tasks import Summary
from ptm_jax.nn.heads.vocabulary import MLMHead, Pooler
from ptm_jax.nn.initializers import Normal, TruncatedNormal
from ptm_jax.systems.transformers import ROBERTA, roberta

CLASSES = {
    "Model": ("pool",),
    "ForMaskedLM": ("mlm",),
    "ForCausalLM": ("lm",),
    "ForSequenceClassification": ("classify",),
    "ForMultipleChoice": ("choose",),
    "ForTokenClassification": ("tag",),
    "ForQuestionAnswering": ("span",),
}

PARENT = roberta("", 2, 128, 2, lr=1e-4, warmup=1)
XLM_ROBERTA = dataclasses.replace(
    PARENT,
    paper="Conneau et al. 2020, arXiv 1911.02116",
    section="4.2.1",
    rows=(122,),
    tokenizer=TokenizerSpec(kind="unigram", vocab=250_002, lowercase=False),
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
    core = bert.encoder(config, causal=config("is_decoder", bool, False))
    init, pad = Normal(config("initializer_range", float, 0.02)), config("pad_token_id", int, 1)
    size = config.positive("max_position_embeddings")
    if size <= pad + 1:
        raise ValueError(f"max_position_embeddings {size} has no row after the {pad + 1} that pad_token_id {pad} takes")
    special = {"bos": ends(config, "bos_token_id", 0), "eos": ends(config, "eos_token_id", 2)}
    core = respell(core, Vocab, dataclasses.replace(core.embed.vocab, pad=pad, **special))
    core = respell(core, TruncatedNormal, lambda _: init)
    positions = LearnedPositions(size, offset=pad + 1, initializer=init)
    return dataclasses.replace(core, embed=dataclasses.replace(core.embed, position=positions))


def build(parent: System, prefix: str, config: Config, architecture: str) -> System:
    core, hidden = encoder(config), config("hidden_dropout_prob", float, 0.1)
    init = core.embed.initializer
    mlm = MLMHead(  # always GELU, independent of the layers' activation
        vocab=core.embed.vocab,
        eps=config("layer_norm_eps", float, 1e-12),
        tied=config("tie_word_embeddings", bool, True),
        initializer=init,
    )
    rate = config("classifier_dropout", float, hidden)
    heads = {"mlm": mlm, "lm": mlm, "pool": Pooler(initializer=init)}
    heads |= task_heads(config, Summary(dropout=rate, initializer=init), init, rate)
    heads["choose"] = task_heads(config, Summary(initializer=init), init, hidden)["choose"]
    chosen = {name: heads[name] for name in CLASSES[architecture.removeprefix(prefix)]}
    objective = objective_of(chosen, kind=PROBLEMS.get(config("problem_type", str, "")))
    return adopted(parent, Model(encoder=core, heads=chosen), objective)


def vocabulary_lines(config: Config, head: str) -> tuple[Line, ...]:
    """Returns the lines of the vocabulary head. An untied head has its own bias and an unused second one."""
    bias = "lm_head.bias" if config("tie_word_embeddings", bool, True) else "lm_head.decoder.bias"
    return (
        Line(f"heads_{head}/dense", "lm_head.dense", "dense"),
        Line(f"heads_{head}/norm", "lm_head.layer_norm", "norm"),
        Line(f"heads_{head}/bias", bias),
        Line(f"heads_{head}/table", "lm_head.decoder.weight"),
    )


def lines(config: Config, architecture: str) -> tuple[Line, ...]:
    return (
        *bert.encoder_lines(root="roberta."),
        *vocabulary_lines(config, "mlm"),
        *vocabulary_lines(config, "lm"),
        Line("heads_pool/dense", "roberta.pooler.dense", "dense"),
        Line("heads_classify/summary/dense", "classifier.dense", "dense"),
        Line("heads_classify/classes", "classifier.out_proj", "dense"),
        *bert.task_lines("roberta.pooler.dense"),
    )


def config(system: System) -> dict[str, Any]:
    vocab = system.towers["main"].encoder.embed.vocab
    return bert.config(system) | {"bos_token_id": vocab.bos, "eos_token_id": vocab.eos}


BIASES = ("lm_head.bias", "lm_head.decoder.bias")
"""Names of the bias. A tied head has one bias; files of some versions use the other name."""

for kind, prefix, parent in (
    ("roberta", "Roberta", PARENT),
    ("xlm-roberta", "XLMRoberta", XLM_ROBERTA),
    ("camembert", "Camembert", CAMEMBERT),
):
    families.add(
        Family(
            model_type=kind,
            build=functools.partial(build, parent, prefix),
            lines=lines,
            config=config,
            root="roberta.",
            heads={prefix + name: heads for name, heads in CLASSES.items()},
            ties={"lm_head.decoder.weight": "roberta.embeddings.word_embeddings.weight", BIASES[1]: BIASES[0]},
            fill={BIASES[0]: BIASES[1:], BIASES[1]: BIASES[:1]},
        )
    )
