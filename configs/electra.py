"""ELECTRA-small: a generator fills masked places, the tower that is kept finds the words that it
changed. Row 50.

    ptm train configs/electra.py --data 'data/wikibooks/*.txt.zst' --workdir runs/electra
    ptm train electra_mini --data TEXT --workdir runs/electra_mini

Paper: Clark et al. 2020, arXiv 2003.10555.
Data: small and base BERT's (English Wikipedia and BooksCorpus), large XLNet's. The pattern in
`data` is an example: `--data` names your files.
Expected: GLUE dev average 79.9 with 14 M parameters, base 85.1 (Table 1); large, 1.75 M steps: 89.5
dev (Table 2), SQuAD 2.0 dev 88.0 EM, 90.6 F1 (Table 4). The survey's Table 2 has 88.6.
Measured: electra_mini on WikiText-2's validation text, 2% of it held out: mlm_accuracy 0.143,
mlm_nll 6.030, rtd_accuracy 0.868, rtd_nll 0.384, rtd_share 0.132; unigram baseline 6.378 (nats per
token); 66 CPU-seconds on 2 cores.
Sizes: `ptm train electra_small_plus`, `electra_base`, `electra_large`.
"""

from ptm_jax.core.system import Experiment
from ptm_jax.systems import get

config = Experiment(
    system=get("electra_small"),
    data=("data/wikibooks/*.txt.zst",),
    heldout=0.001,
    log_every=100,
    eval_every=10_000,
    save_every=10_000,
)
