"""Link prediction beside published figures, and the speed of an epoch beside pykeen's.

    python -m benchmarks.links --data ../shared/data/kg --runs runs/links     trains what is
                                                                              missing, writes
                                                                              links.md
    python -m benchmarks.links --data ../shared/data/kg --speed distmult      epochs of ours and
                                                                              pykeen's in turns

Runs are those of `RUNS`: every graph with each of the four models, at the width, the candidates and
the epochs given there. The test triples are kept back; figures are of the dev triples, filtered by
train and dev, and stand beside published ones of test. Kinship is the copy in pykeen's package, and
pykeen that of `make .venv/.pykeen`.
"""

from __future__ import annotations

import collections
import dataclasses
import json
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
import tyro

from ptm_jax import systems
from ptm_jax.core.recipe import AdamW, Linear, Phase
from ptm_jax.core.spec import with_field
from ptm_jax.core.system import Experiment, System
from ptm_jax.data.corpora.prepare import prepare
from ptm_jax.data.corpora.store import Corpus
from ptm_jax.mesh import rules
from ptm_jax.tasks import completion
from ptm_jax.training import loop
from ptm_jax.training.start import differing, setup
from ptm_jax.training.steps.step import program

PUBLISHED = {
    ("umls", "conve"): (0.94, 0.99, "Dettmers et al. 2018, Table 5"),
    ("kinship", "conve"): (0.83, 0.98, "the table of Dettmers' repository ConvE"),
    ("wn18rr", "transe"): (0.226, 0.501, "Nguyen et al. 2018"),
    ("wn18rr", "distmult"): (0.43, 0.49, "Dettmers et al. 2018, Table 4"),
    ("wn18rr", "conve"): (0.43, 0.52, "Dettmers et al. 2018, Table 4"),
}
"""{(graph, model): (MRR, Hits@10, source)} on the test triples."""
MISSING = {"umls": 661, "kinship": 1074, "wn18rr": 3134}
"""Test triples of the published splits, which are not read."""
PYKEEN = Path(sys.prefix) / "pykeen"
PAGE = Path(__file__).with_suffix(".md")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    """A model on a graph: rows of `triples` that share `noise` entities, `rows` of them in an
    update, Adam at `lr`."""

    vocab: int
    width: int = 128
    triples: int = 16
    rows: int = 32
    noise: int = 64
    epochs: int = 100
    lr: float = 0.01
    loss: str = "softmax"


UMLS, WN18RR = (
    Setting(vocab=184),
    Setting(vocab=40_573, triples=64, rows=16, noise=512, epochs=40, lr=0.005),
)
BINARY = dataclasses.replace(UMLS, loss="binary", width=200, lr=0.003, rows=8, epochs=60)
KINSHIP = {"vocab": 132}
RUNS = {
    ("umls", "distmult"): UMLS,
    ("umls", "transe"): UMLS,
    ("umls", "transh"): UMLS,
    ("umls", "conve"): BINARY,
    ("kinship", "distmult"): dataclasses.replace(UMLS, **KINSHIP),
    ("kinship", "transe"): dataclasses.replace(UMLS, **KINSHIP),
    ("kinship", "transh"): dataclasses.replace(UMLS, **KINSHIP),
    ("kinship", "conve"): dataclasses.replace(BINARY, **KINSHIP),
    ("wn18rr", "distmult"): WN18RR,
    ("wn18rr", "transe"): WN18RR,
    ("wn18rr", "transh"): WN18RR,
    ("wn18rr", "conve"): dataclasses.replace(
        WN18RR, width=200, rows=8, noise=1024, epochs=12, lr=0.003
    ),
}


