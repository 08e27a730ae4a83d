"""UniLM-large: one network that reads both ways, either way, and source before target. Row 52.

    ptm train configs/unilm.py --data 'data/wikibooks/*.txt.zst' --workdir runs/unilm
    ptm train unilm_mini --data TEXT --workdir runs/unilm_mini

Paper: Dong et al. 2019, arXiv 1905.03197.
Data: English Wikipedia and BooksCorpus. The pattern in `data` is an example: `--data` names your
files.
Expected: CNN/DailyMail ROUGE-L 40.51, Gigaword ROUGE-L 35.75, SQuAD question generation BLEU-4
22.12 (abstract); GLUE 80.8 (the survey's Table 2). The paper starts from BERT-large, this run from
nothing.
Measured: unilm_mini on WikiText-2's validation text, 2% of it held out: mlm_accuracy 0.078, mlm_nll
6.176; unigram baseline 6.378 (nats per token); 44 CPU-seconds on 2 cores.
Sizes: `ptm train unilm_base`.
"""

from ptm_jax.core.system import Experiment
from ptm_jax.systems import get

config = Experiment(
    system=get("unilm_large"),
    data=("data/wikibooks/*.txt.zst",),
    heldout=0.001,
    log_every=100,
    eval_every=10_000,
    save_every=10_000,
)
