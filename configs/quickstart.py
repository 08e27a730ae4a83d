"""A small BERT learns English from the documentation of the Python packages on this machine, in about three minutes.

    make quickstart
    ptm train configs/quickstart.py --workdir runs/quickstart

Paper: Devlin et al. 2019 (arXiv 1810.04805), masked language modelling alone, dynamic masks as in RoBERTa.
"""

import dataclasses

from ptm_jax.core import spec
from ptm_jax.core.recipe import AdamW, Linear, Phase, Recipe
from ptm_jax.core.system import Experiment
from ptm_jax.systems import get

# Two passes over the text: nothing to over-fit, so no dropout.
DROPOUT = ("embed.dropout", "stack.block.dropout", "stack.block.attention.dropout")
bert = spec.override(get("bert_tiny"), {f"towers.main.encoder.{slot}": "0" for slot in DROPOUT})

config = Experiment(
    system=dataclasses.replace(
        bert,
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
