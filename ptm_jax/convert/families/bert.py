"""BERT and models in its format: SpanBERT, MiniLM, TinyBERT, UniLM, SciBERT, BioBERT, Chinese wwm, StructBERT, InfoWord."""

from __future__ import annotations

from typing import Any

from ptm_jax.convert.config import ACTIVATIONS, PUBLISHED, Config
from ptm_jax.convert.family import Family, families
from ptm_jax.convert.records import PROBLEMS, adopted, objective_of, task_fields, task_heads, tied
from ptm_jax.convert.table import Line, attention
from ptm_jax.core.system import System
from ptm_jax.core.types import Vocab
from ptm_jax.encoders.model import Model
from ptm_jax.encoders.transformer import transformer
from ptm_jax.nn.embeddings.summed import LearnedPositions
from ptm_jax.nn.heads.tasks import Summary
from ptm_jax.nn.heads.vocabulary import Classifier, MLMHead, Pooler
from ptm_jax.nn.initializers import TruncatedNormal
from ptm_jax.systems.transformers import bert

HEADS = {
    "BertModel": ("pool",),
    "BertForPreTraining": ("mlm", "pool", "nsp"),
    "BertForMaskedLM": ("mlm",),
    "BertLMHeadModel": ("lm",),
    "BertForNextSentencePrediction": ("pool", "nsp"),
    "BertForSequenceClassification": ("classify",),
    "BertForMultipleChoice": ("choose",),
    "BertForTokenClassification": ("tag",),
    "BertForQuestionAnswering": ("span",),
}


def vocab_of(config: Config) -> Vocab:
    """Returns the size and special ids of a config. The ids of a tokenizer override them."""
    return Vocab(size=config.positive("vocab_size"), pad=config("pad_token_id", int, None))


def encoder(config: Config, causal: bool = False):
    """Returns the encoder of a BERT config; related families replace slots of it."""
    eps, init = config("layer_norm_eps", float, 1e-12), TruncatedNormal(config("initializer_range", float, 0.02))
    config.refuse("add_cross_attention", False, "a BERT with cross-attention is half of an encoder-decoder; not supported")
    config.refuse("position_embedding_type", "absolute", "relative keys of BERT are not supported")
    return transformer(
        vocab=vocab_of(config),
        layers=config.positive("num_hidden_layers"),
        width=config.positive("hidden_size"),
        heads=config.positive("num_attention_heads"),
        hidden=config.positive("intermediate_size"),
        positions=LearnedPositions(config.positive("max_position_embeddings"), initializer=init),
        types=config.positive("type_vocab_size", 2),
        eps=eps,
        activation=config.one_of("hidden_act", ACTIVATIONS, "gelu"),
        dropout=config("hidden_dropout_prob", float, 0.1),
        attention_dropout=config("attention_probs_dropout_prob", float, 0.1),
        direction="causal" if causal else "bidirectional",
        initializer=init,
    )


def record(config: Config, parent: System, core: Any, heads: tuple[str, ...], dropout: float | None = None) -> System:
    """Returns the parent's record with an encoder and the named heads. `dropout` is for task heads (None: the config's)."""
    init = core.stack.block.attention.initializer
    mlm = MLMHead(
        vocab=core.embed.vocab,
        activation=config.one_of("hidden_act", ACTIVATIONS, "gelu"),
        eps=config("layer_norm_eps", float, 1e-12),
        tied=config("tie_word_embeddings", bool, True),
        initializer=init,
    )
    pair = Classifier(2, initializer=init)
    named = {"mlm": mlm, "lm": mlm, "pool": Pooler(initializer=init), "nsp": pair, "sop": pair}
    named |= task_heads(config, Summary(initializer=init), init, dropout)
    chosen = {name: named[name] for name in heads}
    objective = objective_of(chosen, kind=PROBLEMS.get(config("problem_type", str, "")))
    return adopted(parent, Model(encoder=core, heads=chosen), objective)


def build(config: Config, architecture: str) -> System:
    core = encoder(config, causal=config("is_decoder", bool, False))
    return record(config, bert("", 2, 128, 2), core, HEADS[architecture])


