"""The grid of Megatron-LM's GPT-2, 1.2 to 8.3 billion parameters, for a pod: to be planned and
launched, not to be run here.

    ptm study megatron --workdir runs/megatron --dry-run --topology v5p:8x8x8 --price 4.2
    ptm launch gke configs/studies/megatron.py --workdir /w/megatron --topology v5p:8x8x8 \
        --image IMAGE --mount CLAIM=/w

Paper: Shoeybi et al. 2019, arXiv 1909.08053. 24 runs: four sizes, three batches under equal tokens
(78 billion: half of the paper's 300,000 steps of 512 rows of 1,024), two rates. Parameters and
optimizer state lie over 128 chips (fsdp), which divide every width.
"""

from ptm_jax.core.system import Experiment
from ptm_jax.systems import get
from ptm_jax.tuning.studies.studies import Axis, Budget, Study

study = Study(
    name="megatron",
    base=Experiment(
        system=get("megatron_gpt2_1200m"),
        data=("prepared",),
        mesh=(("data", 4), ("fsdp", 128)),
        rules="fsdp",
    ),
    axes=(
        Axis(
            name="size",
            values={
                f"{name}": f"megatron_gpt2_{name}" for name in ("1200m", "2500m", "4200m", "8300m")
            },
        ),
        Axis(name="batch", values=(512, 1024, 2048)),
        Axis(name="lr", values=(1.5e-4, 3e-4)),
    ),
    budget=Budget(kind="tokens", amount=150_000 * 512 * 1024),
)
