"""The survey's Table 1 at a published size, to be planned and launched: BERT-base on each task, 131
billion tokens.

    ptm reproduce table1 --size pod --workdir runs/table1_pod --topology v5p:4x4x8
    ptm launch gke configs/studies/table1_pod.py --workdir /w/table1 --topology v5p:4x4x8 \
        --image IMAGE --mount CLAIM=/w

The tokens are those of BERT-base (1,000,000 steps of 256 rows of 512: Devlin et al. 2019, appendix
A.2).
"""

import dataclasses

from ptm_jax.core.system import Experiment
from ptm_jax.systems import get
from ptm_jax.systems.survey.compose import compose
from ptm_jax.tuning.studies.studies import Axis, Budget, Study

SHARED = {
    "MLM": "roberta_base", "Seq2Seq MLM": "mass_enfr", "DAE": "bart_base", "DIM": "infoword_base",
    "MLM+NSP": "bert_base",
    "MLM+SOP": "albert_base", "RTD": "electra_base",
}  # fmt: skip
base = get("bert_base")
base = dataclasses.replace(
    base, recipe=dataclasses.replace(base.recipe, phases=base.recipe.phases[-1:])
)
base = dataclasses.replace(base, tokenizer=dataclasses.replace(base.tokenizer, specials="roberta"))
TASKS = {name: compose(base, get(task)) for name, task in SHARED.items()} | {
    "LM": get("gpt"),
    "PLM": get("xlnet_base"),
}

study = Study(
    name="table1_pod",
    base=Experiment(system=base, data=("prepared",), mesh=(("data", 128),), rules="zero"),
    axes=(Axis(name="system", values=TASKS), Axis(name="seed", values=(0, 1, 2))),
    budget=Budget(kind="tokens", amount=1_000_000 * 256 * 512),
)
