"""XLM (Lample & Conneau 2019): BERT's encoder with language embeddings, zero vectors for padding and no sentence types.

If sentence types are given, Transformers adds the *word* embedding of the type's id; so do we. The causal model of
Transformers attends to left padding, ours does not. A table of sinusoids is in the checkpoint and is trained.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from ptm_jax.convert.config import ACTIVATIONS, PUBLISHED, Config
from ptm_jax.convert.family import Family, families
from ptm_jax.convert.records import PROBLEMS, adopted, objective_of, special_ids, tied
from ptm_jax.convert.table import Line, attention
from ptm_jax.core.system import System
from ptm_jax.core.types import Vocab
from ptm_jax.encoders.model import Model
from ptm_jax.encoders.transformer import Transformer, transformer
from ptm_jax.nn.embeddings.adaptive import AdaptiveSoftmaxHead
from ptm_jax.nn.embeddings.parts import Languages, WordTypes
from ptm_jax.nn.embeddings.summed import LearnedPositions
from ptm_jax.nn.heads.answers import AnswerHead
from ptm_jax.nn.heads.tasks import ChoiceHead, SpanHead, Summary, SummaryHead, TokenHead
from ptm_jax.nn.heads.vocabulary import LMHead
from ptm_jax.nn.initializers import Normal
from ptm_jax.objectives.language import LM
from ptm_jax.systems.transformers import roberta


def classes_of(family: str) -> dict[str, tuple[str, ...]]:
    """Returns {class: our heads} for a family with XLM's classes."""
    tasks = {"WithLMHeadModel": "mlm", "ForSequenceClassification": "classify", "ForTokenClassification": "tag"}
    tasks |= {"ForQuestionAnsweringSimple": "span", "ForQuestionAnswering": "answer", "ForMultipleChoice": "choose"}
    return {f"{family}Model": ()} | {family + name: (head,) for name, head in tasks.items()}


HEADS = classes_of("XLM")


def renamed(config: Config, **names: str) -> Config:
    """Returns the config with fields added under their current names, if a file uses the old ones: `old=current`."""
    fields = dict(config)
    for old, new in names.items():
        if new not in fields and old in fields:
            fields[new] = fields[old]
    return Config(fields, config.file)


def todays(config: Config) -> Config:
    """Returns a config of XLM or FlauBERT with the current field names."""
    sizes = {"n_words": "vocab_size", "hidden_size": "emb_dim"}
    sizes |= {"num_hidden_layers": "n_layers", "num_attention_heads": "n_heads"}
    specials = {f"{name}_index": f"{name}_token_id" for name in ("pad", "bos", "eos")}
    return renamed(config, **sizes, **specials)


def summary_of(config: Config, init: Any, kind: str, activation: str | None, width: int | None = None) -> Summary:
    """Returns the equivalent of Transformers' SequenceSummary.

    `kind` and `activation` are the defaults of the class, `width` is that of the projection. "last" is the last token here;
    in Transformers it is the last position, which is the same for rows padded on the left. Transformers' mean includes
    padding, ours does not. Attention summaries are not supported; no published checkpoint has one.
    """
    at = {"first": "first", "last": "last", "cls_index": "last", "mean": "mean"}
    name = config("summary_activation", str, None if "summary_activation" in config else activation)
    return Summary(
        activation="identity" if not name else config.one_of("summary_activation", ACTIVATIONS, name),
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
        "summary_activation": "" if summary.activation == "identity" else PUBLISHED[summary.activation],
        "summary_first_dropout": summary.dropout,
    }


