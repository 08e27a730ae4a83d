"""BERT-base: masked words and next sentences, at length 128 and then 512. Row 44.

    ptm train configs/bert.py --data 'data/wikibooks/*.txt.zst' --workdir runs/bert
    ptm train bert_mini --data TEXT --workdir runs/bert_mini

Paper: Devlin et al. 2019, arXiv 1810.04805.
Data: English Wikipedia and BooksCorpus, 3.3 billion words. The pattern in `data` is an example:
`--data` names your files.
Expected: GLUE test average 79.6, MNLI-m 84.6 (Table 1); SQuAD 1.1 dev 80.8 EM, 88.5 F1 (Table 2).
Large: 82.1 (the survey, after the first version of the paper, has 81.9), 86.7; 84.1, 90.9.
Sizes: `ptm train bert_large`, `bert_base_cased`, `bert_large_cased`,
`bert_base_multilingual_cased`, `bert_base_chinese`.
"""

from ptm_jax.core.system import Experiment
from ptm_jax.systems import get

config = Experiment(
    system=get("bert_base"),
    data=("data/wikibooks/*.txt.zst",),
    heldout=0.001,
    log_every=100,
    eval_every=10_000,
    save_every=10_000,
)
