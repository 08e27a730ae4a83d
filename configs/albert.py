"""ALBERT-base: one set of parameters for all layers, narrow tables, n-grams masked, sentence order
predicted. Row 51.

    ptm train configs/albert.py --data 'data/wikibooks/*.txt.zst' --workdir runs/albert \
        --set recipe.accumulate=16
    ptm train albert_mini --data TEXT --workdir runs/albert_mini

Paper: Lan et al. 2020, arXiv 1909.11942.
Data: English Wikipedia and BooksCorpus, 16 GB. The pattern in `data` is an example: `--data` names
your files.
Expected: average of five tasks 80.1: SQuAD 1.1 dev 89.3 F1, SQuAD 2.0 dev 80.0 F1, MNLI 81.6, SST-2
90.3, RACE 64.0; large 82.4, xlarge 85.5, xxlarge 88.7 (Table 2, 125,000 steps); xxlarge as released
91.0, version 2: 82.3, 85.7, 87.9, 90.9 (google-research/albert, README).
Measured: albert_mini on WikiText-2's validation text, 2% of it held out: mlm_accuracy 0.102,
mlm_nll 5.897, sop_accuracy 0.456, sop_nll 0.695; unigram baseline 6.034 (nats per token); 44
CPU-seconds on 2 cores.
Sizes: `ptm train albert_large`, `albert_xlarge`, `albert_xxlarge`, each also `_v2`;
`albert_base_not_shared` and its kin for Table 4.
"""

from ptm_jax.core.system import Experiment
from ptm_jax.systems import get

config = Experiment(
    system=get("albert_base"),
    data=("data/wikibooks/*.txt.zst",),
    heldout=0.001,
    log_every=100,
    eval_every=10_000,
    save_every=10_000,
)
