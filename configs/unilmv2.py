"""UniLMv2-base: autoencoding and partially autoregressive in one pass, by pseudo masks. Row 53.

    ptm train configs/unilmv2.py --data 'data/web/*.txt.zst' --workdir runs/unilmv2 \
        --set recipe.accumulate=16
    ptm train unilmv2_mini --data TEXT --workdir runs/unilmv2_mini

Paper: Bao et al. 2020, arXiv 2002.12804.
Data: RoBERTa's: BooksCorpus, Wikipedia, CC-News, OpenWebText and Stories, 160 GB. The pattern in
`data` is an example: `--data` names your files.
Expected: SQuAD 1.1 dev 93.1 F1, SST-2 dev 95.1; CNN/DailyMail ROUGE 43.16, 20.42, 40.14 (Tables 2,
3 and 4).
Measured: unilmv2_mini on WikiText-2's validation text, 2% of it held out: mlm_accuracy 0.165,
mlm_nll 5.952, plm_accuracy 0.130, plm_nll 6.168; unigram baseline 6.378 (nats per token); 92
CPU-seconds on 2 cores.
"""

from ptm_jax.core.system import Experiment
from ptm_jax.systems import get

config = Experiment(
    system=get("unilmv2_base"),
    data=("data/web/*.txt.zst",),
    heldout=0.001,
    log_every=100,
    eval_every=10_000,
    save_every=10_000,
)
