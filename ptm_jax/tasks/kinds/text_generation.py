"""Texts generated from texts: summaries, translations, corrections.
The prediction file has a text per line."""

from __future__ import annotations

from ptm_jax.inference import head_scores
from ptm_jax.objectives.text.seq2seq import Seq2Seq
from ptm_jax.tasks.formats.targets import Targets
from ptm_jax.tasks.formats.taskdata import Remarks
from ptm_jax.tasks.kinds.base import Kind, Metrics, register
from ptm_jax.tasks.metrics import rouge


def predict(model, spec: Targets, examples, length: int, batch: int):
    remarks, tokenizer = Remarks(), model._tokenizer()
    size, sources = head_scores.room(tokenizer, False, length), []
    for example, ids in zip(
        examples, tokenizer.encode_batch([e.source for e in examples]), strict=True
    ):
        remarks["cut"] += int(len(ids) > size)
        sources.append(example.source if len(ids) <= size else tokenizer.decode(ids[:size]))
    limit = model.module.encoder.decoder.limit if model.module.encoder.reads_source else None
    new_tokens = (
        spec.answer if limit is None else min(spec.answer, limit - 1)
    )  # the start token takes a position
    return model.generate(sources, max_new_tokens=new_tokens, batch_size=batch), remarks


def bleu(examples, predictions, task=None) -> Metrics:
    """sacrebleu's BLEU and chrF, as fractions."""
    import sacrebleu

    gold = [[example.target for example in examples]]
    return {
        "bleu": sacrebleu.corpus_bleu(list(predictions), gold).score / 100,
        "chrf": sacrebleu.corpus_chrf(list(predictions), gold).score / 100,
    }


def rouge_f(examples, predictions, task=None) -> Metrics:
    """F of ROUGE-1, 2, 3, L and SU4, as ROUGE-1.5.5 stems and counts."""
    scores = rouge.scores(list(predictions), [example.target for example in examples])
    return {name: f for name, (f, _, _) in scores.items()}


KIND = register(
    Kind(
        examples=Targets,
        head="lm",
        objective=lambda spec: Seq2Seq(),
        predict=predict,
        measures={"bleu": bleu, "rouge": rouge_f},
        lines=lambda task, examples, predictions: iter(predictions),
        writes=True,
    )
)
