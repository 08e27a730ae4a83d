"""Texts generated from texts: summaries, translations, corrections.
The prediction file has a text per line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ptm_jax.inference import head_scores
from ptm_jax.objectives.text.seq2seq import Seq2Seq
from ptm_jax.tasks.formats.targets import Targets
from ptm_jax.tasks.formats.taskdata import Remarks
from ptm_jax.tasks.kinds.base import Cells, Kind, Metrics, register
from ptm_jax.tasks.metrics import rouge
from ptm_jax.tasks.translation import sacrebleu_scores


def predict(model, spec: Targets, examples, length: int, batch: int):
    remarks, tokenizer = Remarks(), model._tokenizer()
    size, sources = head_scores.room(tokenizer, False, length), []
    for example, record in zip(examples, spec.encode(tokenizer, examples), strict=True):
        ids = record["source"]
        remarks["cut"] += int(len(ids) > size)
        cut = tokenizer.decode(spec.shortened(ids, size), skip_specials=False)
        sources.append(example.source if len(ids) <= size else cut)
    limit = model.module.encoder.decoder.limit if model.module.encoder.reads_source else None
    new_tokens = (
        spec.answer if limit is None else min(spec.answer, limit - 1)
    )  # the start token takes a position
    return model.generate(sources, max_new_tokens=new_tokens, batch_size=batch), remarks


def _scores(examples, predictions, task) -> Mapping[str, sacrebleu_scores.Score]:
    spec = None if task is None else task.examples
    language = spec.languages[-1] if isinstance(spec, Targets) and spec.languages else ""
    gold = [example.target for example in examples]
    return sacrebleu_scores.scores(list(predictions), gold, language)


def bleu(examples, predictions, task=None) -> Metrics:
    """sacrebleu's BLEU and chrF, as fractions."""
    return {name: one.value for name, one in _scores(examples, predictions, task).items()}


def signatures(examples, predictions, task) -> Mapping[str, str]:
    """sacrebleu's signatures of BLEU and chrF."""
    if "bleu" not in task.metrics:
        return {}
    return {name: one.signature for name, one in _scores(examples, predictions, task).items()}


def rouge_f(examples, predictions, task=None) -> Metrics:
    """F of ROUGE-1, 2, 3, L and SU4, as ROUGE-1.5.5 stems and counts."""
    scores = rouge.scores(list(predictions), [example.target for example in examples])
    return {name: f for name, (f, _, _) in scores.items()}


def cells(spec, examples, predictions) -> Iterator[Cells]:
    """Rows with a source, its target, and the text that is generated."""
    for example, text in zip(examples, predictions, strict=True):
        yield {"text": example.source, "gold": example.target, "prediction": text}


KIND = register(
    Kind(
        examples=Targets,
        head="lm",
        objective=lambda spec: Seq2Seq(),
        predict=predict,
        measures={"bleu": bleu, "rouge": rouge_f},
        signatures=signatures,
        lines=lambda task, examples, predictions: iter(predictions),
        writes=True,
        cells=cells,
    )
)
