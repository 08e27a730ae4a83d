"""BERT in 24 sizes, 2 to 12 layers of 128 to 768: here BERT-mini, 4 layers of 256. Row 66.

    ptm train configs/miniatures.py --data 'data/wikibooks/*.txt.zst' --workdir runs/miniatures
    ptm train bert_tiny --data TEXT --workdir runs/bert_tiny

Paper: Turc et al. 2019, arXiv 1908.08962.
Data: BERT's: English Wikipedia and BooksCorpus. The pattern in `data` is an example: `--data` names
your files.
Expected: GLUE test score 65.8; tiny (2, 128) 64.2, small (4, 512) 71.2, medium (8, 512) 73.5
(google-research/bert, README).
Sizes: `ptm train bert_L2_H128` to `bert_L12_H768`; `bert_mini` and `bert_tiny` are two of them with
a short recipe.
"""

from ptm_jax.core.system import Experiment
from ptm_jax.systems import get

config = Experiment(
    system=get("bert_L4_H256"),
    data=("data/wikibooks/*.txt.zst",),
    heldout=0.001,
    log_every=100,
    eval_every=10_000,
    save_every=10_000,
)
