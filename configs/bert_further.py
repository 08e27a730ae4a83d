"""BERT-base further pre-trained on the texts of a task, before its fine-tuning. Row 195.

    ptm train configs/bert_further.py --data imdb/train.txt --workdir runs/within_task
    ptm train bert_further --data 'reviews/*.txt' --workdir runs/in_domain

Paper: Sun et al. 2019, arXiv 1905.05583.
Data: within-task, the training texts of the task itself; in-domain, of all tasks of its domain, as
IMDb, Yelp and others; cross-domain, of all tasks. The fine-tuning is `ptm train --init
runs/within_task --task imdb --adapt 'layer_decay(decay=0.95)' --lr 2e-5 --set
system.examples.keep=ends`.
Expected: IMDb test error 4.37 within-task, where BERT without it has 5.40 (Table 7; not checked
against the paper).
"""

from ptm_jax.core.system import Experiment
from ptm_jax.systems import get

config = Experiment(
    system=get("bert_further"),
    init="bert-base-uncased",
    data=("imdb/train.txt",),
    heldout=0.01,
    log_every=100,
    eval_every=10_000,
    save_every=10_000,
)
