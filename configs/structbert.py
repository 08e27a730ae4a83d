"""StructBERT-large: shuffled trigrams put in order, and a pair is next, previous or unrelated. Row
47.

    ptm train configs/structbert.py --data 'data/wikibooks/*.txt.zst' --workdir runs/structbert
    ptm train structbert_mini --data TEXT --workdir runs/structbert_mini

Paper: Wang et al. 2019, arXiv 1908.04577.
Data: BERT's: English Wikipedia and BooksCorpus. The pattern in `data` is an example: `--data` names
your files.
Expected: SQuAD 1.1 dev 93.0 F1, SNLI test 91.7 (abstract). The abstract's GLUE 89.0 is an
ensemble's that begins at RoBERTa (as listings of the paper's results say): not this run's.
Measured: structbert_mini on WikiText-2's validation text, 2% of it held out: mlm_accuracy 0.111,
mlm_nll 6.122, nsp_accuracy 0.500, nsp_nll 1.079, shuffle_accuracy 0.179, shuffle_nll 5.721; unigram
baseline 6.378 (nats per token); 47 CPU-seconds on 2 cores.
Sizes: `ptm train structbert_base`.
"""

from ptm_jax.core.system import Experiment
from ptm_jax.systems import get

config = Experiment(
    system=get("structbert_large"),
    data=("data/wikibooks/*.txt.zst",),
    heldout=0.001,
    log_every=100,
    eval_every=10_000,
    save_every=10_000,
)
