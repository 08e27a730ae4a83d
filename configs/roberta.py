"""RoBERTa-large: BERT without next sentences, on full rows, in large batches, for longer. Row 45.

    ptm train configs/roberta.py --data 'data/web/*.txt.zst' --workdir runs/roberta \
        --set recipe.accumulate=8
    ptm train roberta_mini --data TEXT --workdir runs/roberta_mini

Paper: Liu et al. 2019, arXiv 1907.11692.
Data: BooksCorpus, Wikipedia, CC-News, OpenWebText and Stories, 160 GB. The pattern in `data` is an
example: `--data` names your files.
Expected: GLUE test average 88.5 (an ensemble's), MNLI-m dev 90.2 (Table 5); SQuAD 1.1 dev 88.9 EM,
94.6 F1; SQuAD 2.0 dev 86.5, 89.4 (Table 6). Base: MNLI dev 87.6, SST-2 94.8 (fairseq's README).
Measured: roberta_mini on WikiText-2's validation text, 2% of it held out: mlm_accuracy 0.110,
mlm_nll 6.171; unigram baseline 6.520 (nats per token); 47 CPU-seconds on 2 cores.
Sizes: `ptm train roberta_base`.
"""

from ptm_jax.core.system import Experiment
from ptm_jax.systems import get

config = Experiment(
    system=get("roberta_large"),
    data=("data/web/*.txt.zst",),
    heldout=0.001,
    log_every=100,
    eval_every=10_000,
    save_every=10_000,
)
