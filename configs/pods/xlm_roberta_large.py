"""XLM-R large: RoBERTa-large on a hundred languages, 8,192 rows a step over 512 chips. Row 122.

    ptm plan xlm_roberta_large --topology v5p:8x8x8
    ptm train configs/pods/xlm_roberta_large.py --data 'data/*.txt.zst' \
        --workdir runs/xlm_roberta_large

Paper: Conneau et al. 2020, arXiv 1911.02116.
Mesh: data=8,fsdp=64, rules fsdp: both in the config; `ptm plan --search` ranks others.
Data: the pattern in `data` is an example: `--data` names your files.
Modelled: a line of `benchmarks/plans.md` for v4, v5e, v5p and v6e.
"""

import dataclasses

from ptm_jax.systems.survey import pods

config = dataclasses.replace(
    pods.experiment("xlm_roberta_large"),
    data=("data/*.txt.zst",),
    heldout=0.001,
    log_every=100,
    eval_every=2_000,
    save_every=2_000,
)
