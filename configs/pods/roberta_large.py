"""RoBERTa-large: 8,192 rows a step over 512 chips. Row 45.

    ptm plan roberta_large --topology v5p:8x8x8
    ptm train configs/pods/roberta_large.py --data 'data/*.txt.zst' --workdir runs/roberta_large

Paper: Liu et al. 2019, arXiv 1907.11692.
Mesh: data=8,fsdp=64, rules fsdp: both in the config; `ptm plan --search` ranks others.
Data: the pattern in `data` is an example: `--data` names your files.
Modelled: a line of `benchmarks/plans.md` for v4, v5e, v5p and v6e.
"""

import dataclasses

from ptm_jax.systems.survey import pods

config = dataclasses.replace(
    pods.experiment("roberta_large"),
    data=("data/*.txt.zst",),
    heldout=0.001,
    log_every=100,
    eval_every=2_000,
    save_every=2_000,
)
