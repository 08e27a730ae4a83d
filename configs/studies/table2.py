"""The survey's Table 2 as an experiment: its families under equal operations, fine-tuned on SST-2
and TREC.

    ptm reproduce table2 --tasks DATA --workdir runs/table2

Every family has two layers of width 128 (its `_mini` in `ptm list`) and the recipe of BERT's. A run
has 4e11 operations, so that a model with a larger step takes fewer of them. "none" is BERT at a
rate of 0: fine-tuned from its initial weights. DATA holds glue/sst2 and classification/trec.
Published figures: compared with the READMEs of zihangdai/xlnet (BERT, XLNet), fairseq (RoBERTa,
BART) and google-research/electra, and, of ALBERT and GPT, with copies of the tables.
Status: measured, benchmarks/table2.md: XLNet alone is above the network without pre-training.
"""

import dataclasses

from ptm_jax.core.system import Experiment
from ptm_jax.systems import get
from ptm_jax.systems.transformers.bert_gpt import gpt2, miniature
from ptm_jax.tuning.studies.studies import Axis, Budget, Published, Study, Transfer

BERT = get("bert_tiny")
FAMILIES = {
    "none": dataclasses.replace(
        BERT, recipe=dataclasses.replace(BERT.recipe, lr_rules=(("", 0.0),))
    ),
    "GPT": miniature(gpt2("", 2, 128, 2), "", steps=100, lr=2e-3, std=0.08, length=64),
    "BERT": "bert_tiny",
    "BERT-wwm": "bert_wwm_mini",
    "RoBERTa": "roberta_mini",
    "SpanBERT": "spanbert_mini",
    "StructBERT": "structbert_mini",
    "ALBERT": "albert_mini",
    "ELECTRA": "electra_mini",
    "XLNet": "xlnet_mini",
    "UniLM": "unilm_mini",
    "InfoWord": "infoword_mini",
    "MASS": "mass_mini",
    "BART": "bart_mini",
    "T5": "t5_mini",
}
DEV = "Lan et al. 2020, Table 9, dev"
SST2 = {
    "GPT": (91.3, "Devlin et al. 2019, Table 1, test"),
    "BERT": (93.2, f"{DEV}, large"),
    "XLNet": (95.6, f"{DEV}, large"),
    "RoBERTa": (96.4, f"{DEV}, large"),
    "ALBERT": (96.9, f"{DEV}, xxlarge, 1.5 M steps"),
    "ELECTRA": (96.9, "Clark et al. 2020, Table 2, dev, large"),
    "BART": (96.6, "Lewis et al. 2020, Table 2, dev, large"),
}
ELSEWHERE = (
    "110 to 360 M parameters, 5 to 160 GB of text, the 67,349 examples of SST-2 (here 12,000)"
)

base = dataclasses.replace(
    BERT, tokenizer=dataclasses.replace(BERT.tokenizer, specials="roberta", sentinels=4)
)

study = Study(
    name="table2",
    base=Experiment(system=base, save_every=0, eval_batches=16),
    axes=(
        Axis(name="system", values=FAMILIES),
        Axis(name="seed", values=(0, 1, 2)),
    ),
    budget=Budget(kind="operations", amount=4e11),
    transfers=(
        Transfer(task="sst2", data="glue/sst2", epochs=1, length=48, lr=3e-4),
        Transfer(
            task="trec6", column="trec", data="classification/trec", epochs=2, length=32, lr=1e-3
        ),
    ),
    published=tuple(
        Published(
            labels={"system": name},
            measure="sst2",
            value=value / 100,
            source=source,
            differs=ELSEWHERE,
        )
        for name, (value, source) in SST2.items()
    ),
    remark="Runs of this size show what a family has learned after some 100 steps: masked models "
    "little more than how often "
    "words occur. They do not order the models of the literature.",
)
