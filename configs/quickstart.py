"""A small encoder learns English from the documentation of the Python packages on this machine, in
about two minutes.

    make quickstart
    ptm train configs/quickstart.py --workdir runs/quickstart

Paper: Warner et al. 2024 (arXiv 2412.13663), ModernBERT's block in three layers of width 128,
masked language modelling alone. It is the fastest record of the speedrun,
configs/speedrun/modern_block.py. 30% of the tokens are masked in training and 15% in evaluations.
"""

import dataclasses

from ptm_jax.core.system import Experiment
from ptm_jax.tuning.speedrun import load

config = Experiment(
    system=dataclasses.replace(load("modern_block").system, name="quickstart"),
    data=("pydocs",),
    save_every=500,
    eval_every=500,
    log_every=50,
)
