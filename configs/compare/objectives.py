"""Seven pre-training tasks under one budget of arithmetic, and one probe after the same
fine-tuning.

    python configs/compare/objectives.py --data TEXT --sst2 DIR --workdir runs/compare

One corpus, one tokenizer, one size (2 layers, width 128), one optimizer; every task gets the same
number of floating-point operations in matrix products, forward and backward, so that a task that
costs more a step takes fewer steps. Then every encoder is fine-tuned alike on SST-2: the mean of
its last layer over the real tokens, one dense layer. The table goes to WORKDIR/table.md, the plot
to WORKDIR/curves.png. Run again, it goes on.

The held-out losses are those of each task, in nats per predicted token; they compare with their
baseline only.

Measured (2026-11-21, 2 CPU cores, 12 minutes; `--data` WikiText-2's validation text, 214,000 words,
`--sst2` the first 12,000 training sentences and the dev set of SST-2; budget 8.41e12 operations;
spread: greatest less least of 3 seeds):

| task | steps | held-out loss (nats) | unigram | SST-2 accuracy (spread) |
| --- | --- | --- | --- | --- |
| LM | 629 | nll 3.836 | 5.596 | 71.0 (0.5) |
| MLM | 1200 | mlm_nll 4.623 | 5.596 | 67.0 (1.9) |
| span | 1030 | mlm_nll 5.236, sbo_nll 5.278 | 5.596 | 69.3 (1.1) |
| PLM | 496 | plm_nll 3.914 | 5.596 | 72.8 (0.7) |
| RTD | 909 | mlm_nll 5.182, rtd_nll 0.395 | 5.596 | 62.8 (4.2) |
| infilling | 435 | nll 3.888 | 5.596 | 70.5 (0.6) |
| T5 denoising | 1098 | nll 4.052 | 5.596 | 58.9 (3.4) |
| none | 0 |  |  | 70.2 (2.2) |

Nothing to conclude about the tasks at their own size: a network this small, that has read this
little, gives SST-2 a point or two at best over none at all; permutation and plain language models
and infilling, which predict most tokens a step, do so first, and the two tasks with the fewest or
the easiest predictions leave it worse than it began.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Annotated

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
import optax
import tyro

from ptm_jax import systems
from ptm_jax.core.recipe import AdamW, Linear, Phase, Recipe
from ptm_jax.core.system import Experiment, System
from ptm_jax.core.types import Loss, Ratio
from ptm_jax.data.corpora.prepare import prepare
from ptm_jax.data.corpora.store import Corpus, open_corpus
from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec
from ptm_jax.encoders.model import Model
from ptm_jax.nn.heads.vocabulary import Classifier
from ptm_jax.nn.initializers import TruncatedNormal
from ptm_jax.training import loop
from ptm_jax.training.checkpoints import restore_params
from ptm_jax.training.logs import console, logs
from ptm_jax.training.start import differing, setup
from ptm_jax.training.steps import flops
from ptm_jax.training.steps.step import program

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

TASKS = {
    "LM": "megatron_gpt2_mini",
    "MLM": "bert_tiny+roberta_mini",
    "span": "bert_tiny+spanbert_mini",
    "PLM": "xlnet_mini",
    "RTD": "bert_tiny+electra_mini",
    "infilling": "bert_tiny+bart_mini",
    "T5 denoising": "bert_tiny+t5_mini",
}
"""Column of the table: encoder and task. A denoising task runs on the single network (its prefix
form)."""

TOKENIZER = TokenizerSpec(
    kind="unigram", vocab=4096, lowercase=True, specials="xlnet", sentinels=32
)
ROWS, LENGTH, LR = 16, 128, 2e-3


@dataclasses.dataclass(frozen=True, kw_only=True)
class Args:
    data: tuple[str, ...] = ("pydocs",)
    """What to pre-train on."""
    sst2: Path
    """Directory with train.tsv and dev.tsv of SST-2 (GLUE)."""
    workdir: Path = Path("runs/compare")
    steps: int = 1200
    """Steps that the masked language model takes; its arithmetic is everybody's budget."""
    sentences: int = 12_000
    """Sentences of SST-2 to fine-tune on, once."""
    seeds: Annotated[int, tyro.conf.arg(metavar="N")] = 3
    """Fine-tunings of each encoder."""


