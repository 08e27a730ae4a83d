"""What small models know: probes and cloze tests of every run of `ptm study known`.

    (cd DATA; ptm study known --workdir RUNS)
    python -m benchmarks.known --runs RUNS --data DATA --beside PATH/TO/MiniLM

Each question is a command, whose words and answer lie in RUNS/asked; a command that was stopped
goes on there. Description lengths are of the first seed. RUNS/known.md has the table: means over
the seeds and standard deviations, of a probe at its best layer. A way is above another where its
worst seed is above the other's best one: by chance, with three seeds each, once in ten pairs.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ptm_jax.cli.main import main as command

TREES = "ud/en_ewt/en_ewt-ud-dev_first1000.conllu"
PROBED = "accuracy", "selectivity", "compression"
QUESTIONS = {
    "trees": ("probe", TREES, ("uuas", "dspr", "root"), "--by", "structural", "--rank", "64"),
    "agreement": (
        "evaluate", "probing/linzen-agreement",
        ("accuracy", "0 attractors", "1 attractors", "2 attractors", "4 attractors"),
    ),
    "blimp": ("evaluate", "probing/blimp", ("accuracy",)),
    "ettinger": (
        "evaluate", "probing/lm-diagnostics",
        ("CPRAG-102 top 5", "ROLE-88 top 5", "ROLE-88 sensitive"),
    ),
    "lama": ("evaluate", "probing/lama", ("precision", "precision at 10")),
    "phrases": ("probe", TREES, ("jsd", "l2"), "--by", "constituency"),
    "spans": (
        "probe", TREES, ("f1 of layers 0 to n", "selectivity"),
        "--by", "spans", "--label", "deprel",
    ),
    **{
        label: ("probe", TREES, PROBED, "--label", label, "--bits")
        for label in ("upos", "arc-label", "arc", "deprel", "xpos")
    },
}  # fmt: skip
"""{name: the command, its data below DATA, the figures of the table, options}."""
WEAK = {
    "accuracy": ("commoner form", "majority", "unigram", "most frequent label of the word"),
    "uuas": ("uuas of a chain",),
    "jsd": ("right branching", "random trees"),
    "f1 of layers 0 to n": ("most frequent label",),
    "precision": ("commonest answer", "unigram"),
    **{f"{suite} top 5": (f"{suite} top 5: commonest",) for suite in ("CPRAG-102", "ROLE-88")},
    "ROLE-88 sensitive": ("ROLE-88 sensitive: unigram",),
}
"""{figure: its baselines}."""
WAYS = "masked", "causal", "replaced"


def asked(model: Path, question: str, data: Path, folder: Path, name: str) -> dict[str, Any]:
    """Returns the answer of the command, or {"refused": its line}."""
    file = folder / f"{name}_{question}.json"
    if not file.is_file():
        kind, source, _, *options = QUESTIONS[question]
        options += ["--task", question] if kind == "evaluate" else []
        options = [one for one in options if one != "--bits" or "seed-0" in name]
        words = [kind, str(model), "--data", str(data / source), *options, "--json"]
        print("ptm", *words, flush=True)
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = command(words)
        answer = json.loads(out.getvalue()) if status == 0 else {"refused": err.getvalue().strip()}
        file.write_text(json.dumps({"command": words, **answer}, indent=1) + "\n")
    return json.loads(file.read_text())


def figures(question: str, answer: Mapping[str, Any]) -> tuple[dict[str, float], dict[str, str]]:
    """Returns the figures of an answer, a probe's at its best layer, and {figure: baselines}."""
    shown = QUESTIONS[question][2]
    layers = {name: np.array(row, float) for name, row in answer.get("layers", {}).items()}
    values = answer.get("metrics", {})
    if layers:
        best = int(layers[shown[0]].argmax())
        values = {name: row[best] for name, row in layers.items()}
        values["best layer"] = best + answer.get("first layer", 0)
        shown = (*shown, "best layer")
    simple = {**values, **answer.get("baselines", {})}
    weak = {
        f"{question}: {name}": ", ".join(f"{n} {simple[n]:.3f}" for n in names if n in simple)
        for name, names in WEAK.items()
    }
    return {f"{question}: {name}": float(values[name]) for name in shown if name in values}, weak


def models(runs: Path, seeds: Sequence[int], beside: str | None) -> Iterator[tuple[str, str, Path]]:
    """Yields (column, name, folder) of the runs that are there, the ones of a seed together."""
    for seed in seeds:
        names = {way: f"seed-{seed}_way-{way}_budget-trained" for way in WAYS}
        names["one step"] = f"seed-{seed}_way-masked_budget-one-step"
        for column, name in names.items():
            if (runs / "runs" / name / "row.json").is_file():
                yield column, name, runs / "runs" / name
    if beside is not None:
        yield Path(beside).name, "beside", Path(beside)


def table(values: Mapping[str, Mapping[str, list[float]]], weak: Mapping[str, str]) -> str:
    """Returns the table {figure: {column: its seeds}}, and a line for each figure and way."""
    columns = list(dict.fromkeys(column for row in values.values() for column in row))
    lines = [f"| {' | '.join(['', *columns, 'baseline'])} |", "|---" * (len(columns) + 2) + "|"]
    verdicts = []
    for figure, row in values.items():
        cells, digits = [], 1 if figure.endswith("layer") else 3
        for column in columns:
            seeds = row.get(column, [])
            spread = f" ± {np.std(seeds, ddof=1):.{digits}f}" if len(seeds) > 1 else ""
            cells.append(f"{np.mean(seeds):.{digits}f}{spread}" if seeds else "")
        lines.append(f"| {' | '.join([figure, *cells, weak.get(figure, '')])} |")
        several = {way: row[way] for way in WAYS if len(row.get(way, [])) > 1}
        above = [
            f"{one} above {other}"
            for one, other in itertools.permutations(several, 2)
            if min(several[one]) > max(several[other])
        ]
        verdicts += [f"- {figure}: {'; '.join(above) or 'no way is above another'}"] * bool(several)
    return "\n".join([*lines, "", *verdicts, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--beside", help="a published encoder for the same questions")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--questions", nargs="+", default=list(QUESTIONS), choices=QUESTIONS)
    args = parser.parse_args()
    folder = args.runs / "asked"
    folder.mkdir(exist_ok=True)
    values: dict[str, dict[str, list[float]]] = {}
    weak: dict[str, str] = {}
    for question in args.questions:
        for column, name, model in models(args.runs, args.seeds, args.beside):
            mine, lower = figures(question, asked(model, question, args.data, folder, name))
            for figure, value in mine.items():
                values.setdefault(figure, {}).setdefault(column, []).append(value)
            weak |= lower
    text = table(values, weak)
    (args.runs / "known.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
