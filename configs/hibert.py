"""HIBERT: sentences are encoded, then the document of them; masked sentences are written again. Row
65.

    ptm train configs/hibert.py --data 'data/news/*.txt.zst' --workdir runs/hibert
    ptm train hibert_mini --data TEXT --workdir runs/hibert_mini

Paper: Zhang et al. 2019, arXiv 1905.06566.
Data: Gigaword and CNN/DailyMail, 6.6 million documents. The pattern in `data` is an example:
`--data` names your files.
Expected: CNN/DailyMail, extractive, ROUGE 42.37, 19.95, 38.83 after a second stage on that text and
training as a summariser (read in listings of the paper's results).
Measured: hibert_mini on WikiText-2's validation text, 2% of it held out: nll 5.903; unigram
baseline 6.422 (nats per token); 47 CPU-seconds on 2 cores.
Sizes: `ptm train hibert_s`.
"""

from ptm_jax.core.system import Experiment
from ptm_jax.systems import get

config = Experiment(
    system=get("hibert_m"),
    data=("data/news/*.txt.zst",),
    heldout=0.001,
    log_every=100,
    eval_every=10_000,
    save_every=10_000,
)
