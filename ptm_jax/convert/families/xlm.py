"""XLM (Lample & Conneau 2019): BERT's encoder with language embeddings.
Padding has zero vectors; there are no sentence types.

If sentence types are given, Transformers adds the *word* embedding of the type's id; so do we. The
causal model of Transformers attends to left padding, ours does not. A table of sinusoids is in the
checkpoint and is trained.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from ptm_jax.convert import table
from ptm_jax.convert.config import ACTIVATIONS, PUBLISHED, Config
from ptm_jax.convert.family import Family, classes, families
from ptm_jax.convert.records import (
    label_fields,
    record_with,
    special_ids,
    task_heads,
    tied,
    vocab_of,
)
from ptm_jax.convert.table import Line
from ptm_jax.core import slots, spec
from ptm_jax.core.system import System
from ptm_jax.core.types import Vocab
from ptm_jax.data.rows.languages.multilingual import languages_of
from ptm_jax.encoders.transformer.transformer import Transformer, transformer
from ptm_jax.nn.embeddings.adaptive import AdaptiveSoftmaxHead
from ptm_jax.nn.embeddings.parts import Languages, WordTypes
from ptm_jax.nn.embeddings.summed import LearnedPositions
from ptm_jax.nn.heads.pooling import Summary
from ptm_jax.nn.heads.questions.answers import AnswerHead
from ptm_jax.nn.heads.task_heads import SummaryHead
from ptm_jax.nn.heads.vocabulary import LMHead
from ptm_jax.nn.initializers import Initializer, Normal
from ptm_jax.objectives.text.language import LM
from ptm_jax.systems.transformers.bert_gpt import roberta
from ptm_jax.systems.transformers.many_languages import xlm

TEXTS = ("ForSequenceClassification", "ForTokenClassification", "ForMultipleChoice")
ANSWERS = {"ForQuestionAnsweringSimple": ("span",), "ForQuestionAnswering": ("answer",)}
HEADS = classes("XLM", {"WithLMHeadModel": ("mlm",), **ANSWERS}, TEXTS)


def todays(config: Config) -> Config:
    """Returns a config of XLM or FlauBERT with the current field names."""
    sizes = {"n_words": "vocab_size", "hidden_size": "emb_dim"}
    sizes |= {"num_hidden_layers": "n_layers", "num_attention_heads": "n_heads"}
    return config.renamed(
        **sizes, **{f"{name}_index": f"{name}_token_id" for name in ("pad", "bos", "eos")}
    )


def summary_of(
    config: Config, init: Initializer, kind: str, activation: str | None, width: int | None = None
) -> Summary:
    """Returns the equivalent of Transformers' SequenceSummary.

    `kind` and `activation` are the defaults of the class, `width` is the width of the projection.
    "last" is the last token here; in Transformers it is the last position, which is the same for
    rows padded on the left. Transformers' mean includes padding, ours does not. Attention summaries
    are not supported; no published checkpoint has one.
    """
    at = {"first": "first", "last": "last", "cls_index": "last", "mean": "mean"}
    name = config("summary_activation", str, None if "summary_activation" in config else activation)
    return Summary(
        activation="identity"
        if not name
        else config.one_of("summary_activation", ACTIVATIONS, name),
        at=config.one_of("summary_type", at, kind),
        dropout=config("summary_first_dropout", float, 0.0),
        width=width,
        project=config("summary_use_proj", bool, True),
        initializer=init,
    )


def summary_fields(summary: Summary) -> dict[str, Any]:
    """Returns the config fields of a summary."""
    return {
        "summary_type": summary.at,
        "summary_use_proj": summary.project,
        "summary_activation": ""
        if summary.activation == "identity"
        else PUBLISHED[summary.activation],
        "summary_first_dropout": summary.dropout,
    }


def heads_of(config: Config, vocab: Vocab, init: Initializer) -> dict[str, Any]:
    """Returns all heads of XLM's classes.
    The summary's projection has one feature per class in every task."""
    for name in ("summary_proj_to_labels", "summary_use_proj"):
        config.refuse(name, True, "the classifier would be given states in the place of classes")
    summary = summary_of(
        config.filled(summary_first_dropout=0.1), init, "first", None, config.labels
    )
    heads = task_heads(config, summary, init, config("dropout", float, 0.1))
    last = config("summary_last_dropout", float, 0.0)
    return heads | {
        "mlm": vocabulary_head(config, vocab, init),
        "classify": SummaryHead(summary, dropout=last),
        "choose": dataclasses.replace(heads["choose"], dropout=last),
        "answer": answer_head(config, init),
    }


