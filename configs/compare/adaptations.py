"""Ways of adapting one model to one task: what each trains, what it reaches, what it takes.

    python configs/compare/adaptations.py --init MODEL --task sst2 --data SST-2 --workdir runs/adapt
    python configs/compare/adaptations.py --init MODEL --task wnut17 --data WNUT17 \
        --workdir runs/ner --only houlsby lora
    python configs/compare/adaptations.py --init MODEL --task sst2 --data SST-2 --other cr=CR \
        --workdir runs/adapt

Every way is `ptm train --task --adapt` as the table prints it, with the rate that its paper finds
right for it, and goes on where it was stopped. `random` begins with nothing of the model but its
size. The ways of `ROUTES` have a command before it: further pre-training on the task's own texts,
another task first (--other), texts made by conditional BERT. `features_of_all_layers` is ELMo's use
(Peters et al. 2018, section 3.3), and `features_of_none` the same network above its own embeddings,
which begin anew and are trained. Ways that the task does not take are left out, and named. Trained
parameters count the heads. The table goes to --out.
"""

from __future__ import annotations

import dataclasses
import shlex
import sys
from pathlib import Path
from typing import Any

import tyro
from commands import heading, recorded, shown

WAYS: dict[str, tuple[tuple[str, ...], float]] = {
    "full": ((), 1.0),
    "random": (("restart(fresh='.')",), 1.0),
    "feature": (("feature",), 20.0),
    "feature_mix": (("feature", "mix"), 20.0),
    "feature_mix_bilstm": (("feature", "mix", "bilstm"), 6.0),
    "feature_mix_bcn": (("feature", "mix", "bcn"), 6.0),
    "feature_mix_esim": (("feature", "mix", "esim"), 6.0),
    "features_of_all_layers": (("feature", "mix(embeddings=True)", "bilstm"), 20.0),
    "features_of_none": (("restart(fresh='/encoder/')", "embedding", "bilstm"), 20.0),
    "embedding": (("embedding",), 2.0),
    "mix": (("mix",), 1.0),
    "frozen": (("frozen(pattern='/embed/')",), 1.0),
    "rates": (("rates(table=(('heads_', 5.0),))",), 1.0),
    "layer_decay": (("layer_decay(decay=0.9)",), 1.5),
    "gradual": (("gradual", "layer_decay(decay=0.9)"), 1.5),
    "chain_thaw": (("chain_thaw",), 1.0),
    "layer_by_layer": (("layer_by_layer(steps=200)",), 1.0),
    "max_norm": (("max_norm(limit=3.0)",), 1.0),
    "siatl": (("sequential", "auxiliary"), 1.0),
    "houlsby": (("houlsby(width=32)",), 6.0),
    "houlsby_64": (("houlsby(width=64)",), 8.0),
    "pfeiffer": (("pfeiffer(width=32)",), 6.0),
    "lora": (("lora(rank=8)",), 6.0),
    "prefix": (("prefix(length=10)",), 20.0),
    "bitfit": (("bitfit",), 10.0),
    "pals": (("pals(width=48, heads=12)",), 1.0),
    "k_adapter": (("k_adapter(width=96, heads=12)",), 4.0),
    "adversarial": (("adversarial(eps=0.15)",), 1.0),
    "rdrop": (("rdrop",), 1.0),
    "self_ensemble": (("self_ensemble(last=5, every=10)",), 1.0),
    "self_distillation": (("self_distillation(last=2)",), 1.0),
}
"""{way: (its adaptations, its rate as a multiple of --lr)}."""

