"""The survey's Table 4 as an experiment: where a pre-trained model is used, and whether it is tuned
or gives features.

    ptm reproduce table4 --tasks DATA --workdir runs/table4

A BERT of two layers and width 128, pre-trained on two million tokens, on SST-2 and TREC: its
embedding layer alone, its top layer and a mix of all layers, fine-tuned (ft) and as frozen features
(fe); and the same network without pre-training (one step). Over embeddings and over features there
is the BiLSTM of 200 units of Peters et al.: a head on the first token alone would see the same
embedding in every row. DATA holds glue/sst2 and classification/trec.
Paper: Peters et al. 2019, arXiv 1903.05987 (to tune or not to tune). Its Table 2 was not at hand:
neither its two figures nor which split they are of have been compared.
Status: whole: 6 of 6 runs, benchmarks/table4.md.
"""

from ptm_jax.adapt.modules.representation import Recurrent, Representation
from ptm_jax.adapt.parameters.freezing import FeatureExtraction
from ptm_jax.core.system import Experiment
from ptm_jax.systems import get
from ptm_jax.tuning.studies.studies import Axis, Budget, Published, Study, Transfer

WAYS = {
    "embedding ft": (Representation(kind="embedding"), Recurrent()),
    "embedding fe": (Representation(kind="embedding"), Recurrent(), FeatureExtraction()),
    "top ft": (),
    "top fe": (Recurrent(), FeatureExtraction()),
    "all fe": (Representation(), Recurrent(), FeatureExtraction()),
}
TASKS = {
    "sst2": {"task": "sst2", "data": "glue/sst2", "epochs": 1, "length": 64},
    "trec": {"task": "trec6", "data": "classification/trec", "epochs": 2, "length": 32},
}
PETERS = "Peters et al. 2019, Table 2, BERT-base (not compared)"

study = Study(
    name="table4",
    base=Experiment(system=get("bert_tiny"), save_every=0, eval_batches=16),
    axes=(
        Axis(name="budget", values={"pre-trained": 2_000_000, "not pre-trained": 1024}),
        Axis(name="seed", values=(0, 1, 2)),
    ),
    budget=Budget(kind="tokens", amount=2_000_000),
    transfers=tuple(
        Transfer(column=f"{name} {way}", lr=1e-3, adapt=adapt, **task)
        for name, task in TASKS.items()
        for way, adapt in WAYS.items()
    ),
    published=tuple(
        Published(
            labels={"budget": "pre-trained"},
            measure=f"sst2 {way}",
            value=value,
            source=PETERS,
            differs="BERT-base",
        )
        for way, value in (("top ft", 0.935), ("all fe", 0.930))
    ),
    remark="The difference between the two lines of a task is what pre-training of this size is "
    "worth in each way of use.",
)