def vocabulary_head(config: Config, vocab: Vocab, init: Initializer) -> Any:
    """Returns a tied head with a bias, or an adaptive softmax.

    (Transformers can neither run its adaptive softmax on a batch nor load a tied one.)
    """
    if config("asm", bool, False):
        cutoffs = config.numbers("asm_cutoffs")
        return AdaptiveSoftmaxHead(
            vocab, cutoffs, float(config("asm_div_value", float)), initializer=init
        )
    return LMHead(
        vocab=vocab, bias=True, tied=config("tie_word_embeddings", bool, True), initializer=init
    )


def answer_head(config: Config, init: Initializer) -> AnswerHead:
    """Returns the head of `ForQuestionAnswering` in XLNet, XLM and FlauBERT."""
    eps = config("layer_norm_eps", float, 1e-12)
    return AnswerHead(
        config.positive("start_n_top", 5),
        config.positive("end_n_top", 5),
        eps=eps,
        initializer=init,
    )


def encoder(config: Config) -> Transformer:
    """Returns the encoder of an XLM config; FlauBERT replaces slots of it.

    A text is enclosed by two `eos`, or by `bos` and `eos`.
    """
    config.refuse("is_encoder", True, "the library has no decoder of this family")
    init, drawn = (
        Normal(config("init_std", float, 0.02)),
        Normal(config("embed_init_std", float, 2048**-0.5)),
    )
    width, languages = config.positive("emb_dim", 2048), config.positive("n_langs", 1)
    vocab = vocab_of(config, 30145, pad=2, bos=0, eos=1)
    others = {
        "unk": config("unk_index", int, 3),
        "mask": config("mask_index", int, 5),
        "sep": vocab.eos,
    }
    core = transformer(
        vocab=dataclasses.replace(vocab, **others),
        layers=config.count("n_layers", 12),
        width=width,
        heads=config.positive("n_heads", 16),
        positions=LearnedPositions(
            config.positive("max_position_embeddings", 512), initializer=drawn
        ),
        eps=config("layer_norm_eps", float, 1e-12),
        activation="gelu" if config("gelu_activation", bool, True) else "relu",
        dropout=config("dropout", float, 0.1),
        attention_dropout=config("attention_dropout", float, 0.1),
        direction="causal" if config("causal", bool, False) else "bidirectional",
        initializer=init,
    )
    used = languages if languages > 1 and config("use_lang_emb", bool, True) else 0
    parts = (WordTypes(2), Languages(used)) if used else (WordTypes(2),)
    return spec.override(core, {"embed.parts": parts, "embed.initializer": drawn, "blank": True})


def record(config: Config, core: Transformer, names: tuple[str, ...], **facts: Any) -> System:
    """Returns the record of an encoder with the named heads.
    Pre-training is RoBERTa's, on running text."""
    heads = heads_of(config, core.embed.vocab, core.stack.block.attention.initializer)
    objective = LM(head="mlm") if "mlm" in names and core.direction == "causal" else None
    return record_with(
        config,
        roberta("", 2, 128, 2, lr=1e-4, warmup=1),
        core,
        heads,
        names,
        objective=objective,
        **facts,
    )


def build(config: Config, architecture: str) -> System:
    config = todays(config)
    core = encoder(config)
    rows = xlm("", 1, 8, 1, languages=core.embed.languages, translations=True).examples
    facts = {
        "paper": "Lample & Conneau 2019, arXiv 1901.07291",
        "section": "4.2.1",
        "rows": (120,),
        "examples": dataclasses.replace(rows, languages=_languages(config)),
    }
    return record(config, core, HEADS[architecture], **facts)


def lines(config: Config, architecture: str) -> tuple[Line, ...]:
    block = "encoder/stack/block"
    return (
        Line("encoder/embed/token", "transformer.embeddings.weight"),
        Line("encoder/embed/position/table", "transformer.position_embeddings.weight"),
        Line("encoder/embed/language", "transformer.lang_embeddings.weight"),
        Line("encoder/embed/norm", "transformer.layer_norm_emb", "norm"),
        *table.attention(
            f"{block}/attention",
            "transformer.attentions.{i}.",
            ("q_lin", "k_lin", "v_lin", "out_lin"),
        ),
        *table.block(
            block,
            "transformer.",
            ("layer_norm1.{i}", "ffns.{i}.lin1", "ffns.{i}.lin2", "layer_norm2.{i}"),
        ),
        *vocabulary_lines(config),
        *table.tasks("logits_proj", "sequence_summary.summary"),
        *answer_lines("qa_outputs."),
    )


