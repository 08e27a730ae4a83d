"""A biaffine parser on Universal Dependencies, and its accuracy over the information that a
bottleneck lets through.

    python -m benchmarks.information --workdir runs/information --out benchmarks

The parser (Dozat and Manning 2017) reads words by their characters: convolutions, a bidirectional
LSTM, and a second one below its scores, all trained on the treebank alone. With the variational
bottleneck (Li and Eisner 2019), the second LSTM reads a Gaussian, or one of 64 tags, drawn from the
state of each word; beta = gamma weigh the nats that it has of the text. The nats are those of the
held-out sentences at the end of the training. A finished run is read, a stopped one goes on; the
table has what is finished so far. `--picture PAGE` draws the accuracy over the nats of a page,
beside the page.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import time
from collections.abc import Iterator
from pathlib import Path

from ptm_jax import systems
from ptm_jax.adapt.losses.information import InformationBottleneck
from ptm_jax.adapt.modules.representation import Recurrent
from ptm_jax.core.recipe import AdamW, Linear, Phase, Recipe
from ptm_jax.core.spec import with_field
from ptm_jax.core.system import Experiment, System
from ptm_jax.core.types import Vocab
from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec
from ptm_jax.data.tokenizers.words import ALPHABETS
from ptm_jax.encoders.model import Model
from ptm_jax.encoders.recurrent.recurrent import LSTMEncoder
from ptm_jax.nn.embeddings.characters import CharacterCNN
from ptm_jax.nn.recurrent.lstm import LSTM
from ptm_jax.nn.recurrent.recurrence import Bidirectional
from ptm_jax.tasks.catalogue import catalogue
from ptm_jax.tuning import finetuning, selection

CODES = ("none", "gaussian", "discrete")
BETAS = (0.0, 0.001, 0.01, 0.1)
BATCH, LENGTH = 16, 40
PUBLISHED = (
    "UDPipe 2 (multilingual BERT, UD 2.10, test, gold words: its page of models)",
    94.48,
    92.46,
)


def network(width: int, dropout: float) -> System:
    """Returns words of width 96 from their characters, and a bidirectional LSTM of 2 x `width`
    units."""
    parent = systems.get("elmo_mini")
    embed = CharacterCNN(
        vocab=Vocab(size=16_384), width=96, filters=((1, 16), (2, 32), (3, 48)), size=16,
        alphabet=ALPHABETS["elmo"], highway=1, symbols=(),
    )  # fmt: skip
    both = Bidirectional(LSTM(width), LSTM(width, backward=True))
    encoder = LSTMEncoder(embed=embed, layers=(both,), dropout=dropout, locked=True, stateful=False)
    return dataclasses.replace(
        parent,
        name="characters",
        towers={"main": Model(encoder=encoder, heads={})},
        tokenizer=TokenizerSpec(kind="word", vocab=16_384, lowercase=False),
        examples=dataclasses.replace(parent.examples, length=16),
    )


def experiment(args: argparse.Namespace, code: str, beta: float, seed: int) -> Experiment:
    """Returns the training of the parser through a bottleneck, or (`code` "none") without one."""
    data, examples = (str(args.data),), catalogue.get("parsing").examples
    steps = math.ceil(args.epochs * math.ceil(examples.settled(data).count(data) / BATCH))
    recipe = Recipe(
        phases=(Phase(steps=steps, batch=BATCH, length=LENGTH),), lr=args.lr,
        optimizer=AdamW(b2=0.9, weight_decay=0.0),
        schedule=Linear(warmup=steps // 20), clip=5.0,
    )  # fmt: skip
    vib = (
        ()
        if code == "none"
        else (InformationBottleneck(code=code, width=96, beta=beta, gamma=beta),)
    )
    adapt = (*vib, Recurrent(hidden=args.hidden, dropout=args.dropout))
    parent = network(args.width, args.dropout)
    found = finetuning.from_scratch(
        parent, "parsing", recipe, data, min_count=2, dropout=0.33, adapt=adapt, seed=seed
    )
    found = dataclasses.replace(found, save_every=200)
    for field, size in (("arcs", args.arcs), ("types", args.types)):
        found = with_field(found, field, size)
    return found


def nats(run: Path) -> dict[str, float]:
    """Returns the last held-out values of a run."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line["values"] for line in lines if line["split"] == "heldout"][-1]


