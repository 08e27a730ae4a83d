"""Ways of adapting one model to one task: what each trains, what it reaches, what it takes.

    python configs/compare/adaptations.py --init MODEL --task sst2 --data SST-2 --workdir runs/adapt
    python configs/compare/adaptations.py --init MODEL --task wnut17 --data WNUT17 --workdir runs/ner --only houlsby lora

Every way is `ptm train --task --adapt` as the table prints it, with the rate that its paper finds right for it, and goes on
where it was stopped. `random` begins with nothing of the model but its size. Trained parameters count the heads. The table
goes to --out.
"""

from __future__ import annotations

import dataclasses
import shlex
from pathlib import Path

import tyro

from ptm_jax.bench.commands import heading, recorded, shown

WAYS: dict[str, tuple[tuple[str, ...], float]] = {
    "full": ((), 1.0),
    "random": (("restart(fresh='.')",), 1.0),
    "feature": (("feature",), 20.0),
    "feature_mix": (("feature", "mix"), 20.0),
    "feature_mix_bilstm": (("feature", "mix", "bilstm"), 6.0),
    "feature_mix_bcn": (("feature", "mix", "bcn"), 6.0),
    "embedding": (("embedding",), 2.0),
    "mix": (("mix",), 1.0),
    "layer_decay": (("layer_decay(decay=0.9)",), 1.5),
    "gradual": (("gradual", "layer_decay(decay=0.9)"), 1.5),
    "chain_thaw": (("chain_thaw",), 1.0),
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
    "self_ensemble": (("self_ensemble(last=5, every=10)",), 1.0),
    "self_distillation": (("self_distillation(last=2)",), 1.0),
}
"""{way: (its adaptations, its rate as a multiple of --lr)}."""


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
    seeds: int = 1
    """Runs of a way."""
    words: str = ""
    """More words for every command, as '--batch 16 --length 64'."""
    out: Path = Path("benchmarks/adaptations.md")
    """The table."""


def main(args: Args) -> None:
    """Run what is missing, and write the table."""
    recorded(
        "way", WAYS, args.only, args.workdir,
        words=lambda way: _words(way, args), facts=lambda way, found: _facts(way, found, args),
        write=lambda results: _write(args, results),
    )  # fmt: skip


def _facts(way: str, found: dict, args: Args) -> dict:
    """What the table says of a way."""
    return {**_counts(args.workdir / way), "metrics": _figures(found)}


def _words(way: str, args: Args) -> list[str]:
    """The words of the command of a way."""
    adapt, rate = WAYS[way]
    words = ["train", "--init", args.init, "--task", args.task, "--data", args.data, "--epochs", str(args.epochs)]
    words += ["--lr", f"{args.lr * rate:g}", "--seeds", str(args.seeds), *shlex.split(args.words)]
    words += ["--adapt", *adapt] if adapt else []
    return [*words, "--workdir", str(args.workdir / way)]


def _counts(workdir: Path) -> dict[str, int]:
    """Parameters that a finished run could move, and all of the network's."""
    from ptm_jax.core import paths
    from ptm_jax.core.rebuild import rebuild
    from ptm_jax.systems.kinds import kinds_of
    from ptm_jax.train import adapters, setup
    from ptm_jax.train.checkpoints import restore_params

    run = workdir if (workdir / "config.json").is_file() else workdir / "seed_0"
    adapt = rebuild(setup.record_of(run)["config"]["system"].get("adapt", []), kinds_of())
    params = {name: tree for name, tree in restore_params(run)[0].items() if name != "recent"}
    own, rest = adapters.parts(params, tuple(adapt))
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
        figures = ", ".join(f"{name} {shown(mean, sd, args.seeds)}" for name, (mean, sd) in found["metrics"].items())
        share = 100 * found["trained"] / found["parameters"]
        lines.append(f"| {way} | {found['trained']:,} | {share:.2f}% | {figures} | {args.seeds} | {found['minutes']} |")
    lines += ["", "```", *(f"ptm {shlex.join(found['words'])}" for found in results.values()), "```"]
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text("\n".join(lines) + "\n", encoding="utf8")


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