def vocabulary_lines(config: Config) -> tuple[Line, ...]:
    """Returns the lines of the vocabulary head.

    Its bias and table, or one bias and table per cluster.
    """
    root = "pred_layer.proj"
    if not config("asm", bool, False):
        return Line("heads_mlm/bias", f"{root}.bias"), Line("heads_mlm/table", f"{root}.weight")
    tails = range(len(config("asm_cutoffs", list)))
    return (
        Line("heads_mlm/words", f"{root}.head.weight"),
        Line("heads_mlm/bias", f"{root}.head.bias"),
        *(Line(f"heads_mlm/project{i + 1}", f"{root}.tail.{i}.0", "dense") for i in tails),
        *(Line(f"heads_mlm/words{i + 1}", f"{root}.tail.{i}.1.weight") for i in tails),
    )


def answer_lines(root: str) -> tuple[Line, ...]:
    """Returns the lines of the `ForQuestionAnswering` head under a prefix."""
    return (
        Line("heads_answer/start", f"{root}start_logits.dense", "dense"),
        Line("heads_answer/end_join", f"{root}end_logits.dense_0", "dense"),
        Line("heads_answer/end_norm", f"{root}end_logits.LayerNorm", "norm"),
        Line("heads_answer/end", f"{root}end_logits.dense_1", "dense"),
        Line("heads_answer/none_join", f"{root}answer_class.dense_0", "dense"),
        Line("heads_answer/none", f"{root}answer_class.dense_1", "dense"),
    )


def head_fields(heads: Mapping[str, slots.Head]) -> dict[str, Any]:
    """Returns the config fields that describe the heads of XLM's or XLNet's classes."""
    fields: dict[str, Any] = {}
    classes = next((heads[name].classes for name in ("classify", "tag") if name in heads), None)
    if "choose" in heads:
        classes, fields["num_choices"] = heads["choose"].summary.width, heads["choose"].choices
    if classes is not None:
        fields |= label_fields(classes)
    for name in ("classify", "choose"):
        if name in heads:
            fields |= summary_fields(heads[name].summary) | {
                "summary_last_dropout": heads[name].dropout
            }
    if isinstance(heads.get("mlm"), AdaptiveSoftmaxHead):
        softmax = heads["mlm"]
        fields |= {
            "asm": True,
            "asm_cutoffs": list(softmax.cutoffs),
            "asm_div_value": softmax.divide,
        }
        fields["tie_word_embeddings"] = False
    if "answer" in heads:
        fields |= {"start_n_top": heads["answer"].starts, "end_n_top": heads["answer"].ends}
    return fields


def config(system: System) -> dict[str, Any]:
    core, heads = system.towers["main"].encoder, system.towers["main"].heads
    embed, block, vocab = core.embed, core.stack.block, core.embed.vocab
    if block.ffn.hidden != 4 * embed.width:
        raise ValueError("the hidden layer of this family is four times as wide as the states")
    return (
        {
            **special_ids(vocab, "pad", "bos", "eos"),
            "vocab_size": vocab.size,
            "unk_index": vocab.unk,
            "mask_index": vocab.mask,
            "emb_dim": embed.width,
            "n_layers": core.stack.layers,
            "n_heads": block.attention.heads,
            "dropout": block.dropout,
            "attention_dropout": block.attention.dropout,
            "gelu_activation": {"gelu": True, "relu": False}[block.ffn.activation],
            "causal": core.direction == "causal",
            "n_langs": embed.languages or 1,
            "use_lang_emb": embed.languages > 0,
            "max_position_embeddings": embed.position.size,
            "embed_init_std": embed.initializer.std,
            "init_std": block.attention.initializer.std,
            "layer_norm_eps": block.attention_norm.eps,
            "tie_word_embeddings": tied(heads, "mlm"),
        }
        | head_fields(heads)
        | _numbers(system.examples)
    )


def _languages(config: Config) -> tuple[str, ...]:
    """Returns the languages of a config by number; () where the numbers are not 0, 1, ..."""
    numbers = config("lang2id", dict, None) or {}
    by_number = {number: name for name, number in numbers.items()}
    names = tuple(by_number.get(n) for n in range(len(numbers)))
    return () if None in names else names


def _numbers(examples: slots.Examples) -> dict[str, Any]:
    """Returns the config fields of the languages by number."""
    names = languages_of(examples)
    return {"lang2id": {name: n for n, name in enumerate(names)}} if names else {}


TIES = {"pred_layer.proj.weight": "transformer.embeddings.weight"}

families.add(
    Family(
        model_type="xlm",
        build=build,
        lines=lines,
        config=config,
        root="transformer.",
        heads=HEADS,
        ties=TIES,
    )
)