FURTHER = (
    "recipe.phases.0.steps=600 recipe.phases.0.batch=64 recipe.phases.0.length=64 "
    "recipe.phases.1.steps=10 "
    "recipe.phases.1.batch=64 recipe.phases.1.length=64 recipe.schedule.warmup=60"
)
_ONE = "--task {task} --epochs {epochs} --lr {lr}"
_OTHER = "ptm train --init {init} --task {other} --data {other_data} --workdir {tuned}"
_BOTH = (
    "--init {init} --tasks {task} {other} --data {task}={data} {other}={other_data} "
    "--epochs {epochs:.0f} --lr {lr}"
)
ROUTES: dict[str, tuple[str, str]] = {
    "further": (
        f"ptm train {{init}} --data {{before}}.txt --workdir {{before}} --set {FURTHER}",
        f"--init {{before}} --data {{data}} {_ONE}",
    ),
    "stilts": (_OTHER, f"--init {{tuned}} --data {{data}} {_ONE} --adapt restart"),
    "tanda": (_OTHER, f"--init {{tuned}} --data {{data}} {_ONE}"),
    "mt_dnn": ("", _BOTH),
    "pals_tasks": ("", f"{_BOTH} --mixing annealed --adapt 'pals(width=48, heads=12)'"),
    "augmented": (
        "python configs/compare/augmented.py --init {init} --task {task} --data {data} "
        "--workdir {before} --epochs 3",
        f"--init {{init}} --data {{before}}/train.tsv {{heldout}} {_ONE}",
    ),
}
"""{way: (the command before it, the words of its own)}: further pre-training within the task (Sun
et al. 2019, section 5.4), STILTs (Phang et al. 2018), TANDA (Garg et al. 2020), MT-DNN, PALs with
annealed sampling, conditional BERT."""
ON_TEXTS = {"feature_mix_bcn", "tanda", "mt_dnn", "pals_tasks", "augmented"}
"""Ways for classes of whole texts."""
ON_PAIRS = {"feature_mix_esim"}
"""Ways for pairs of texts."""
OF_TWO = {"stilts", "tanda", "mt_dnn", "pals_tasks"}
"""Ways that need another task."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Args:
    init: str
    """A workdir, or a Hugging Face checkpoint."""
    task: str
    """As `ptm train --task`."""
    data: str
    """The task's data."""
    workdir: Path
    """Where the runs lie."""
    only: tuple[str, ...] = ()
    """These ways alone."""
    lr: float = 1.5e-4
    """The rate of full fine-tuning."""
    epochs: float = 2.0
    """Of every way."""
    other: str = ""
    """NAME=PATH: another task with its data, for STILTs, TANDA, MT-DNN and PALs; without it they
    are left out."""
    seeds: int = 1
    """Runs of a way."""
    words: str = ""
    """More words for every command, as '--batch 16 --length 64'."""
    out: Path = Path("benchmarks/adaptations.md")
    """The table."""


def main(args: Args) -> None:
    """Run what is missing, and write the table."""
    recorded(
        "way", [*WAYS, *ROUTES], args.only or _taken(args), args.workdir,
        words=lambda way: _words(way, args), facts=lambda way, found: _facts(way, found, args),
        before=lambda way: _before(way, args), write=lambda results: _write(args, results),
    )  # fmt: skip


def _taken(args: Args) -> list[str]:
    """The ways that fit the task; what is left out is named."""
    from ptm_jax.tasks.catalogue import catalogue
    from ptm_jax.tasks.formats.labelled import Labelled

    examples = catalogue.get(args.task).examples
    texts, pairs = isinstance(examples, Labelled), bool(getattr(examples, "second", ()))
    unfit = (
        (set() if texts else ON_TEXTS)
        | (set() if pairs else ON_PAIRS)
        | (set() if args.other else OF_TWO)
    )
    if unfit:
        print(
            f"left out: {', '.join(sorted(unfit))} (for classes of texts, pairs, or with --other)",
            file=sys.stderr,
        )
    return [way for way in [*WAYS, *ROUTES] if way not in unfit]


def _facts(way: str, found: dict, args: Args) -> dict:
    """The cells of a way in the table."""
    figures, mine = _figures(found), f"{args.task}/"
    several = any("/" in name for name in figures)  # a mean of the tasks, and TASK/METRIC
    own = {
        name.removeprefix(mine): value
        for name, value in figures.items()
        if not several or name.startswith(mine)
    }
    return {**_counts(args.workdir / way), "metrics": own}


