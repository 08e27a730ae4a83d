"""Learning rates over widths: in muP the best rate of width 64 is that of width 512, in the standard parametrisation not.

    ptm study widths --workdir runs/widths

GPT-2's block twice, heads of width 16, on `pydocs`. `standard` has initial matrices with a standard deviation that falls with
the root of the width, and one rate for all of them; `muP` is `tuning.mup.MuP` from the base of width 64, where both are the
same network (Yang et al. 2022, arXiv 2203.03466, Table 8).
"""

import dataclasses

from ptm_jax.core.system import Experiment, System
from ptm_jax.systems.transformers import gpt2, miniature
from ptm_jax.tuning.mup import MuP
from ptm_jax.tuning.studies import Axis, Study

BASE, STD = 64, 0.08


def size(width: int, std: float) -> System:
    return miniature(gpt2("", 2, width, width // 16), "", steps=80, lr=4e-3, std=std, batch=16, length=16)


sizes = {}
for width in (512, 64, 256, 128):
    sizes[f"muP {width}"] = MuP(width=BASE, head_width=16).of(size(width, STD))
    sizes[f"standard {width}"] = size(width, STD * (BASE / width) ** 0.5)
WIDE = {"standard 512": ("0.016", "0.032"), "standard 256": ("0.032",)}
"""Rates that are left out: too large for these, and the smallest for the others."""
base = size(BASE, STD)
tokenizer = dataclasses.replace(base.tokenizer, vocab=270)

study = Study(
    name="widths",
    base=Experiment(system=dataclasses.replace(base, tokenizer=tokenizer), save_every=0, eval_batches=16),
    axes=(
        Axis(name="size", values=sizes),
        Axis(name="lr", values=(4e-3, 1e-3, 16e-3, 2e-3, 8e-3, 5e-4, 32e-3)),
    ),
    keep=lambda run: run["lr"] not in WIDE.get(run["size"], ("0.0005",)),
)
