"""BioBERT 1.1: BERT-base cased goes on with abstracts of PubMed. Row 155.

    ptm train configs/biobert.py --data 'data/pubmed/*.txt.gz' --workdir runs/biobert
    ptm train biobert_mini --data TEXT --workdir runs/biobert_mini

Paper: Lee et al. 2020, arXiv 1901.08746.
Data: PubMed's abstracts, 4.5 billion words, for version 1.0 also PMC's articles, 13.5 billion. The
pattern in `data` is an example: `--data` names your files.
Expected: entity F1 on NCBI disease 89.7 where BERT has 85.6, on BC5CDR disease 87.2 where BERT has
82.4 (Table 6; not checked against the paper).
Sizes: `ptm train biobert_pubmed`, `biobert_pmc`, `biobert_pubmed_pmc` (version 1.0).
"""

from ptm_jax.core.system import Experiment
from ptm_jax.systems import get

config = Experiment(
    system=get("biobert"),
    init="bert-base-cased",
    data=("data/pubmed/*.txt.gz",),
    heldout=0.001,
    log_every=100,
    eval_every=10_000,
    save_every=10_000,
)
