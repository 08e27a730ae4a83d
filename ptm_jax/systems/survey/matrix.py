"""The compatibility table of encoders and pre-training tasks, with one small system for each."""

from __future__ import annotations

from ptm_jax.systems.survey.compose import matrix

# {name in the table: system that provides the encoder or the task}
ENCODERS = {
    "BERT": "bert_mini",
    "GPT": "gpt_mini",
    "ALBERT": "albert_mini",
    "Transformer-XL": "transformer_xl_mini",
    "XLNet": "xlnet_mini",
    "UniLMv2": "unilmv2_mini",
    "CTRL": "ctrl_mini",
    "Universal": "universal_mini",
    "LSTM": "lstm_mini",
    "Tree-LSTM": "tree_lstm_mini",
    "two towers": "cloze_mini",
    "BART": "bart_mini",
    "T5": "t5_mini",
    "HIBERT": "hibert_mini",
    "ELECTRA": "electra_mini",
    "KnowBERT": "knowbert_mini",
}
TASKS = {
    "LM": "gpt_mini",
    "BiLM": "bilm_mini",
    "cloze": "cloze_mini",
    "MLM": "roberta_mini",
    "wwm": "bert_wwm_mini",
    "MLM+NSP": "bert_base",
    "span+SBO": "spanbert_mini",
    "StructBERT": "structbert_mini",
    "SOP": "albert_mini",
    "RTD": "electra_mini",
    "PLM": "xlnet_mini",
    "UniLM": "unilm_mini",
    "PMLM": "unilmv2_mini",
    "DIM": "infoword_mini",
    "MASS": "mass_mini",
    "infilling": "bart_mini",
    "T5 spans": "t5_mini",
    "GSG": "pegasus_mini",
    "sentences": "hibert_mini",
    "contrast": "contrast_mini",
    "ranking": "ranking_mini",
    "noisy words": "noisywords_mini",
    "noisy pairs": "noisypairs_mini",
    "dEA": "ernie_thu_mini",
    "EL": "knowbert_mini",
    "KE": "kepler_mini",
    "ERD": "wklm_mini",
    "LRC": "libert_mini",
    "LA-MLM": "sentilr_mini",
    "supersenses": "sensebert_mini",
}


def cells() -> dict[tuple[str, str], str | None]:
    """Returns {(encoder, task): the refusal, or None}, with the names of the table."""
    from ptm_jax import systems

    rows = {name: systems.get(system) for name, system in ENCODERS.items()}
    columns = {name: systems.get(system) for name, system in TASKS.items()}
    return matrix(rows, columns)
