"""The survey's Table 2 at published sizes, to be planned and launched: its base models under the
operations of BERT-base.

    ptm reproduce table2 --size pod --workdir runs/table2_pod --topology v5p:4x4x8

Every model has BERT-base's recipe and 1e20 operations, so that larger steps are fewer steps.
"""

import dataclasses

from ptm_jax.core.system import Experiment
from ptm_jax.systems import get
from ptm_jax.tuning.studies.studies import Axis, Budget, Study

NAMES = (
    "gpt bert_base roberta_base spanbert_base albert_base electra_base xlnet_base "
    "unilm_base infoword_base bart_base t5_base"
)
base = get("bert_base")
recipe = dataclasses.replace(base.recipe, phases=base.recipe.phases[-1:])
base = dataclasses.replace(
    base, recipe=recipe, tokenizer=dataclasses.replace(base.tokenizer, sentinels=100)
)

study = Study(
    name="table2_pod",
    base=Experiment(system=base, data=("prepared",), mesh=(("data", 128),), rules="zero"),
    axes=(Axis(name="system", values=tuple(NAMES.split())), Axis(name="seed", values=(0, 1, 2))),
    budget=Budget(kind="operations", amount=1e20),
)