def _words(way: str, args: Args) -> list[str]:
    """The words of the command of a way."""
    if way in ROUTES:
        words = ["train", *shlex.split(ROUTES[way][1].format(**_names(way, args)))]
        adapt = words.index("--adapt") if "--adapt" in words else len(words)
        words, last = words[:adapt], words[adapt:]
    else:
        adapt, rate = WAYS[way]
        words = [
            "train",
            "--init",
            args.init,
            "--task",
            args.task,
            "--data",
            args.data,
            "--epochs",
            str(args.epochs),
        ]
        words += ["--lr", f"{args.lr * rate:g}"]
        last = ["--adapt", *adapt] if adapt else []
    return [
        *words,
        "--seeds",
        str(args.seeds),
        *shlex.split(args.words),
        *last,
        "--workdir",
        str(args.workdir / way),
    ]


def _before(way: str, args: Args) -> list[list[str]]:
    """The command before that of a way, if there is one. Writes the texts that it reads."""
    command = shlex.split(ROUTES[way][0].format(**_names(way, args))) if way in ROUTES else []
    if not command:
        return []
    if way == "further":
        from ptm_jax.tasks.catalogue import catalogue

        examples = catalogue.get(args.task).examples.settled((args.data,))
        rows = examples.examples(examples.files((args.data,))["train"])
        folder = Path(_names(way, args)["before"])
        lines = "".join(f"{text}\n" for row in rows for text in examples.texts(row))
        folder.with_suffix(".txt").write_text(lines, encoding="utf8")
    sets, option = [], ""
    for word in shlex.split(args.words):
        option = word if word.startswith("--") else option
        sets += [word] if option == "--set" and word != option else []
    return [[*command, *(["--set", *sets] if sets else [])]]


def _names(way: str, args: Args) -> dict[str, Any]:
    """What stands for the words in braces."""
    from ptm_jax.tasks.catalogue import catalogue

    other, _, path = args.other.partition("=")
    heldout = catalogue.get(args.task).examples.files((args.data,))["heldout"].path
    folders = {"before": args.workdir / f"{way}_before", "tuned": args.workdir / f"{other}_before"}
    own = {
        "init": args.init,
        "task": args.task,
        "data": args.data,
        "epochs": args.epochs,
        "lr": f"{args.lr:g}",
    }
    return {**own, "other": other, "other_data": path, "heldout": heldout, **folders}


def _counts(workdir: Path) -> dict[str, int]:
    """Parameters that a finished run could move, and all of the network's."""
    from ptm_jax.core import paths
    from ptm_jax.core.spec.rebuild import rebuild
    from ptm_jax.runs.run import Run, adapter_parts
    from ptm_jax.training.updates.freedom import Freedom

    run = Run(workdir) if (workdir / "config.json").is_file() else Run(workdir / "seed_0")
    adapt, towers = (rebuild(run.system.get(name, ()), run.kinds) for name in ("adapt", "towers"))
    params = {name: tree for name, tree in run.restore()[0].items() if name != "recent"}
    own, rest = adapter_parts(params, Freedom(tuple(adapt), towers))
    return {"trained": paths.count(own), "parameters": paths.count(own) + paths.count(rest)}


def _figures(document: dict) -> dict[str, list[float]]:
    """{metric: [mean, standard deviation]}."""
    metrics = document["metrics"]
    if "runs" not in document:
        return {name: [value, 0.0] for name, value in metrics.items()}
    return {name: [found["mean"], found["sd"]] for name, found in metrics.items()}


def _write(args: Args, results: dict) -> None:
    lines = heading(f"Ways of adapting: {args.task}", args.init)
    lines += ["| way | trained parameters | share | metrics (mean ± sd) | seeds | minutes |"]
    lines += ["| --- | ---: | ---: | --- | --- | --- |"]
    for way, found in results.items():
        figures = ", ".join(
            f"{name} {shown(mean, sd, args.seeds)}" for name, (mean, sd) in found["metrics"].items()
        )
        share = 100 * found["trained"] / found["parameters"]
        lines.append(
            f"| {way} | {found['trained']:,} | {share:.2f}% | {figures} | {args.seeds} | "
            f"{found['minutes']} |"
        )
    commands = [
        one
        for found in results.values()
        for one in (*found.get("before", []), ["ptm", *found["words"]])
    ]
    lines += ["", "```", *map(shlex.join, commands), "```"]
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text("\n".join(lines) + "\n", encoding="utf8")


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
