"""Cloze-driven pre-training: two causal towers, and a layer that tells each word from both sides. Row 58.

    ptm train configs/cloze.py --data 'data/news/*.txt.zst' --workdir runs/cloze
    ptm train cloze_mini --data TEXT --workdir runs/cloze_mini

Paper: Baevski et al. 2019, arXiv 1903.07785.
Data: news text and Common Crawl. The pattern in `data` is an example: `--data` names your files.
Expected: of the large model with characters as input, which this record lacks: CoNLL-2003 93.5 F1, Penn Treebank
parsing 95.6 F1, SST-2 94.6. Read in listings of the paper's results; the figures of byte pairs were not.
Measured: cloze_mini on WikiText-2's validation text, 2% of it held out: cloze_nll 5.150; unigram baseline 6.422 (nats
per token); 41 CPU-seconds on 2 cores.
Sizes: `ptm train cloze_large`.
"""

from ptm_jax.core.system import Experiment
from ptm_jax.systems import get

config = Experiment(
    system=get("cloze_base"),
    data=("data/news/*.txt.zst",),
    heldout=0.001,
    log_every=100,
    eval_every=10_000,
    save_every=10_000,
)
