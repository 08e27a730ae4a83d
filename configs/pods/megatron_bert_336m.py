"""Megatron-LM's BERT of 336 million parameters. Row 60.

    ptm plan megatron_bert_336m --topology v5p:4x4x4
    ptm train configs/pods/megatron_bert_336m.py --data 'data/*.txt.zst' \
        --workdir runs/megatron_bert_336m

Paper: Shoeybi et al. 2019, arXiv 1909.08053.
Mesh: fsdp=64, rules fsdp: both in the config; `ptm plan --search` ranks others.
Data: the pattern in `data` is an example: `--data` names your files.
Modelled: a line of `benchmarks/plans.md` for v4, v5e, v5p and v6e.
"""

import dataclasses

from ptm_jax.systems.survey import pods

config = dataclasses.replace(
    pods.experiment("megatron_bert_336m"),
    data=("data/*.txt.zst",),
    heldout=0.001,
    log_every=100,
    eval_every=2_000,
    save_every=2_000,
)