def encoder_lines(ours: str = "encoder", root: str = "bert.") -> tuple[Line, ...]:
    """Returns the lines of the embeddings and layers under BERT's names."""
    block, layer = f"{ours}/stack/block", f"{root}encoder.layer.{{i}}"
    parts = tuple(f"{layer}.attention.{x}" for x in ("self.query", "self.key", "self.value", "output.dense"))
    return (
        Line(f"{ours}/embed/token", f"{root}embeddings.word_embeddings.weight"),
        Line(f"{ours}/embed/position/table", f"{root}embeddings.position_embeddings.weight"),
        Line(f"{ours}/embed/type", f"{root}embeddings.token_type_embeddings.weight"),
        Line(f"{ours}/embed/norm", f"{root}embeddings.LayerNorm", "norm"),
        *attention(f"{block}/attention", parts),
        Line(f"{block}/attention_norm", f"{layer}.attention.output.LayerNorm", "norm"),
        Line(f"{block}/ffn/up", f"{layer}.intermediate.dense", "dense"),
        Line(f"{block}/ffn/down", f"{layer}.output.dense", "dense"),
        Line(f"{block}/ffn_norm", f"{layer}.output.LayerNorm", "norm"),
    )


def vocabulary_lines(config: Config, head: str, root: str = "cls.predictions.") -> tuple[Line, ...]:
    """Returns the lines of the masked-LM head under BERT's names. An untied head has its own bias and an unused one."""
    tied = config("tie_word_embeddings", bool, True)
    return (
        Line(f"heads_{head}/dense", f"{root}transform.dense", "dense"),
        Line(f"heads_{head}/norm", f"{root}transform.LayerNorm", "norm"),
        Line(f"heads_{head}/bias", f"{root}bias" if tied else f"{root}decoder.bias"),
        Line(f"heads_{head}/table", f"{root}decoder.weight"),
    )


def task_lines(pooler: str = "bert.pooler.dense", classifier: str = "classifier") -> tuple[Line, ...]:
    """Returns the lines of the task heads under BERT's names. The pooler is the summary of the sequence-level heads."""
    return (
        Line("heads_classify/summary/dense", pooler, "dense"),
        Line("heads_classify/classes", classifier, "dense"),
        Line("heads_choose/summary/dense", pooler, "dense"),
        Line("heads_choose/score", classifier, "dense"),
        Line("heads_tag/classes", "classifier", "dense"),
        Line("heads_span/ends", "qa_outputs", "dense"),
    )


def class_lines(config: Config, root: str) -> tuple[Line, ...]:
    """Returns the lines of all layers of BERT's classes. The bare model is under `root`."""
    return (
        *encoder_lines(root=root),
        *vocabulary_lines(config, "mlm"),
        *vocabulary_lines(config, "lm"),
        Line("heads_pool/dense", f"{root}pooler.dense", "dense"),
        *(Line(f"heads_{head}/dense", "cls.seq_relationship", "dense") for head in ("nsp", "sop")),
        *task_lines(f"{root}pooler.dense"),
    )


def lines(config: Config, architecture: str) -> tuple[Line, ...]:
    return class_lines(config, "bert.")


def config(system: System) -> dict[str, Any]:
    core = system.towers["main"].encoder
    embed, block, vocab = core.embed, core.stack.block, core.embed.vocab
    heads = system.towers["main"].heads
    return {
        "vocab_size": vocab.size,
        "pad_token_id": vocab.pad,
        "hidden_size": block.attention.width,
        "num_hidden_layers": core.stack.layers,
        "num_attention_heads": block.attention.heads,
        "intermediate_size": block.ffn.hidden,
        "hidden_act": PUBLISHED[block.ffn.activation],
        "hidden_dropout_prob": block.dropout,
        "attention_probs_dropout_prob": block.attention.dropout,
        "max_position_embeddings": embed.position.size if isinstance(embed.position, LearnedPositions) else 512,
        "type_vocab_size": embed.types,
        "layer_norm_eps": block.attention_norm.eps,
        "initializer_range": embed.initializer.std,
        "is_decoder": core.direction == "causal",
        "tie_word_embeddings": tied(heads, "mlm", "lm"),
    } | task_fields(heads)


def ties(root: str) -> dict[str, str]:
    """Returns {duplicate: source} for the vocabulary head under BERT's names."""
    return {
        "cls.predictions.decoder.weight": f"{root}embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    }


BIASES = ("cls.predictions.bias", "cls.predictions.decoder.bias")
FILL = {BIASES[0]: BIASES[1:], BIASES[1]: BIASES[:1]}
"""Before Transformers 5 an untied head also had only one bias, under the first name."""

families.add(
    Family(
        model_type="bert",
        build=build,
        lines=lines,
        config=config,
        root="bert.",
        heads=HEADS,
        ties=ties("bert."),
        fill=FILL,
    )
)
