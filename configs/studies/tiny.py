"""The smallest study: two sizes of BERT, two learning rates, under equal operations, in five
minutes on one core.

    ptm study tiny --workdir runs/tiny --dry-run
    ptm study tiny --workdir runs/tiny

Each run has 1e12 operations, 90 steps of the larger model. What it shows is that the command works;
the sizes are too near, and the runs too short, for a law.
Measured: loss 6.160, 6.233 (2x128, rates 0.001 and 0.003), 6.506, 6.531 (2x256); unigram baseline
6.290 (nats per token), on `pydocs`, one seed (docs/studies.md).
"""

from ptm_jax.core.system import Experiment
from ptm_jax.systems import get
from ptm_jax.systems.transformers.bert_gpt import miniature, turc
from ptm_jax.tuning.studies.studies import Axis, Budget, Study

sizes = {
    f"{n}x{d}": miniature(
        turc(n, d), "", steps=100, lr=2e-3, std=0.08 * (128 / d) ** 0.5, length=64
    )
    for n, d in ((2, 128), (2, 256))
}

study = Study(
    name="tiny",
    base=Experiment(system=get("bert_tiny"), save_every=0, eval_batches=16),
    axes=(Axis(name="size", values=sizes), Axis(name="lr", values=(1e-3, 3e-3))),
    budget=Budget(kind="operations", amount=1e12),
    metrics=("loss", "mlm_accuracy"),
)
