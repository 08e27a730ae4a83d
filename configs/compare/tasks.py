"""One model on the downstream tasks of a folder of data sets: a command each, several seeds, one
table.

    python configs/compare/tasks.py --init MODEL --data DIR --workdir runs/tasks
    python configs/compare/tasks.py --init MODEL --data DIR --workdir runs/tasks --only sst2 mrpc \
        --seeds 5

DIR holds the data sets as the manifest of ../shared/data names them. Every task is `ptm train
--task` as the table prints it, which goes on where it was stopped; a task that is in
WORKDIR/results.json is not run again. The table goes to benchmarks/tasks.md (--out), with the mean
and the standard deviation over the seeds, of the checkpoint of the last step. Where a data set has
one file, a tenth of it is held out (`tasks/formats/taskdata.py`): such figures compare with no
published ones.

--adapt is handed on to `ptm train`, so that ways of adapting are compared by the same command.
"""

from __future__ import annotations

import dataclasses
import json
import shlex
from pathlib import Path
from typing import Annotated

import tyro
from commands import heading, recorded, shown

from ptm_jax.tasks.metrics.measures import glue_average

TASKS = {
    "sst2": ("glue/sst2", ""),
    "sst5": ("glue/sst5", "--epochs 6"),
    "cola": ("glue/cola", "--epochs 4 --length 64"),
    "mrpc": ("glue/mrpc", "--epochs 5"),
    "stsb": ("glue/stsb", "--epochs 4"),
    "rte": ("glue/rte", "--epochs 5 --length 256"),
    "qnli": ("glue/qnli", "--epochs 5"),
    "trec6": ("classification/trec", "--epochs 4"),
    "ag_news": ("classification/ag_news/test_first3000.csv", "--epochs 4"),
    "scicite": ("classification/sci-cite", "--epochs 5"),
    "boolq": ("superglue/boolq", "--epochs 6"),
    "cb": ("superglue/cb", "--epochs 20"),
    "squad2": ("qa/squad2", "--epochs 3 --lr 1e-4"),
    "wnut17": ("ner/wnut17", "--epochs 5 --lr 2e-4"),
    "ncbi": ("bio_ner/NCBI-disease-IOB", "--epochs 3 --lr 2e-4"),
    "ud": ("ud/en_partut", "--epochs 8 --lr 2e-4"),
}
"""{task: (its data below --data, what differs from the task's own recipe)}."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Args:
    init: str
    """A workdir, or a Hugging Face checkpoint."""
    data: Path
    """The folder of the data sets."""
    workdir: Path
    """Where the runs lie."""
    only: tuple[str, ...] = ()
    """These tasks alone."""
    seeds: int = 3
    """Runs of a task."""
    epochs: float | None = None
    """For every task, in place of its own."""
    adapt: tuple[str, ...] = ()
    """As `ptm train --adapt`."""
    words: str = ""
    """More words for every command, as '--batch 16 --length 64'."""
    torch: Path | None = None
    """Where `tasks_in_torch.py` left its results, for a second table."""
    out: Path = Path("benchmarks/tasks.md")
    """The table."""
    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print the results as one JSON document."""


def main(args: Args) -> None:
    """Run what is missing, and write the table."""
    results = recorded(
        "task", TASKS, args.only, args.workdir,
        words=lambda task: _words(task, args), facts=lambda task, found: _figures(found),
        write=lambda results: _write(args, results),
    )  # fmt: skip
    if args.json:
        print(json.dumps(results, indent=1))


def _words(task: str, args: Args) -> list[str]:
    """The words of the command of a task."""
    path, own = TASKS[task]
    words = [
        "train",
        "--init",
        args.init,
        "--task",
        task,
        "--data",
        str(args.data / path),
        *own.split(),
    ]
    if args.epochs is not None:
        if "--epochs" in words:
            at = words.index("--epochs")
            del words[at : at + 2]
        words += ["--epochs", str(args.epochs)]
    if args.adapt:
        words += ["--adapt", *args.adapt]
    return [
        *words,
        *shlex.split(args.words),
        "--seeds",
        str(args.seeds),
        "--workdir",
        str(args.workdir / task),
    ]


def _figures(document: dict) -> dict:
    """Means and spreads of one run or several."""
    runs = document.get("runs", [document])
    metrics = document["metrics"]
    if "runs" not in document:
        metrics = {name: {"mean": value, "sd": 0.0} for name, value in metrics.items()}
    return {"examples": runs[0]["examples"], "seeds": len(runs), "metrics": metrics}


def _write(args: Args, results: dict) -> None:
    """The table of all results, GLUE's averages with the tasks that are in them, and the
    commands."""
    lines = heading("Downstream tasks", args.init)
    lines += [
        "| task | examples | metrics (mean ± sd) | seeds | minutes |",
        "| --- | --- | --- | --- | --- |",
    ]
    for task, found in results.items():
        values = {
            name: v for name, v in found["metrics"].items() if not name.endswith("_threshold")
        }
        figures = ", ".join(
            f"{name} {shown(v['mean'], v['sd'], found['seeds'])}" for name, v in values.items()
        )
        lines.append(
            f"| {task} | {found['examples']:,} | {figures} | {found['seeds']} | "
            f"{found['minutes']} |"
        )
    means = {
        task: {name: v["mean"] for name, v in found["metrics"].items()}
        for task, found in results.items()
    }
    for wnli in (True, False):
        value, tasks = glue_average(means, wnli=wnli)
        if tasks and (not wnli or "wnli" in tasks):
            lines += [
                "",
                f"GLUE average {'with' if wnli else 'without'} WNLI: {100 * value:.1f}, over "
                f"{', '.join(tasks)}.",
            ]
    lines += [
        "",
        "```",
        *(f"ptm {shlex.join(found['words'])}" for found in results.values()),
        "```",
    ]
    lines += _beside(args.torch, results) if args.torch else []
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text("\n".join(lines) + "\n", encoding="utf8")


def _beside(folder: Path, results: dict) -> list[str]:
    """The table of the same fine-tuning in torch: both means, and their difference in standard
    deviations of one seed."""
    lines = ["", "## Beside torch", ""]
    lines += [
        "The same rows, schedule and seeds (`configs/compare/tasks_in_torch.py`). Last: the "
        "difference of the"
    ]
    lines += ["means over the root mean square of both sides' standard deviations.", ""]
    lines += [
        "| task | metric | ptm_jax | torch | difference | in sd |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for task, found in results.items():
        record = folder / f"{task}.json"
        theirs = (
            json.loads(record.read_text(encoding="utf8"))["metrics"] if record.is_file() else {}
        )
        for name, value in theirs.items():
            ours = found["metrics"][name]
            spread = ((ours["sd"] ** 2 + value["sd"] ** 2) / 2) ** 0.5
            both = (shown(side["mean"], side["sd"], found["seeds"]) for side in (ours, value))
            apart = ours["mean"] - value["mean"]
            share = f"{apart / spread:+.1f}" if spread else ""
            lines.append(f"| {task} | {name} | {' | '.join(both)} | {100 * apart:+.1f} | {share} |")
    return lines


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
