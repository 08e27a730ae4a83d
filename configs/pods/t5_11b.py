"""T5 of 11 billion parameters, each layer over 8 chips. Row 56.

    ptm plan t5_11b --topology v5p:8x8x8
    ptm train configs/pods/t5_11b.py --data 'data/*.txt.zst' --workdir runs/t5_11b

Paper: Raffel et al. 2020, arXiv 1910.10683.
Mesh: fsdp=64,model=8, rules megatron_fsdp: both in the config; `ptm plan --search` ranks others.
Data: the pattern in `data` is an example: `--data` names your files.
Modelled: a line of `benchmarks/plans.md` for v4, v5e, v5p and v6e.
"""

import dataclasses

from ptm_jax.systems.survey import pods

config = dataclasses.replace(
    pods.experiment("t5_11b"),
    data=("data/*.txt.zst",),
    heldout=0.001,
    log_every=100,
    eval_every=2_000,
    save_every=2_000,
)