def system(model: str, given: Setting, triples: int) -> System:
    """Returns a system of the catalogue at a setting, for a graph of so many triples."""
    parent = with_field(systems.get(model), "width", given.width)
    own = parent.objective
    if given.loss == "softmax":  # lengths carry how frequent an entity is
        plain = {"unit": False, "decay": 0.0, "soft": 0.0, "smoothing": 0.0}
        own = dataclasses.replace(own, loss="softmax", candidates="noise", sides="both", **plain)
    steps = -(-triples // (given.triples * given.rows)) * given.epochs
    recipe = dataclasses.replace(
        parent.recipe,
        phases=(Phase(steps=steps, batch=given.rows, length=3 * given.triples),),
        lr=given.lr,
        optimizer=AdamW(weight_decay=0.0, eps=1e-8),
        schedule=Linear(end=0.01),
    )
    noise = dataclasses.replace(parent.corruption, noise=given.noise)
    parent = (
        with_field(with_field(parent, "norm", 2), "limit", 0.3)
        if model in ("transe", "transh")
        else parent
    )
    return dataclasses.replace(parent, objective=own, corruption=noise, recipe=recipe)


def graph_of(args: Args, graph: str) -> Path:
    """Returns the folder of a graph's triples, train.tsv and dev.tsv."""
    if graph != "kinship":
        return args.data / graph
    out = folder_of("kinship-triples")
    out.mkdir(parents=True, exist_ok=True)
    for theirs, ours in (("train.txt", "train.tsv"), ("valid.txt", "dev.tsv")):
        shutil.copy(PYKEEN / "pykeen" / "datasets" / "kinships" / theirs, out / ours)
    return out


def corpus_of(args: Args, graph: str, given: Setting, model: str) -> Corpus:
    """Returns the prepared triples of a graph; nothing is held out, since the dev triples are."""
    spec = dataclasses.replace(systems.get(model).tokenizer, vocab=given.vocab)
    return prepare(
        [f"triples:{graph_of(args, graph)}"], folder_of(graph), tokenizer=spec, heldout=0.0
    )


def folder_of(graph: str) -> Path:
    return Path(os.environ.get("TMPDIR", "/tmp")) / f"links-{graph}"


def train(args: Args, graph: str, model: str) -> dict[str, Any]:
    """Trains and evaluates; returns the metrics and the seconds of training."""
    given = RUNS[graph, model]
    corpus = corpus_of(args, graph, given, model)
    work = system(model, given, corpus.size("train")["tokens"] // 3)
    began = time.monotonic()
    config = Experiment(
        system=work,
        data=(str(corpus.dir),),
        heldout=0.0,
        precision="float32",
        log_every=200,
        save_every=0,
        seed=args.seed,
    )
    run = args.runs / f"{graph}-{model}-{args.seed}"
    loop.train(setup.experiment(config, ()), run, quiet=True)
    seconds = time.monotonic() - began
    found = completion.evaluate(run, [str(graph_of(args, graph))])
    return {
        **found.metrics,
        "triples": found.examples,
        "seconds": seconds,
        "cores": len(os.sched_getaffinity(0)),
    }


def perfect(folder: Path, missing: int, draws: int = 20) -> dict[str, float]:
    """Returns what a model without an error has on the dev triples where the test triples do not
    filter: of the n known answers of a query, n * missing / known more are in the test triples on
    average, and stand before or behind the asked one at random. Queries with many answers lose
    most."""

    def read(name):
        return [tuple(line.split("\t")) for line in (folder / name).read_text().splitlines()]

    dev, draw, ranks = read("dev.tsv"), np.random.default_rng(0), []
    known = read("train.tsv") + dev
    for pick in (lambda t: t[:2], lambda t: t[1:]):
        answers = collections.Counter(map(pick, known))
        more = draw.poisson(
            np.array([answers[pick(t)] for t in dev])[:, None] * missing / len(known),
            (len(dev), draws),
        )
        ranks.append(1 + draw.integers(0, more + 1))
    rank = np.concatenate(ranks)
    return {
        "mrr": float((1 / rank).mean()),
        "hits@1": float((rank == 1).mean()),
        "hits@10": float((rank <= 10).mean()),
    }


def page(found: dict[str, Any]) -> str:
    """The page: a row for every run beside the published figures."""
    lines = [
        "# Link prediction: dev triples, filtered, beside published figures of the test triples",
        "",
        "| graph | model | MRR | Hits@1 | Hits@10 | published MRR | published Hits@10 | "
        "seconds | cores |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for name, row in found.items():
        if name.startswith("perfect "):
            lines.append(
                f"| {name[8:]} | perfect | {row['mrr']:.3f} | {row['hits@1']:.3f} | "
                f"{row['hits@10']:.3f} | - | - | - | - |"
            )
    for graph, model in RUNS:
        mrr, hits, _ = PUBLISHED.get((graph, model), ("-", "-", ""))
        if row := found.get(f"{graph} {model}"):
            figures = (
                f"{row['mrr']:.3f} | {row['hits@1']:.3f} | {row['hits@10']:.3f} | {mrr} | {hits}"
            )
            lines.append(
                f"| {graph} | {model} | {figures} | {row['seconds']:.0f} | {row['cores']} |"
            )
        else:
            lines.append(f"| {graph} | {model} | - | - | - | {mrr} | {hits} | - | - |")
    sources = "; ".join(
        f"{graph} {model}: {source}" for (graph, model), (*_, source) in PUBLISHED.items()
    )
    lines += [
        "",
        "`python -m benchmarks.links`. Dev triples are ranked without the test triples as a "
        "filter, so other right answers may rank first.",
        "`perfect` is the score of a model without errors, seconds are of training, and Kinship "
        "is pykeen's copy at the settings of UMLS.",
        f"Sources: {sources}.",
        "",
        "## Queries a second",
        "",
        "| graph, model | width | negatives | cores | ours | pykeen 1.11.1 | times |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for name, row in found.items():
        if name.startswith("speed "):
            sizes = f"{row['width']} | {row['negatives']} | {row['cores']}"
            ours, theirs = row["ours"], row["pykeen"]
            lines.append(
                f"| {name.removeprefix('speed ')} | {sizes} | {ours:,.0f} | {theirs:,.0f} | "
                f"{ours / theirs:.2f} |"
            )
    lines += [
        "",
        "The median of five rounds on the same cores; on one core of processor time. A query is a",
        "triple; of ConvE it is one side of a triple with all entities as candidates.",
    ]
    return "\n".join([*lines, ""])


def ours(args: Args, corpus: Corpus, model: str, given: Setting) -> Any:
    """Returns a function that runs `steps` updates, compiled, on batches that lie in memory."""
    work = system(model, given, 1)
    if given.loss != "binary":  # pykeen's negatives, too, replace one side of a triple
        work = with_field(work, "sides", "drawn")
    config = Experiment(system=work, data=(str(corpus.dir),), heldout=0.0, precision="float32")
    config = differing.resolve(config, corpus.vocab)
    config = dataclasses.replace(config, system=setup.facts.fill(config.system, lambda: corpus))
    stream = setup.stream(config, corpus, 0)
    batches = [next(stream) for _ in range(8)]
    made, _ = program(config.system, 0).on(
        rules.make_mesh(), "replicated", batches[0]
    )  # with the kernels of a run
    step, state = jax.jit(made.step, donate_argnums=0), jax.jit(made.init)(batches[0])
    box = [state]

    def run(steps: int) -> float:
        began = clock()
        for number in range(steps):
            box[0], _ = step(box[0], batches[number % 8])
        jax.block_until_ready(box[0].params)
        return clock() - began

    return run


def clock() -> float:
    """Returns the seconds of a clock: on one core of processor time, which other work on the
    machine does not change."""
    return time.process_time() if len(os.sched_getaffinity(0)) == 1 else time.perf_counter()


def pykeens(args: Args, graph: str, model: str, given: Setting) -> Any:
    """Returns a function that runs updates of pykeen's model: the same width, batch, negatives and
    optimizer."""
    sys.path.append(str(PYKEEN))  # the Makefile's target
    import torch
    from pykeen.models import model_resolver
    from pykeen.training import LCWATrainingLoop, SLCWATrainingLoop
    from pykeen.triples import LCWAInstances, TriplesFactory
    from torch.optim.optimizer import register_optimizer_step_post_hook

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    rows = np.array(
        [
            line.split("\t")
            for line in (graph_of(args, graph) / "train.tsv").read_text().splitlines()
        ]
    )
    every = (
        given.loss == "binary"
    )  # all entities are candidates: pykeen's local closed world, with inverse relations
    factory = TriplesFactory.from_labeled_triples(rows, create_inverse_triples=every)
    size, loss = queries(given), "bceaftersigmoid" if every else "softplus"
    made = model_resolver.make(
        model, triples_factory=factory, embedding_dim=given.width, loss=loss, random_seed=0
    )
    optimizer = torch.optim.Adam(made.parameters(), lr=given.lr)
    common = {"model": made, "triples_factory": factory, "optimizer": optimizer}
    if every:
        training = LCWATrainingLoop(**common)
        # Its batch normalisation drops the last batch of an epoch.
        each = len(LCWAInstances.from_triples_factory(factory)) // size
    else:
        training = SLCWATrainingLoop(
            **common, negative_sampler_kwargs={"num_negs_per_pos": args.negatives}
        )
        each = -(-len(rows) // size)
    updates: list[object] = []
    register_optimizer_step_post_hook(lambda *_: updates.append(1))
    ends: list[int] = []

    def run(steps: int) -> float:
        began, before = clock(), len(updates)
        again = bool(ends)
        ends.append(sum(ends[-1:]) + max(1, steps // each))  # a loop goes on from its last epoch
        training.train(
            triples_factory=factory, num_epochs=ends[-1], batch_size=size, use_tqdm=False,
            only_size_probing=False, continue_training=again,
            use_tqdm_batch=False, clear_optimizer=False,
        )  # fmt: skip
        return (clock() - began) * steps / (len(updates) - before)

    return run


def queries(given: Setting) -> int:
    """The queries of an update: one for a triple, and with all entities as candidates one for its
    head, one for its tail."""
    return given.triples * given.rows * (2 if given.loss == "binary" else 1)


def kept(name: str, row: dict[str, Any]) -> None:
    """Adds a result to links.json."""
    results = PAGE.with_suffix(".json")
    found = json.loads(results.read_text()) if results.exists() else {}
    results.write_text(json.dumps({**found, name: row}, indent=1) + "\n")


def speed(args: Args) -> None:
    """Prints and keeps the queries a second of both sides, in turns: the median of five."""
    given = dataclasses.replace(RUNS[args.graph, args.speed], noise=args.negatives)
    corpus = corpus_of(args, args.graph, given, args.speed)
    sides = {
        "ours": ours(args, corpus, args.speed, given),
        "pykeen": pykeens(args, args.graph, args.speed, given),
    }
    steps, found = args.steps, {name: [] for name in sides}
    for turn in range(6):
        for name, run in sides.items():
            seconds = run(steps)
            if turn:  # the first compiles and warms up
                found[name].append(steps * queries(given) / seconds)
    middle = {name: float(np.median(values)) for name, values in found.items()}
    times, cores = middle["ours"] / middle["pykeen"], len(os.sched_getaffinity(0))
    print(
        f"{args.graph} {args.speed}, width {given.width}, {args.negatives} negatives, "
        f"{cores} cores:"
    )
    print(
        f"ours {middle['ours']:,.0f} queries/s, pykeen {middle['pykeen']:,.0f}: {times:.2f} times"
    )
    candidates = "all" if given.loss == "binary" else args.negatives
    kept(
        f"speed {args.graph} {args.speed}",
        {**middle, "width": given.width, "negatives": candidates, "cores": cores},
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Args:
    """`only`: runs as umls:distmult; `speed`: a model whose speed is compared, on `graph`."""

    data: Path
    runs: Path = Path("runs/links")
    only: tuple[str, ...] = ()
    seed: int = 0
    speed: str | None = None
    graph: str = "wn18rr"
    negatives: int = 32
    steps: int = 85


def main() -> None:
    args = tyro.cli(Args, description=__doc__)
    if args.speed:
        return speed(args)
    results = PAGE.with_suffix(".json")
    for graph, model in RUNS:
        found = json.loads(results.read_text()) if results.exists() else {}
        if f"{graph} {model}" not in found and (not args.only or f"{graph}:{model}" in args.only):
            row = train(args, graph, model)
            kept(f"{graph} {model}", row)
            print(graph, model, json.dumps(row), flush=True)
    for graph, missing in MISSING.items():
        kept(f"perfect {graph}", perfect(graph_of(args, graph), missing))
    PAGE.write_text(page(json.loads(results.read_text())))


if __name__ == "__main__":
    main()
