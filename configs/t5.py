"""T5-base: spans replaced by sentinels, and written out behind their sentinels. Versions 1.0 and
1.1. Row 56.

    ptm train configs/t5.py --data tfds:c4/en --workdir runs/t5
    ptm train t5_mini --data TEXT --workdir runs/t5_mini
    ptm train t5_1_1_mini --data TEXT --workdir runs/t5_1_1_mini

Paper: Raffel et al. 2020, arXiv 1910.10683; 1.1 is Shazeer 2020, arXiv 2002.05202.
Data: C4, 745 GB of text.
Expected: GLUE average 82.7 (small 77.4, large 86.4, 3B 88.5, 11B 90.3) with the supervised tasks
mixed in, which this run leaves out (Table 14, of which only 11B's was compared); the survey has
89.7. Without them and with 2^19 steps of 128 rows, the baseline: GLUE 83.28, SQuAD 80.88 EM (Table
1). 1.1 has no table of its own; its GEGLU reaches 1.633 nats held out on C4, ReLU 1.677 (Shazeer
2020, Table 1, not compared).
Measured: t5_mini on WikiText-2's validation text, 2% of it held out: nll 4.080; unigram baseline
5.669 (nats per token); 67 CPU-seconds on 2 cores.
Measured: t5_1_1_mini on WikiText-2's validation text, 2% of it held out: nll 3.872; unigram
baseline 5.669 (nats per token); 45 CPU-seconds on 2 cores.
Sizes: `ptm train t5_small`, `t5_large`, `t5_3b`, `t5_11b` (on a mesh); `t5_1_1_small` to
`t5_1_1_xxl`.
"""

from ptm_jax.core.system import Experiment
from ptm_jax.systems import get

config = Experiment(
    system=get("t5_base"),
    data=("tfds:c4/en",),
    heldout=0.001,
    log_every=100,
    eval_every=10_000,
    save_every=10_000,
)
