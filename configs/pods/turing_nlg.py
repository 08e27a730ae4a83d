"""Turing-NLG: 17 billion parameters, each layer over 4 chips, the optimizer's state over 32 of
those. Row 61.

    ptm plan turing_nlg --topology v5p:8x8x8
    ptm train configs/pods/turing_nlg.py --data 'data/*.txt.zst' --workdir runs/turing_nlg

Paper: Rosset 2020, Turing-NLG: A 17-billion-parameter language model by Microsoft. Mesh:
data=2,fsdp=32,model=4, rules megatron_sp_fsdp: both in the config; `ptm plan --search` ranks
others.
Data: the pattern in `data` is an example: `--data` names your files. Modelled: a line of
`benchmarks/plans.md` for v4, v5e, v5p and v6e.
"""

import dataclasses

from ptm_jax.systems.survey import pods

config = dataclasses.replace(
    pods.experiment("turing_nlg"),
    data=("data/*.txt.zst",),
    heldout=0.001,
    log_every=100,
    eval_every=2_000,
    save_every=2_000,
)
