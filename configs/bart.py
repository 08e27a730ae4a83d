"""BART-large: sentences permuted and spans infilled, and the whole text written again. Row 55.

    ptm train configs/bart.py --data 'data/web/*.txt.zst' --workdir runs/bart \
        --set recipe.accumulate=8
    ptm train bart_mini --data TEXT --workdir runs/bart_mini

Paper: Lewis et al. 2020, arXiv 1910.13461.
Data: RoBERTa's: BooksCorpus, Wikipedia, CC-News, OpenWebText and Stories, 160 GB. The pattern in
`data` is an example: `--data` names your files.
Expected: SQuAD 1.1 dev 88.8 EM, 94.6 F1, MNLI-m 89.9 (Table 2); CNN/DailyMail ROUGE 44.16, 21.28,
40.90, XSum 45.14, 22.27, 37.25 (Table 3).
Measured: bart_mini on WikiText-2's validation text, 2% of it held out: nll 5.771; unigram baseline
6.520 (nats per token); 50 CPU-seconds on 2 cores.
Sizes: `ptm train bart_base`.
"""

from ptm_jax.core.system import Experiment
from ptm_jax.systems import get

config = Experiment(
    system=get("bart_large"),
    data=("data/web/*.txt.zst",),
    heldout=0.001,
    log_every=100,
    eval_every=10_000,
    save_every=10_000,
)
