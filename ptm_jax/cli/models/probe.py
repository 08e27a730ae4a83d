"""Probe the layers of a frozen encoder: what do the states of words hold.

Example:
  ptm probe MODEL --by labels --label upos --data train.conllu dev.conllu
  ptm probe MODEL --by labels --label tag --data ner.conll --bits
  ptm probe MODEL --by structural --data train.conllu dev.conllu --out probes/structural
  ptm probe MODEL --by spans --data train.jsonl dev.jsonl
  ptm probe MODEL --by sentences --data past_present.txt --pool first
  ptm probe MODEL --by constituency --data dev.mrg test.mrg --bias 1.5
  ptm probe MODEL --by attention --label arc-label --data train.conllu dev.conllu
  ptm probe MODEL --by senses --data train.tsv test.tsv

A linear probe stands beside a control task, whose labels are drawn for each word (Hewitt and Liang
2019), and beside the most frequent labels; layer 0 has the embeddings. The structural probe finds
the distances and depths of trees in the states (Hewitt and Manning 2019). Constituency splits a
sentence at the greatest distances of states or attention (Kim et al. 2020). Attention and senses
are the probes of Coenen, Reif et al. (2019). The states of words are kept in the cache (PTM_CACHE),
so that another probe of the same sentences begins at once.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Annotated, Literal

import tyro

from ptm_jax.cli import options

FOR = {
    "label": ("labels", "spans", "phrases", "attention"), "bits": ("labels", "attention"),
    "rank": ("structural", "senses"), "bias": ("constituency",),
    "hidden": ("labels", "sentences"), "pool": ("sentences", "roles"),
}  # fmt: skip
"""{option: the values of --by that read it}."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Args:
    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
    """A workdir, or a checkpoint of an encoder."""
    data: Annotated[tuple[str, ...], tyro.conf.arg(metavar="FILE ...")]
    """Sentences to train on, and held-out ones; of one file every fifth sentence is held out.
    CoNLL-U (.conllu), JSON lines with text and targets of spans (.jsonl), else lines with a word
    first and a tag last; of sentences: SentEval's lines of tr, va or te, a label, a sentence."""
    by: Literal[
        "labels", "structural", "spans", "phrases", "sentences", "roles", "constituency",
        "attention", "senses",
    ] = "labels"  # fmt: skip
    """labels: linear probes of --label. structural: distances and depths of trees. spans: edge
    probes. phrases: clusters and labels. sentences: SentEval's tasks. roles: tensor products of
    words and their places. constituency: phrases of .mrg or CoNLL-U without training. attention:
    arcs from the weights of the heads. senses: a table with word, sense and sentence, or
    Raganato's XML."""
    label: Annotated[str, tyro.conf.arg(metavar="NAME")] = ""
    """upos (the default), xpos, deprel or a feature (Number) of CoNLL-U; arc: is the second word
    the head of the first; arc-label: the relation of a word and its head; tag of other files. Of
    spans, too: deprel, a word and its head (the default); phrase, a subtree; segment, a run of B-
    and I- tags; targets of JSON lines."""
    bits: options.Flag = False
    """labels: measure the description length, too (Voita and Titov 2020)."""
    hidden: Annotated[int, tyro.conf.arg(metavar="N")] = 0
    """labels, sentences: width of a hidden layer of the probe (default: it is linear)."""
    pool: Literal["mean", "first"] = "mean"
    """sentences, roles: the state of a sentence is the mean, or that of the first token ([CLS])."""
    rank: options.Number = None
    """structural, senses: rank of the map (default: the width of the states)."""
    bias: Annotated[float, tyro.conf.arg(metavar="X")] = 0.0
    """constituency: the bias towards trees that branch to the right; 1.5 in the paper."""
    out: options.Path = None
    """Folder for probe.json, probe.png and the page probe.html."""
    tower: options.Text = None
    """The network to probe if the model has several, as "generator" of ELECTRA (default: main)."""
    batch: Annotated[int, tyro.conf.arg(metavar="N")] = 32
    """Sentences in a batch, at most."""
    memory: Annotated[float, tyro.conf.arg(metavar="GB")] = 4.0
    """GB of memory that the layers of a batch may take, and all states if PTM_CACHE is off."""
    seed: Annotated[int, tyro.conf.arg(metavar="N")] = 0
    """Seed of the probes and of the control task."""
    json: options.Flag = False
    """Print one JSON document: layers, heads, baselines, counts."""


def run(args: Args) -> int:
    """Probes, and prints a table with a row for each layer."""
    from ptm_jax.core.errors import UserError
    from ptm_jax.inference.loading import load
    from ptm_jax.inference.saliency import curve_pages
    from ptm_jax.runs.run import best_checkpoint, stop_remark
    from ptm_jax.tasks.probes import probing

    if args.rank is not None and args.rank < 1:
        raise UserError(f"--rank is {args.rank}; it must be at least 1")
    if args.hidden < 0:
        raise UserError(f"--hidden is {args.hidden}; it must be at least 0")
    for name, kinds in FOR.items():
        if args.by not in kinds and options.given(args, (name,)):
            raise UserError(f"--{name} is for --by {' and '.join(kinds)}; leave it out")
    names = (
        "by",
        "data",
        "label",
        "bits",
        "hidden",
        "pool",
        "rank",
        "bias",
        "batch",
        "memory",
        "seed",
    )
    question = probing.Question(**{name: vars(args)[name] for name in names})
    model = load(best_checkpoint(args.model), tower=args.tower)
    if (remark := stop_remark(args.model)) is not None:
        options.say(remark)
    answer = probing.answered(model, question, options.say)
    layers = {name: [round(float(x), 6) for x in row] for name, row in answer.layers.items()}
    document = {
        "by": args.by, "label": answer.label or None, "layers": layers,
        "heads": {name: rows.round(6).tolist() for name, rows in answer.heads.items()},
        "first layer": answer.first,
        "baselines": dict(answer.baselines), "counts": dict(answer.counts),
    }  # fmt: skip
    subject = answer.label or args.by
    counts = ", ".join(f"{value:,} {name}" for name, value in answer.counts.items() if value)
    rows = [
        [str(answer.first + layer), *(options.figure(row[layer]) for row in layers.values())]
        for layer in range(len(next(iter(layers.values()))))
    ]
    lines = [f"{subject}: {counts}", options.table(["layer", *layers], rows)]
    lines += [f"{name}: {options.figure(value)}" for name, value in answer.baselines.items()]
    if args.out is not None:
        out = Path(args.out)
        out.mkdir(parents=True, exist_ok=True)
        (out / "probe.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf8")
        title = f"{Path(args.model).name}: {subject}"
        probing.draw(answer, title, out / "probe.png")
        curve_pages.curve_page(
            title, layers, answer.baselines, answer.heads, answer.first
        ).write(out / "probe.html")  # fmt: skip
        lines.append(f"in {args.out}: probe.json, probe.png, probe.html")
    return options.report(document, "\n".join(lines), args.json)
