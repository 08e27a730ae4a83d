"""Average the parameters of several models, and write a model that every command takes.

Example:
  ptm average runs/sst2/seed_0 runs/sst2/seed_1 runs/sst2/seed_2 --out models/soup
  ptm average runs/translation/checkpoints/step_* --out models/translation

The average of models that were fine-tuned from the same parameters is often better than each of
them (model soups: Wortsman et al. 2022, arXiv 2203.05482). So is the average of the last
checkpoints of a run (Vaswani et al. 2017, section 6.1).
"""

from __future__ import annotations

import dataclasses
from typing import Annotated

import tyro

from ptm_jax.cli import options


@dataclasses.dataclass(frozen=True, kw_only=True)
class Args:
    models: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
    """Two or more workdirs, or checkpoints WORKDIR/checkpoints/step_..., of one network."""
    out: Annotated[str, tyro.conf.arg(metavar="DIR")]
    """Folder for the record, the tokenizer and a checkpoint of step 0."""
    json: options.Flag = False
    """Print one JSON document: models, parameters, out."""


def run(args: Args) -> int:
    """Reads the models one after another, and writes their mean."""
    from ptm_jax.core import paths
    from ptm_jax.runs.writing import average

    count = paths.count(average(args.models, args.out))
    document = {"models": list(args.models), "parameters": count, "out": args.out}
    text = f"the mean of {len(args.models)} models: {count:,} parameters\n  in {args.out}"
    return options.report(document, text, args.json)
