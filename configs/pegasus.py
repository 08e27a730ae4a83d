"""PEGASUS-large: the sentences that tell most are taken out, and written by the decoder. Row 64.

    ptm train configs/pegasus.py --data tfds:c4/en --workdir runs/pegasus --set recipe.accumulate=16
    ptm train pegasus_mini --data TEXT --workdir runs/pegasus_mini

Paper: Zhang et al. 2020, arXiv 1912.08777.
Data: C4, or HugeNews, 1.5 billion articles.
Expected: ROUGE on C4: XSum 45.20, 22.06, 36.99, CNN/DailyMail 43.90, 21.20, 40.76; on HugeNews:
47.21, 24.56, 39.25 and 44.17, 21.47, 41.11. Base on C4: XSum 39.79, 16.58, 31.70 (Table 1; large
also in google-research/pegasus, README).
Measured: pegasus_mini on WikiText-2's validation text, 2% of it held out: nll 4.562; unigram
baseline 5.672 (nats per token); 35 CPU-seconds on 2 cores.
Sizes: `ptm train pegasus_base`.
"""

from ptm_jax.core.system import Experiment
from ptm_jax.systems import get

config = Experiment(
    system=get("pegasus_large"),
    data=("tfds:c4/en",),
    heldout=0.001,
    log_every=100,
    eval_every=10_000,
    save_every=10_000,
)
