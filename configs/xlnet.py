"""XLNet-large: words in a drawn order, over two streams and a memory. Row 49.

    ptm train configs/xlnet.py --data 'data/web/*.txt.zst' --workdir runs/xlnet
    ptm train xlnet_mini --data TEXT --workdir runs/xlnet_mini

Paper: Yang et al. 2019, arXiv 1906.08237.
Data: BooksCorpus, Wikipedia, Giga5, ClueWeb 2012-B and Common Crawl, 33 billion pieces. The pattern
in `data` is an example: `--data` names your files.
Expected: SQuAD 2.0 dev 87.9 EM, 90.6 F1; SQuAD 1.1 dev 89.7, 95.1; MNLI dev 90.8; RACE test 85.4
(Tables 2, 3 and 5). The survey's GLUE 90.5 is an ensemble's.
Measured: xlnet_mini on WikiText-2's validation text, 2% of it held out: plm_accuracy 0.239, plm_nll
5.215; unigram baseline 5.672 (nats per token); 57 CPU-seconds on 2 cores.
Sizes: `ptm train xlnet_base`.
"""

from ptm_jax.core.system import Experiment
from ptm_jax.systems import get

config = Experiment(
    system=get("xlnet_large"),
    data=("data/web/*.txt.zst",),
    heldout=0.001,
    log_every=100,
    eval_every=10_000,
    save_every=10_000,
)
