"""Clinical BERT: BioBERT goes on with clinical notes. Row 158.

    ptm train configs/clinical_bert.py --data 'data/mimic/*.txt' --workdir runs/clinical_bert
    ptm train clinical_bert_mini --data TEXT --workdir runs/clinical_bert_mini

Paper: Alsentzer et al. 2019, arXiv 1904.03323.
Data: the notes of MIMIC-III, all of them or discharge summaries, which need a licence. The pattern
in `data` is an example: `--data` names your files. `init` is the folder of BioBERT 1.0.
Expected: accuracy on MedNLI 82.7 where BioBERT has 80.8 and BERT 77.6 (Table 2; not checked against
the paper).
Sizes: `ptm train clinical_bert_discharge_released`, the steps of the released model.
"""

from ptm_jax.core.system import Experiment
from ptm_jax.systems import get

config = Experiment(
    system=get("clinical_bert"),
    init="models/biobert",
    data=("data/mimic/*.txt",),
    heldout=0.001,
    log_every=100,
    eval_every=10_000,
    save_every=10_000,
)