def main(args: Args) -> None:
    """Train what is not trained yet, and write the table and the plot."""
    folder = args.workdir / "corpus"
    if not (folder / "manifest.json").exists():
        prepare(args.data, folder, tokenizer=TOKENIZER, heldout=0.05, seed=0, progress=console.bar)
    corpus = open_corpus(folder)
    sentences = {name: _sentences(args.sst2 / f"{name}.tsv", corpus) for name in ("train", "dev")}
    budget = args.steps * _cost(_system("MLM", 1), corpus)
    rows = [_row(task, args, corpus, sentences, budget) for task in TASKS]
    rows.append(_row("none", args, corpus, sentences, 0))
    (args.workdir / "table.md").write_text(_table(rows, budget))
    _plot(args.workdir, rows)
    print(_table(rows, budget))


def _system(task: str, steps: int) -> System:
    """The system of a task with the recipe that all share."""
    system = systems.get(TASKS[task])
    recipe = Recipe(
        phases=(Phase(steps=max(1, steps), batch=ROWS, length=LENGTH),),
        lr=LR,
        optimizer=AdamW(b2=0.98),
        schedule=Linear(warmup=max(1, steps // 10)),
    )
    return dataclasses.replace(system, name=task, recipe=recipe, tokenizer=TOKENIZER)


def _cost(system: System, corpus: Corpus) -> float:
    """Floating-point operations of one step."""
    config = differing.resolve(Experiment(system=system), corpus.vocab)
    work, batch = program(config.system, 0), setup.example(config, corpus)
    return flops.flops(work.step, jax.eval_shape(work.init, batch), batch)


def _row(task: str, args: Args, corpus: Corpus, sentences, budget: float) -> dict:
    """Pre-train, fine-tune, and what came of both; kept in the workdir, so that nothing is done
    twice."""
    folder = args.workdir / task.replace(" ", "_")
    done = folder / "row.json"
    if done.exists():
        return json.loads(done.read_text())
    pretrained, row = None, {"task": task, "steps": 0}
    system = _system("MLM" if task == "none" else task, 1)
    if task != "none":
        steps = int(budget // _cost(system, corpus))
        config = Experiment(system=_system(task, steps), data=(str(corpus.dir),), save_every=0)
        result = loop.train(dataclasses.replace(config, eval_every=max(1, steps // 6)), folder)
        pretrained, _, _ = restore_params(folder)
        row |= {"steps": steps, "held-out": dict(result.heldout), "baseline": result.baseline}
    row["accuracy"] = [
        _finetuned(system, corpus, sentences, pretrained, args.sentences, seed)
        for seed in range(args.seeds)
    ]
    folder.mkdir(parents=True, exist_ok=True)
    done.write_text(json.dumps(row))
    return row


def _sentences(path: Path, corpus: Corpus) -> dict[str, np.ndarray]:
    """Rows [N, 64] of [CLS] sentence [SEP], and their labels."""
    lines = [line.rsplit("\t", 1) for line in path.read_text(encoding="utf8").splitlines()[1:]]
    cls, sep = corpus.vocab.need("cls", "sep")
    ids = np.zeros((len(lines), 64), np.int32)
    segments = np.zeros_like(ids)
    for row, tokens in enumerate(
        corpus.tokenizer().encode_batch([text.strip() for text, _ in lines])
    ):
        tokens = np.concatenate([[cls], tokens[:62], [sep]])
        ids[row, : len(tokens)], segments[row, : len(tokens)] = tokens, 1
    return {
        "input_ids": ids,
        "segment_ids": segments,
        "label": np.array([int(label) for _, label in lines], np.int32),
    }


def classification(towers, batch, key):
    """Cross-entropy of the class of a row: one dense layer on the mean of the last layer over the
    real tokens."""
    tower = towers["main"]
    hidden = tower(batch, key).hidden.astype(jnp.float32)
    real = (batch["segment_ids"] > 0)[..., None]
    scores = tower.head("class", (hidden * real).sum(1) / real.sum(1))
    nll = optax.softmax_cross_entropy_with_integer_labels(scores, batch["label"])
    right = scores.argmax(-1) == batch["label"]
    size = jnp.float32(len(nll))
    return Loss(nll.sum(), size, {"accuracy": Ratio(right.sum(), size)})


def _finetuned(
    system: System, corpus: Corpus, sentences, pretrained, count: int, seed: int
) -> float:
    """Accuracy on the dev set after one pass over `count` sentences."""
    rows, steps = 32, count // 32
    encoder = system.towers["main"].encoder
    if getattr(encoder, "memory", 0):
        encoder = dataclasses.replace(encoder, memory=0)
    tuned = dataclasses.replace(
        system,
        towers={
            "main": Model(
                encoder=encoder, heads={"class": Classifier(2, initializer=TruncatedNormal(0.02))}
            )
        },
        corruption=None,
        objective=classification,
        ties=(),
        recipe=dataclasses.replace(
            system.recipe,
            phases=(Phase(steps=steps, batch=rows, length=64),),
            lr=3e-4,
            schedule=Linear(warmup=steps // 10),
        ),
    )
    tuned = differing.resolve(Experiment(system=tuned), corpus.vocab).system
    work, pick = program(tuned, seed), np.random.default_rng(seed)

    def batch(part, chosen):
        return {name: jnp.asarray(leaf[chosen]) for name, leaf in sentences[part].items()} | {
            "rows": jnp.arange(len(chosen), dtype=jnp.int32)
        }

    state = jax.jit(work.init)(batch("train", np.arange(rows)))
    if pretrained is not None:
        params = {
            "main": {
                **state.params["main"],
                "encoder": jax.tree.map(jnp.array, pretrained["main"]["encoder"]),
            }
        }
        state = dataclasses.replace(state, params=params)
    step = jax.jit(work.step, donate_argnums=0)
    order = pick.permutation(len(sentences["train"]["label"]))[: steps * rows].reshape(steps, rows)
    for chosen in order:
        state, _ = step(state, batch("train", chosen))
    evaluate, right, total = jax.jit(work.evaluate), 0.0, 0.0
    size = len(sentences["dev"]["label"])
    for start in range(0, size - size % 8, 8 * (size // 8) // 4):
        chosen = np.arange(start, min(size, start + 8 * (size // 8) // 4))
        metrics, _ = evaluate(state.params, batch("dev", chosen), 0)
        right, total = (
            right + float(metrics["accuracy"].sum),
            total + float(metrics["accuracy"].weight),
        )
    return right / total


def _table(rows: list[dict], budget: float) -> str:
    lines = [
        f"Budget: {budget:.3g} floating-point operations in products for each task.",
        "",
        "| task | steps | held-out loss of the task (nats) | unigram baseline | SST-2 "
        "accuracy, mean (spread over seeds) |",
        "| --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        held = ", ".join(
            f"{name} {value:.3f}"
            for name, value in row.get("held-out", {}).items()
            if name.endswith("nll")
        )
        scores = np.array(row["accuracy"]) * 100
        base = f"{row['baseline']:.3f}" if "baseline" in row else ""
        lines.append(
            f"| {row['task']} | {row['steps']} | {held} | {base} | {scores.mean():.1f} "
            f"({np.ptp(scores):.1f}) |"
        )
    return "\n".join(lines) + "\n"


def _plot(workdir: Path, rows: list[dict]) -> None:
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), constrained_layout=True)
    for row in rows:
        if not row["steps"]:
            continue
        points = [
            r for r in logs.read(workdir / row["task"].replace(" ", "_")) if r["split"] == "heldout"
        ]
        name = next(n for n in points[-1]["values"] if n.endswith("nll"))
        left.plot(
            [p["step"] / row["steps"] for p in points],
            [p["values"][name] for p in points],
            label=row["task"],
        )
    left.set(xlabel="share of the budget", ylabel="held-out loss of the task (nats)")
    left.legend()
    scores = [np.array(row["accuracy"]) * 100 for row in rows]
    right.bar(
        [row["task"] for row in rows], [s.mean() for s in scores], yerr=[s.std() for s in scores]
    )
    right.set(ylabel="SST-2 accuracy (%)", ylim=(50, None))
    right.tick_params(axis="x", rotation=40)
    figure.savefig(workdir / "curves.png", dpi=120)


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__.split("\n")[0]))