def rows(args: argparse.Namespace) -> Iterator[tuple[str, float, int, Path]]:
    """Yields (code, beta, seed, workdir) of every run, those without a bottleneck first."""
    for code in args.codes:
        for beta in (0.0,) if code == "none" else args.betas:
            for seed in range(args.seeds):
                yield code, beta, seed, args.workdir / f"{code}_{beta:g}_{seed}"


def table(args: argparse.Namespace) -> str:
    """Returns the table of the finished runs in Markdown, mean over the seeds."""
    found: dict[tuple[str, float], list[tuple[float, ...]]] = {}
    for code, beta, _, run in rows(args):
        if (known := selection.tuned(run)) is not None:
            values = nats(run)
            kept = tuple(
                values.get(name, math.nan) for name in ("information", "context_information")
            )
            found.setdefault((code, beta), []).append(
                (100 * known.metrics["uas"], 100 * known.metrics["las"], *kept)
            )
    lines = [
        "| bottleneck | beta | seeds | UAS | LAS | I(T; X), nats a word | I(T; X given the word) |"
    ]
    lines.append("|---|" + "---:|" * 6)
    for (code, beta), runs in sorted(
        found.items(), key=lambda item: (item[0][0] != "none", *item[0])
    ):
        uas, las, *kept = (sum(column) / len(runs) for column in zip(*runs, strict=True))
        cells = [
            f"{uas:.1f}",
            f"{las:.1f}",
            *("" if math.isnan(one) else f"{one:.2f}" for one in kept),
        ]
        lines.append(
            f"| {code} | {'' if code == 'none' else f'{beta:g}'} | {len(runs)} | "
            f"{' | '.join(cells)} |"
        )
    lines.append(f"| {PUBLISHED[0]} | | | {PUBLISHED[1]:.1f} | {PUBLISHED[2]:.1f} | | |")
    return "\n".join(lines)


def picture(page: Path) -> None:
    """Draws UAS over I(T; X) of the rows of a page with a bottleneck; a dashed line is the last row
    without one."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    found = [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in page.read_text().splitlines()
        if line[:2] == "| "
    ]
    canvas = Figure(figsize=(6.0, 3.6), dpi=120, layout="constrained")
    FigureCanvasAgg(canvas)
    axes = canvas.subplots()
    for code in CODES[1:]:
        points = sorted((float(row[5]), float(row[3]), row[1]) for row in found if row[0] == code)
        if points:
            axes.plot(
                [nats for nats, _, _ in points],
                [uas for _, uas, _ in points],
                "o-",
                linewidth=1.2,
                label=code,
            )
        for nats, uas, beta in points:
            axes.annotate(
                beta, (nats, uas), textcoords="offset points", xytext=(4, -11), fontsize=8
            )
    axes.axhline(
        [float(row[3]) for row in found if row[0] == "none"][-1],
        color="grey",
        linestyle="--",
        linewidth=1,
    )
    axes.set(xscale="log", xlabel="I(T; X), nats a word (beta beside each point)", ylabel="UAS")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="lower right")
    canvas.savefig(page.with_suffix(".png"), metadata={"Software": "ptm_jax"})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--data", type=Path, default=Path("../shared/data/ud/en_partut"))
    parser.add_argument("--codes", nargs="+", default=CODES, choices=CODES)
    parser.add_argument(
        "--betas", nargs="*", type=float, default=BETAS, help="none given: the default"
    )
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--epochs", type=float, default=30.0)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--dropout", type=float, default=0.2)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--arcs", type=int, default=200)
    parser.add_argument("--types", type=int, default=50)
    parser.add_argument("--workdir", type=Path, default=Path("runs/information"))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--picture", type=Path, help="a page: draw it, and train nothing")
    args = parser.parse_args()
    if args.picture is not None:
        return picture(args.picture)
    args.betas = args.betas or BETAS
    for code, beta, seed, run in rows(args):
        start = time.perf_counter()
        found = selection.finetune(experiment(args, code, beta, seed), run, "parsing", quiet=True)
        print(
            code,
            beta,
            seed,
            dict(found.metrics),
            f"{time.perf_counter() - start:.0f} s",
            flush=True,
        )
        if found.ended == "stopped":
            break
        if args.out is not None:
            title = (
                f"# A parser over the information of its words ({args.data.name}, "
                f"{args.epochs:g} epochs)"
            )
            (args.out / "information.md").write_text(f"{title}\n\n{table(args)}\n")
    print(table(args))


if __name__ == "__main__":
    main()
