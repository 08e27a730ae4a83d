"""The survey's Table 3 at published sizes, to be planned and launched: BERT-base, all of SST-2,
three seeds of a method.

    ptm reproduce table3 --size pod --workdir runs/table3_pod --topology h100x8

Batch 32 and 2e-5 are BERT's; 6,315 steps are three epochs of the 67,349 examples. The runs begin
with a checkpoint in the folder bert-base-uncased, and their data are in the folder of `--tasks`, at
glue/sst2.
"""

import dataclasses

from ptm_jax.core.recipe import Phase
from ptm_jax.systems import get
from ptm_jax.tuning import finetuning, model_facts
from ptm_jax.tuning.studies.smaller_runs import Compressed
from ptm_jax.tuning.studies.studies import Axis, Study

by = Compressed.by
METHODS = {
    "teacher": None,
    "int8": by("int8"),
    "Q8BERT": by("q8bert"),
    "Q-BERT": by("qbert(examples=6700)"),
    "magnitude 0.7": by("magnitude(share=0.7)"),
    "deletion 0.7": by("magnitude(share=0.7, when='before', restore='zero')"),
    "heads 0.3": by("heads(share=0.3)"),
    "gates": by("gates(weight=0.02)"),
    "columns 0.5": by("columns(share=0.5)"),
    "layers 0.5": by("layers(drop=0.5)"),
    "DistilBERT": by("distilbert"),
    "TinyBERT": by("tinybert", "tinybert_prediction"),
    "BERT-PKD": by("pkd"),
    "PD": by("pd(keep=6)"),
    "MiniLM": by("minilm(keep=6)", ""),
    "BiLSTM": by("bilstm"),
    "BlendCNN": by("blendcnn"),
    "Theseus": by("theseus"),
    "FastBERT": by("fastbert", speed=0.5),
}
recipe = finetuning.usual(Phase(steps=6315, batch=32, length=128), 2e-5)
base = finetuning.from_scratch(
    get("bert_base"), "sst2", recipe, ("glue/sst2",), dropout=0.1, init="bert-base-uncased"
)

study = Study(
    name="table3_pod",
    base=dataclasses.replace(base, mesh=(("data", 8),), save_every=1000),
    task="sst2",
    axes=(Axis(name="compression", values=METHODS), Axis(name="seed", values=(0, 1, 2))),
    metrics=("accuracy", *model_facts.COLUMNS),
)
