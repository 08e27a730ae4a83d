"""Probe the layers of a frozen encoder: what do the states of words hold.

Example:
  ptm probe MODEL --by labels --label upos --data train.conllu dev.conllu
  ptm probe MODEL --by labels --label tag --data ner.conll --bits
  ptm probe MODEL --by structural --data train.conllu dev.conllu --out probes/structural

A linear probe stands beside a control task, whose labels are drawn for each word (Hewitt and Liang
2019), and beside the most frequent labels; layer 0 has the embeddings. The structural probe finds
the distances and depths of trees in the states (Hewitt and Manning 2019). The states of words are
kept in the cache (PTM_CACHE), so that another probe of the same sentences begins at once.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Annotated, Literal

import tyro

from ptm_jax.cli import options


@dataclasses.dataclass(frozen=True, kw_only=True)
class Args:
    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
    """A workdir, or a checkpoint of an encoder."""
    data: Annotated[tuple[str, ...], tyro.conf.arg(metavar="FILE ...")]
    """Sentences to train on, and held-out ones; of one file every fifth sentence is held out.
    CoNLL-U (.conllu), else lines with a word first and a tag last."""
    by: Literal["labels", "structural"] = "labels"
    """labels: linear probes of --label. structural: distances and depths of trees."""
    label: Annotated[str, tyro.conf.arg(metavar="NAME")] = "upos"
    """upos, xpos, deprel or a feature (Number) of CoNLL-U; arc: is the second word the head of the
    first; arc-label: the relation of a word and its head; tag of other files."""
    bits: options.Flag = False
    """labels: measure the description length, too (Voita and Titov 2020)."""
    rank: options.Number = None
    """structural: rank of the probe (default: the width of the states)."""
    out: options.Path = None
    """Folder for probe.json and probe.png."""
    batch: Annotated[int, tyro.conf.arg(metavar="N")] = 32
    """Sentences in a batch."""
    seed: Annotated[int, tyro.conf.arg(metavar="N")] = 0
    """Seed of the probes and of the control task."""
    json: options.Flag = False
    """Print one JSON document: layers, baselines, counts."""


def run(args: Args) -> int:
    """Probes, and prints a table with a row for each layer."""
    from ptm_jax.core.errors import UserError
    from ptm_jax.inference.loading import load
    from ptm_jax.runs.run import best_checkpoint
    from ptm_jax.tasks.probes import probing

    if args.rank is not None and args.rank < 1:
        raise UserError(f"--rank is {args.rank}; it must be at least 1")
    if args.by == "structural" and (flags := options.given(args, ("label", "bits"))):
        raise UserError(f"{flags[0]} is for --by labels; leave it out")
    if args.by == "labels" and args.rank is not None:
        raise UserError("--rank is for --by structural; leave it out")
    names = ("by", "data", "label", "bits", "rank", "batch", "seed")
    question = probing.Question(**{name: vars(args)[name] for name in names})
    answer = probing.answered(load(best_checkpoint(args.model)), question)
    layers = {name: [round(float(x), 6) for x in row] for name, row in answer.layers.items()}
    document = {
        "by": args.by, "label": args.label if args.by == "labels" else None, "layers": layers,
        "baselines": dict(answer.baselines), "counts": dict(answer.counts),
    }  # fmt: skip
    subject = args.label if args.by == "labels" else "trees"
    counts = ", ".join(f"{value:,} {name}" for name, value in answer.counts.items() if value)
    rows = [
        [str(layer), *(options.figure(row[layer]) for row in layers.values())]
        for layer in range(len(next(iter(layers.values()))))
    ]
    lines = [f"{subject}: {counts}", options.table(["layer", *layers], rows)]
    lines += [f"{name}: {options.figure(value)}" for name, value in answer.baselines.items()]
    if args.out is not None:
        out = Path(args.out)
        out.mkdir(parents=True, exist_ok=True)
        (out / "probe.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf8")
        probing.draw(answer, f"{Path(args.model).name}: {subject}", out / "probe.png")
        lines.append(f"in {args.out}: probe.json, probe.png")
    return options.report(document, "\n".join(lines), args.json)
