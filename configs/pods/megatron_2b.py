"""Megatron-LM's GPT-2 of 2.5 billion parameters, each layer over 2 chips. Row 60.

    ptm plan megatron_2b --topology v5p:8x8x8
    ptm train configs/pods/megatron_2b.py --data 'data/*.txt.zst' --workdir runs/megatron_2b

Paper: Shoeybi et al. 2019, arXiv 1909.08053.
Mesh: fsdp=64,model=2, rules megatron_sp_fsdp: both in the config; `ptm plan --search` ranks others.
Data: the pattern in `data` is an example: `--data` names your files.
Modelled: a line of `benchmarks/plans.md` for v4, v5e, v5p and v6e.
"""

import dataclasses

from ptm_jax.systems.survey import pods

config = dataclasses.replace(
    pods.experiment("megatron_2b"),
    data=("data/*.txt.zst",),
    heldout=0.001,
    log_every=100,
    eval_every=2_000,
    save_every=2_000,
)
