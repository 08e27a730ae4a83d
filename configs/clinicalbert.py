"""ClinicalBERT: BERT-base goes on with clinical notes. Row 157.

    ptm train configs/clinicalbert.py --data 'data/mimic/*.txt' --workdir runs/clinicalbert
    ptm train clinicalbert_mini --data TEXT --workdir runs/clinicalbert_mini

Paper: Huang et al. 2019, arXiv 1904.05342.
Data: the notes of MIMIC-III, which need a licence. The pattern in `data` is an example: `--data`
names your files. The task is `--task readmission`: chunks of notes with the id of their stay.
Expected: readmission within 30 days from discharge summaries, AUROC 0.714 where BERT has 0.692
(Table 3; not checked against the paper).
"""

from ptm_jax.core.system import Experiment
from ptm_jax.systems import get

config = Experiment(
    system=get("clinicalbert"),
    init="bert-base-uncased",
    data=("data/mimic/*.txt",),
    heldout=0.001,
    log_every=100,
    eval_every=10_000,
    save_every=10_000,
)
