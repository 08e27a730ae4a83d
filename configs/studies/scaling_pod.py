"""Scaling laws at published sizes, to be planned and launched: GPT-2's network from 124 million to
8.3 billion parameters.

    ptm reproduce scaling --size pod --workdir runs/scaling_pod --topology v5p:4x4x8

Sizes: Radford et al. 2019, Table 2, and Shoeybi et al. 2019, Table 1. Each reads two and eight
billion tokens.
Papers: Kaplan et al. 2020 (arXiv 2001.08361); Hoffmann et al. 2022 (arXiv 2203.15556), approach 3.
"""

from ptm_jax.core.system import Experiment
from ptm_jax.systems import get
from ptm_jax.tuning.scaling.scaling_laws import Parametric
from ptm_jax.tuning.studies.studies import Axis, Budget, Law, Study

SIZES = (
    "gpt2 gpt2_medium gpt2_large gpt2_xl megatron_gpt2_1200m megatron_gpt2_2500m "
    "megatron_gpt2_4200m megatron_gpt2_8300m"
)

study = Study(
    name="scaling_pod",
    base=Experiment(
        system=get("megatron_gpt2_1200m"),
        data=("prepared",),
        mesh=(("data", 2), ("fsdp", 64)),
        rules="fsdp",
    ),
    axes=(
        Axis(name="size", values=tuple(SIZES.split())),
        Axis(name="budget", values=(2_000_000_000, 8_000_000_000)),
    ),
    budget=Budget(kind="tokens", amount=2_000_000_000),
    laws=(Law(form=Parametric(variables=("body", "tokens"))),),
)
