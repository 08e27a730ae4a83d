"""Learning rates of the study `modern`: one seed, half of its operations.

    ptm study modern_rates --workdir runs/modern_rates

The arms that are not here take the best rate of their block: WSD, masks and hybrid that of BERT.
"""

import dataclasses

from ptm_jax.configs.studies import modern
from ptm_jax.tuning.studies.studies import Axis, Budget, Study

RATES = {
    "BERT": (5e-4, 1e-3, 2e-3, 4e-3),
    "block": (1e-3, 2e-3, 4e-3, 8e-3),
    "Muon": (1e-3, 2e-3, 4e-3, 8e-3),
    "RTD": (1e-3, 2e-3, 4e-3),
    "all but RTD": (2e-3, 4e-3, 8e-3),
    "all but hybrid": (2e-3, 4e-3, 8e-3),
}
RUNS = {(way, f"{rate:g}") for way, rates in RATES.items() for rate in rates}

study = Study(
    name="modern_rates",
    base=dataclasses.replace(modern.experiment, eval_batches=32),
    axes=(
        Axis(name="lr", values=(5e-4, 1e-3, 2e-3, 4e-3, 8e-3)),
        Axis(name="way", values={name: modern.arm(1e-3, *modern.CHANGES[name]) for name in RATES}),
    ),
    budget=Budget(kind="operations", amount=modern.AMOUNT / 2),
    metrics=("mlm_nll", "rtd_accuracy"),
    keep=lambda labels: (labels["way"], labels["lr"]) in RUNS,
)