def heads_of(config: Config, init: Any) -> dict[str, Any]:
    """Returns all heads of XLM's classes. The summary's projection has one feature per class in every task."""
    classes, rate = config.labels, config("dropout", float, 0.1)
    config = Config({"summary_first_dropout": 0.1, **config}, config.file)
    config.refuse("summary_proj_to_labels", True, "the classifier would be given states in the place of classes")
    config.refuse("summary_use_proj", True, "the classifier would be given states in the place of classes")
    summary = summary_of(config, init, "first", None, classes)
    last = config("summary_last_dropout", float, 0.0)
    return {
        "mlm": vocabulary_head(config, init),
        "classify": SummaryHead(summary, dropout=last),
        "choose": ChoiceHead(config.positive("num_choices", 2), summary, dropout=last, initializer=init),
        "tag": TokenHead(classes, dropout=rate, initializer=init),
        "span": SpanHead(initializer=init),
        "answer": answer_head(config, init),
    }


def vocabulary_head(config: Config, init: Any) -> Any:
    """Returns a tied head with a bias, or an adaptive softmax.

    (Transformers can neither run its adaptive softmax on a batch nor load a tied one.)
    """
    vocab = vocab_of(config)
    if config("asm", bool, False):
        cutoffs = tuple(config("asm_cutoffs", list))
        return AdaptiveSoftmaxHead(vocab, cutoffs, float(config("asm_div_value", float)), initializer=init)
    return LMHead(vocab=vocab, bias=True, tied=config("tie_word_embeddings", bool, True), initializer=init)


def answer_head(config: Config, init: Any) -> AnswerHead:
    """Returns the head of `ForQuestionAnswering` in XLNet, XLM and FlauBERT."""
    eps = config("layer_norm_eps", float, 1e-12)
    return AnswerHead(config.positive("start_n_top", 5), config.positive("end_n_top", 5), eps=eps, initializer=init)


def vocab_of(config: Config) -> Vocab:
    """Returns the size and special ids. A text is enclosed by two `eos`, or by `bos` and `eos`."""
    eos = config("eos_token_id", int, 1)
    return Vocab(
        size=config.positive("vocab_size", 30145),
        pad=config("pad_token_id", int, 2),
        unk=config("unk_index", int, 3),
        mask=config("mask_index", int, 5),
        bos=config("bos_token_id", int, 0),
        eos=eos,
        sep=eos,
    )


def encoder(config: Config) -> Transformer:
    """Returns the encoder of an XLM config; FlauBERT replaces slots of it."""
    config.refuse("is_encoder", True, "the library has no decoder of this family")
    init, drawn = Normal(config("init_std", float, 0.02)), Normal(config("embed_init_std", float, 2048**-0.5))
    width, languages = config.positive("emb_dim", 2048), config.positive("n_langs", 1)
    core = transformer(
        vocab=vocab_of(config),
        layers=config.positive("n_layers", 12),
        width=width,
        heads=config.positive("n_heads", 16),
        positions=LearnedPositions(config.positive("max_position_embeddings", 512), initializer=drawn),
        eps=config("layer_norm_eps", float, 1e-12),
        activation="gelu" if config("gelu_activation", bool, True) else "relu",
        dropout=config("dropout", float, 0.1),
        attention_dropout=config("attention_dropout", float, 0.1),
        direction="causal" if config("causal", bool, False) else "bidirectional",
        initializer=init,
    )
    used = languages if languages > 1 and config("use_lang_emb", bool, True) else 0
    parts = (WordTypes(2), Languages(used)) if used else (WordTypes(2),)
    embed = dataclasses.replace(core.embed, parts=parts, initializer=drawn)
    return dataclasses.replace(core, embed=embed, blank=True)


def record(config: Config, architecture: str, core: Transformer, **facts: Any) -> System:
    """Returns the record of an encoder with the heads of a class. Pre-training is RoBERTa's, on running text."""
    heads = heads_of(config, core.stack.block.attention.initializer)
    chosen = {name: heads[name] for name in classes_of("")[architecture]}
    if "mlm" in chosen and core.direction == "causal":
        objective = LM(head="mlm")
    else:
        objective = objective_of(chosen, kind=PROBLEMS.get(config("problem_type", str, "")))
    return adopted(roberta("", 2, 128, 2, lr=1e-4, warmup=1), Model(encoder=core, heads=chosen), objective, **facts)


