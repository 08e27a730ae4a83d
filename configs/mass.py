"""MASS: the decoder predicts a fragment, half of the text, that the encoder sees masked. Row 54.

    ptm train configs/mass.py --data 'data/newscrawl/*.txt.zst' --workdir runs/mass
    ptm train mass_mini --data TEXT --workdir runs/mass_mini

Paper: Song et al. 2019, arXiv 1905.02450.
Data: News Crawl 2007 to 2017 in both languages (one stream of text here). The pattern in `data` is
an example: `--data` names your files.
Expected: unsupervised translation, newstest2014, BLEU 37.5 English-French and 34.9 French-English:
after back-translation, which is no part of this run. Not compared with the table.
Measured: mass_mini on WikiText-2's validation text, 2% of it held out: nll 5.797; unigram baseline
6.422 (nats per token); 44 CPU-seconds on 2 cores.
"""

from ptm_jax.core.system import Experiment
from ptm_jax.systems import get

config = Experiment(
    system=get("mass_enfr"),
    data=("data/newscrawl/*.txt.zst",),
    heldout=0.001,
    log_every=100,
    eval_every=10_000,
    save_every=10_000,
)
