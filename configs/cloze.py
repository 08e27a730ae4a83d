"""Cloze-driven pre-training: two causal towers, and a layer that predicts each word from both
sides. Row 58.

    ptm train configs/cloze.py --data 'data/news/*.txt.zst' --workdir runs/cloze
    ptm train cloze_cnn_mini --data TEXT --workdir runs/cloze_cnn_mini

Paper: Baevski et al. 2019, arXiv 1903.07785.
Data: news text and Common Crawl. The pattern in `data` is an example: `--data` names your files.
Expected: of this model: CoNLL-2003 93.5 F1, Penn Treebank parsing 95.6 F1, SST-2 94.6. Read in
listings of the paper's results; the figures of the base and of byte pairs were not.
Measured: on WikiText-2's validation text, 2% of it held out, in nats per token: cloze_cnn_mini:
cloze_nll 4.790; unigram baseline 5.587, of which the unknown word is one; 65 CPU-seconds on 2 cores
that others used too. cloze_mini: 5.507 and 6.422; 54 CPU-seconds likewise.
Sizes: `ptm train cloze_cnn_base`; over byte pairs `ptm train cloze_large`.
"""

from ptm_jax.core.system import Experiment
from ptm_jax.systems import get

config = Experiment(
    system=get("cloze_cnn_large"),
    data=("data/news/*.txt.zst",),
    heldout=0.001,
    log_every=100,
    eval_every=10_000,
    save_every=10_000,
)
