"""The survey's Table 4 at a published size, to be planned and launched: BERT-base, three seeds,
then its ways of use.

    ptm reproduce table4 --size pod --workdir runs/table4_pod --topology v5p:4x4x8
    ptm study table4_pod --tasks DATA --workdir runs/table4_pod

The ways of use are those of table4, at BERT's fine-tuning rate.
"""

import dataclasses

from ptm_jax.adapt.modules.representation import Recurrent, Representation
from ptm_jax.adapt.parameters.freezing import FeatureExtraction
from ptm_jax.core.system import Experiment
from ptm_jax.systems import get
from ptm_jax.tuning.studies.studies import Axis, Budget, Study, Transfer

WAYS = {
    "embedding ft": (Representation(kind="embedding"), Recurrent()),
    "embedding fe": (Representation(kind="embedding"), Recurrent(), FeatureExtraction()),
    "top ft": (),
    "top fe": (Recurrent(), FeatureExtraction()),
    "all fe": (Representation(), Recurrent(), FeatureExtraction()),
}
base = get("bert_base")
base = dataclasses.replace(
    base, recipe=dataclasses.replace(base.recipe, phases=base.recipe.phases[-1:])
)

study = Study(
    name="table4_pod",
    base=Experiment(system=base, data=("prepared",), mesh=(("data", 128),), rules="zero"),
    axes=(Axis(name="seed", values=(0, 1, 2)),),
    budget=Budget(kind="tokens", amount=1_000_000 * 256 * 512),
    transfers=tuple(
        Transfer(task=task, data=data, column=f"{task} {way}", lr=2e-5, adapt=adapt)
        for task, data in (("sst2", "glue/sst2"), ("trec6", "classification/trec"))
        for way, adapt in WAYS.items()
    ),
)
