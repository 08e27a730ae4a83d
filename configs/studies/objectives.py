"""Seven pre-training tasks with equal operations on one corpus, then SST-2.

    ptm study objectives --tasks DATA --workdir runs/objectives

One tokenizer, one size (2 layers, width 128) and one recipe. A task that costs more a step takes
fewer steps. Then every encoder is fine-tuned alike on DATA/glue/sst2. A denoising task runs on the
single network (its prefix form). The held-out losses are those of each task, in nats per predicted
token; they compare with their baseline only.
Measured: with a probe of its own in place of the fine-tuning, 8.41e12 operations on WikiText-2's
validation text, 12,000 sentences of SST-2, 3 seeds, 2 CPU cores, 12 minutes: LM 71.0, MLM 67.0,
span 69.3, PLM 72.8, RTD 62.8, infilling 70.5, T5 denoising 58.9, none 70.2.
Status: not measured as a study. A network this small, that has read this little, says nothing of
the tasks at their own size.
"""

import dataclasses

from ptm_jax.core.recipe import AdamW, Linear, Phase, Recipe
from ptm_jax.core.system import Experiment
from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec
from ptm_jax.systems import get
from ptm_jax.tuning.studies.studies import Axis, Budget, Study, Transfer

TASKS = {
    "LM": "megatron_gpt2_mini",
    "MLM": "bert_tiny+roberta_mini",
    "span": "bert_tiny+spanbert_mini",
    "PLM": "xlnet_mini",
    "RTD": "bert_tiny+electra_mini",
    "infilling": "bert_tiny+bart_mini",
    "T5 denoising": "bert_tiny+t5_mini",
}
"""{name in the table: encoder and task}."""
OPERATIONS = 8.41e12

base = dataclasses.replace(
    get(TASKS["MLM"]),
    tokenizer=TokenizerSpec(
        kind="unigram", vocab=4096, lowercase=True, specials="xlnet", sentinels=32
    ),
    recipe=Recipe(
        phases=(Phase(steps=1200, batch=16, length=128),),
        lr=2e-3,
        optimizer=AdamW(b2=0.98),
        schedule=Linear(warmup=120),
    ),
)

study = Study(
    name="objectives",
    base=Experiment(system=base, save_every=0, heldout=0.05),
    axes=(
        Axis(name="system", values={name: get(task) for name, task in TASKS.items()}),
        Axis(name="budget", values={"pre-trained": OPERATIONS, "one step": 6.7e9}),
        Axis(name="seed", values=(0, 1, 2)),
    ),
    budget=Budget(kind="operations", amount=OPERATIONS),
    transfers=(Transfer(task="sst2", data="glue/sst2", epochs=1, length=64, lr=3e-4),),
    keep=lambda labels: labels["budget"] == "pre-trained" or labels["system"] == "MLM",
    remark="`one step` is the network without pre-training.",
)
