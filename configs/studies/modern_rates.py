"""Learning rates of the study `modern`, and its changes on ModernBERT's block: one seed, a third of
its operations.

    ptm study modern_rates --workdir runs/modern_rates

The study has the lowest rate within 0.03 nats of the best. The arms that are not here have the rate
of their block: WSD, masks and hybrid that of BERT.
Measured: benchmarks/modern_study.md, 26 runs, 20 minutes of one core.
"""

import dataclasses

from ptm_jax.configs.studies import modern
from ptm_jax.tuning.studies.studies import Axis, Budget, Study

ON_BLOCK = ("WSD", "Muon", "masks", "hybrid")
ARMS = modern.CHANGES | {
    f"block, {name}": (modern.block, *modern.CHANGES[name]) for name in ON_BLOCK
}
RATES = {
    "BERT": (5e-4, 1e-3, 2e-3, 4e-3),
    "block": (1e-3, 2e-3, 4e-3, 8e-3),
    "Muon": (1e-3, 2e-3, 4e-3, 8e-3),
    "RTD": (1e-3, 2e-3, 4e-3),
    "all but RTD": (2e-3, 4e-3, 8e-3),
    "all but hybrid": (2e-3, 4e-3, 8e-3),
    **{f"block, {name}": (2e-3,) for name in ON_BLOCK},
    "block, Muon": (2e-3, 4e-3),
}
RUNS = {(way, f"{rate:g}") for way, rates in RATES.items() for rate in rates}

study = Study(
    name="modern_rates",
    base=dataclasses.replace(modern.experiment, eval_batches=32),
    axes=(
        Axis(name="lr", values=(5e-4, 1e-3, 2e-3, 4e-3, 8e-3)),
        Axis(name="way", values={name: modern.arm(1e-3, *ARMS[name]) for name in RATES}),
    ),
    budget=Budget(kind="operations", amount=modern.AMOUNT / 3),
    metrics=("mlm_nll", "rtd_accuracy"),
    keep=lambda labels: (labels["way"], labels["lr"]) in RUNS,
)
