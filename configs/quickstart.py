"""A small BERT learns English from the documentation of the Python packages on this machine, in about three minutes.

    make quickstart
    ptm train configs/quickstart.py --workdir runs/quickstart

Paper: Devlin et al. 2019 (arXiv 1810.04805), masked language modelling alone, dynamic masks as in RoBERTa.
"""

import dataclasses

from ptm_jax.core.recipe import AdamW, Linear, Phase, Recipe
from ptm_jax.core.system import Experiment
from ptm_jax.systems import get

config = Experiment(
    system=dataclasses.replace(
        get("bert_tiny"),
        name="quickstart",
        recipe=Recipe(
            phases=(Phase(steps=4000, batch=16, length=64),),
            lr=2e-3,
            optimizer=AdamW(b2=0.98),
            schedule=Linear(warmup=200),
        ),
    ),
    data=("pydocs",),
    save_every=500,
    eval_every=500,
    log_every=50,
)
