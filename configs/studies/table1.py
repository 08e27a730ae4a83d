"""The survey's Table 1 as an experiment: one encoder on each pre-training task, with equal tokens,
then SST-2 and TREC.

    ptm reproduce table1 --tasks DATA --workdir runs/table1

A BERT of two layers and width 128 gets each task (`ptm train ENCODER+TASK`). A sequence-to-sequence
task puts source and target into one row. LM has a causal encoder and PLM XLNet's two streams, of
the same size. All have BERT's recipe. Losses of different tasks do not compare; scores after
fine-tuning do. DATA holds glue/sst2 and classification/trec. Published figures are of BERT-base
sizes and their corpora, compared with a copy of the paper's tables.
Status: measured, benchmarks/table1.md: PLM, MLM+NSP, DAE and Seq2Seq MLM are above the network
without pre-training.
"""

import dataclasses

from ptm_jax.core.system import Experiment
from ptm_jax.systems import get
from ptm_jax.systems.survey.compose import compose
from ptm_jax.systems.transformers.bert_gpt import gpt2, miniature
from ptm_jax.tuning.studies.studies import Axis, Budget, Published, Study, Transfer

SHARED = {
    "MLM": "roberta_mini", "Seq2Seq MLM": "mass_mini", "DAE": "bart_mini", "DIM": "infoword_mini",
    "MLM+NSP": "bert_tiny", "MLM+SOP": "albert_mini", "RTD": "electra_mini",
}  # fmt: skip
"""The survey's name of a task: a system that has it."""
base = get("bert_tiny")
base = dataclasses.replace(base, tokenizer=dataclasses.replace(base.tokenizer, specials="roberta"))
TASKS = {name: compose(base, get(task)) for name, task in SHARED.items()}
TASKS["LM"] = miniature(gpt2("", 2, 128, 2), "", steps=100, lr=2e-3, std=0.08, length=64)
TASKS["PLM"] = get("xlnet_mini")

T5 = "Raffel et al. 2020"
ELSEWHERE = "12 layers, 2^35 tokens of C4, GLUE's mean"

study = Study(
    name="table1",
    base=Experiment(system=base, save_every=0, eval_batches=16),
    axes=(
        Axis(name="system", values=TASKS),
        Axis(name="seed", values=(0, 1, 2)),
    ),
    budget=Budget(kind="tokens", amount=500_000),
    transfers=(
        Transfer(task="sst2", data="glue/sst2", epochs=1, length=48, lr=3e-4),
        Transfer(
            task="trec6", column="trec", data="classification/trec", epochs=2, length=32, lr=1e-3
        ),
    ),
    published=(
        Published(
            labels={"system": "LM"},
            measure="GLUE",
            value=80.69,
            source=f"{T5}, Table 4, prefix LM",
            differs=ELSEWHERE,
        ),
        Published(
            labels={"system": "MLM"},
            measure="GLUE",
            value=82.96,
            source=f"{T5}, Table 4, BERT-style",
            differs=ELSEWHERE,
        ),
        Published(
            labels={"system": "Seq2Seq MLM"},
            measure="GLUE",
            value=82.32,
            source=f"{T5}, Table 5, MASS-style",
            differs=ELSEWHERE,
        ),
    ),
    remark="A model of this size, after half a million tokens, says which tasks give a signal "
    "early, and nothing of their "
    "order after a hundred billion.",
)
