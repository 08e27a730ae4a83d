"""InfoWord-base: masked words, and the mutual information of a sentence and an n-gram of it. Row
57.

    ptm train configs/infoword.py --data 'data/wikibooks/*.txt.zst' --workdir runs/infoword
    ptm train infoword_mini --data TEXT --workdir runs/infoword_mini

Paper: Kong et al. 2020, arXiv 1910.08350.
Data: English Wikipedia and BooksCorpus. The pattern in `data` is an example: `--data` names your
files.
Expected: GLUE 81.1 (the survey's Table 2, without WNLI; it does not say which size, and the paper's
table was not read).
Measured: infoword_mini on WikiText-2's validation text, 2% of it held out: dim_accuracy 0.073,
dim_nll 2.668, mlm_accuracy 0.095, mlm_nll 6.169; unigram baseline 6.378 (nats per token); 46
CPU-seconds on 2 cores.
Sizes: `ptm train infoword_large`.
"""

from ptm_jax.core.system import Experiment
from ptm_jax.systems import get

config = Experiment(
    system=get("infoword_base"),
    data=("data/wikibooks/*.txt.zst",),
    heldout=0.001,
    log_every=100,
    eval_every=10_000,
    save_every=10_000,
)