def build(config: Config, architecture: str) -> System:
    config = todays(config)
    facts = {"paper": "Lample & Conneau 2019, arXiv 1901.07291", "section": "4.2.1", "rows": (120,)}
    return record(config, architecture.removeprefix("XLM"), encoder(config), **facts)


def lines(config: Config, architecture: str) -> tuple[Line, ...]:
    block = "encoder/stack/block"
    parts = tuple(f"transformer.attentions.{{i}}.{name}_lin" for name in ("q", "k", "v", "out"))
    answer = "qa_outputs."
    return (
        Line("encoder/embed/token", "transformer.embeddings.weight"),
        Line("encoder/embed/position/table", "transformer.position_embeddings.weight"),
        Line("encoder/embed/language", "transformer.lang_embeddings.weight"),
        Line("encoder/embed/norm", "transformer.layer_norm_emb", "norm"),
        *attention(f"{block}/attention", parts),
        Line(f"{block}/attention_norm", "transformer.layer_norm1.{i}", "norm"),
        Line(f"{block}/ffn/up", "transformer.ffns.{i}.lin1", "dense"),
        Line(f"{block}/ffn/down", "transformer.ffns.{i}.lin2", "dense"),
        Line(f"{block}/ffn_norm", "transformer.layer_norm2.{i}", "norm"),
        *vocabulary_lines(config),
        Line("heads_classify/summary/dense", "sequence_summary.summary", "dense"),
        Line("heads_choose/summary/dense", "sequence_summary.summary", "dense"),
        Line("heads_choose/score", "logits_proj", "dense"),
        Line("heads_tag/classes", "classifier", "dense"),
        Line("heads_span/ends", "qa_outputs", "dense"),
        *answer_lines(answer),
    )


def vocabulary_lines(config: Config) -> tuple[Line, ...]:
    """Returns the lines of the vocabulary head: bias and table, or those of each cluster."""
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


def head_fields(heads: Any) -> dict[str, Any]:
    """Returns the config fields that describe the heads of XLM's or XLNet's classes."""
    fields: dict[str, Any] = {}
    classes = next((heads[name].classes for name in ("classify", "tag") if name in heads), None)
    if "choose" in heads:
        classes, fields["num_choices"] = heads["choose"].summary.width, heads["choose"].choices
    if classes is not None:
        fields["id2label"] = {str(i): f"LABEL_{i}" for i in range(classes)}
        fields["label2id"] = {f"LABEL_{i}": i for i in range(classes)}
    for name in ("classify", "choose"):
        if name in heads:
            fields |= summary_fields(heads[name].summary) | {"summary_last_dropout": heads[name].dropout}
    if isinstance(heads.get("mlm"), AdaptiveSoftmaxHead):
        softmax = heads["mlm"]
        fields |= {"asm": True, "asm_cutoffs": list(softmax.cutoffs), "asm_div_value": softmax.divide}
        fields["tie_word_embeddings"] = False
    if "answer" in heads:
        fields |= {"start_n_top": heads["answer"].starts, "end_n_top": heads["answer"].ends}
    return fields


def config(system: System) -> dict[str, Any]:
    core, heads = system.towers["main"].encoder, system.towers["main"].heads
    embed, block, vocab = core.embed, core.stack.block, core.embed.vocab
    if block.ffn.hidden != 4 * embed.width:
        raise ValueError("the hidden layer of this family is four times as wide as the states")
    specials = special_ids(vocab, "pad", "bos", "eos")
    return {
        **specials,
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
    } | head_fields(heads)


TIES = {"pred_layer.proj.weight": "transformer.embeddings.weight"}

families.add(Family(model_type="xlm", build=build, lines=lines, config=config, root="transformer.", heads=HEADS, ties=TIES))
