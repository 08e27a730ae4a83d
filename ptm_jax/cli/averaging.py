"""The mean of several models' parameters, as a model that every command takes.

Example:
  ptm average runs/sst2/seed_0 runs/sst2/seed_1 runs/sst2/seed_2 --out models/soup
  ptm average runs/translation/checkpoints/step_* --out models/translation

Models that began with the same parameters, fine-tuned apart, are often better averaged than alone (model soups: Wortsman et
al. 2022, arXiv 2203.05482); so are the last checkpoints of one run (Vaswani et al. 2017, section 6.1).
"""

from __future__ import annotations

import dataclasses
from typing import Annotated

import tyro

from ptm_jax.cli import options


@dataclasses.dataclass(frozen=True, kw_only=True)
class Args:
    models: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
    """Workdirs of training runs, or their checkpoints WORKDIR/checkpoints/step_...: two or more of one network."""
    out: Annotated[str, tyro.conf.arg(metavar="DIR")]
    """Where the model is written: record, tokenizer and a checkpoint of step 0."""
    json: options.Flag = False
    """What was averaged, as one JSON document."""


def run(args: Args) -> int:
    """Read the models one after another, and write their mean."""
    from ptm_jax.core import paths
    from ptm_jax.train import imported

    params = imported.average(args.models, args.out)
    count = paths.count(params)
    if args.json:
        options.print_json({"models": list(args.models), "parameters": count, "out": args.out})
        return 0
    print(f"the mean of {len(args.models)} models: {count:,} parameters")
    print(f"  in {args.out}")
    return 0
