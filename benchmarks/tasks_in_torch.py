"""The same fine-tuning in torch: BERT of the `transformers` library, our rows in our order, the
same schedule.

    python -m benchmarks.tasks_in_torch --init MODEL --task sst2 --data DIR \
        --workdir runs/torch --seeds 3

For texts and words with tags: what `ptm study tasks` measures is measured beside it, on
the same held-out examples. The head is ours (on the mean of the states where the checkpoint was
trained for that, else on the pooler's; on the first piece of a word), the optimizer torch's AdamW
with the fields of our recipe, products in bfloat16 by autocast as ours are (--float32: none are).
Random are the dropout and the head's beginning, which torch draws. The results go to
WORKDIR/TASK.json after every seed; seeds that are there are not run again.
"""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path
from typing import Annotated

import numpy as np
import tyro

from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec
from ptm_jax.inference.text.classifying import Prediction
from ptm_jax.tasks import evaluating
from ptm_jax.tasks.catalogue import catalogue
from ptm_jax.tuning import finetuning


@dataclasses.dataclass(frozen=True, kw_only=True)
class Args:
    init: str
    """A Hugging Face directory of a BERT."""
    task: str
    """Of texts, or of words with tags."""
    data: tuple[str, ...]
    """As `ptm train --task` takes them."""
    workdir: Path
    """Where the prepared rows and the results lie."""
    seeds: int = 3
    """Runs."""
    epochs: float | None = None
    """In place of the task's own, as the next three."""
    batch: int | None = None
    """Examples in a step."""
    length: int | None = None
    """Tokens of a row."""
    lr: float | None = None
    """The highest learning rate."""
    float32: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """No autocast to bfloat16."""


def main(args: Args) -> None:
    """Train every seed, and write what the task measures."""
    sizes = {"epochs": args.epochs, "batch": args.batch, "length": args.length, "lr": args.lr}
    asked = {**sizes, "float32": args.float32}
    config = finetuning.experiment(args.task, args.init, args.data, **sizes)
    spec = TokenizerSpec(path=args.init)
    corpus = config.system.examples.corpus(config.data, args.workdir / f"{args.task}_data", spec)
    record = args.workdir / f"{args.task}.json"
    known = json.loads(record.read_text(encoding="utf8")) if record.is_file() else {}
    runs = known["runs"] if known.get("asked") == asked else []
    for seed in range(len(runs), args.seeds):
        runs.append(_run(config, args, corpus, seed))
        spread = {
            name: _spread([run["metrics"][name] for run in runs]) for name in runs[0]["metrics"]
        }
        known = {"task": args.task, "asked": asked, "metrics": spread, "runs": runs}
        record.write_text(json.dumps(known, indent=1) + "\n", encoding="utf8")
    print(json.dumps(known, indent=1))


def _spread(values: list[float]) -> dict[str, float]:
    """Mean and standard deviation."""
    return {
        "mean": float(np.mean(values)),
        "sd": float(np.std(values, ddof=min(1, len(values) - 1))),
    }


def _run(config, args: Args, corpus, seed: int) -> dict:
    import torch

    torch.manual_seed(seed)
    examples, recipe = config.system.examples, config.system.recipe
    (phase,) = recipe.phases
    model = _Model(args.init, config.system)
    kept = [
        p for name, p in model.module.named_parameters() if "bias" in name or "LayerNorm" in name
    ]
    plain = {id(p) for p in kept}
    decayed = [p for p in model.module.parameters() if id(p) not in plain]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": recipe.optimizer.weight_decay},
        {"params": kept, "weight_decay": 0.0}],
        lr=recipe.lr, betas=(recipe.optimizer.b1, recipe.optimizer.b2), eps=recipe.optimizer.eps,
    )  # fmt: skip
    warmup, steps = recipe.schedule.warmup, recipe.steps

    def rate(step):
        return min((step + 1) / warmup, (steps - step) / max(1, steps - warmup))

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    stream = iter(
        corpus.stream("train", examples, length=phase.length, batch=phase.batch, seed=seed)
    )
    began, losses = time.perf_counter(), []
    model.module.train()
    for _ in range(steps):
        with torch.autocast("cpu", torch.bfloat16, enabled=not args.float32):
            loss = model.loss(next(stream))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.module.parameters(), recipe.clip)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    task_ = dataclasses.replace(catalogue.get(args.task), examples=examples)
    held = examples.examples(evaluating.heldout_of(task_, config.data))
    model.module.eval()
    with torch.autocast("cpu", torch.bfloat16, enabled=not args.float32):
        predictions = model.predictions(held, corpus.tokenizer(), phase.length, phase.batch)
    found = evaluating.measured(task_, held, predictions)
    minutes = (time.perf_counter() - began) / 60
    return {
        "seed": seed,
        "metrics": found,
        "minutes": round(minutes, 1),
        "last_losses": losses[-5:],
    }


class _Model:
    """BERT with a head, its loss, and its predictions."""

    def __init__(self, init: str, system):
        import torch
        import transformers

        self.examples, self.head = system.examples, next(iter(system.towers["main"].heads))
        if self.head not in ("classify", "tag"):
            raise SystemExit(
                f"{type(self.examples).__name__} are not compared here; take texts, or words "
                "with tags"
            )
        bert = transformers.BertModel.from_pretrained(init)
        summary = getattr(system.towers["main"].heads[self.head], "summary", None)
        self.mean = getattr(summary, "at", "") == "mean"
        linear = torch.nn.Linear(bert.config.hidden_size, self.examples.outputs)
        torch.nn.init.trunc_normal_(linear.weight, std=0.02)
        torch.nn.init.zeros_(linear.bias)
        self.module = torch.nn.ModuleDict(
            {"bert": bert, "dropout": torch.nn.Dropout(0.1), "classes": linear}
        )

    def scores(self, batch):
        """Scores [B, C], or [B, L, C] of tokens."""
        import torch

        ids, mask, types = (
            torch.tensor(batch[n]).long() for n in ("input_ids", "segment_ids", "token_type_ids")
        )
        out = self.module["bert"](ids, mask, types)
        states = out.last_hidden_state
        if self.head == "classify":
            weights = mask[..., None].float()
            states = (
                (states * weights).sum(1) / weights.sum(1).clamp(min=1)
                if self.mean
                else out.pooler_output
            )
        return self.module["classes"](self.module["dropout"](states)).float()

    def loss(self, batch):
        """The weighted mean of cross-entropies, or of squared errors."""
        import torch

        name, weight = (
            ("label", "label_weights")
            if self.head == "classify"
            else ("token_labels", "token_weights")
        )
        scores, weights = self.scores(batch), torch.tensor(batch[weight]).reshape(-1)
        flat = scores.reshape(-1, scores.shape[-1])
        if self.examples.labels:
            gold = torch.tensor(batch[name]).long().reshape(-1)
            terms = torch.nn.functional.cross_entropy(flat, gold, reduction="none")
        else:
            terms = (flat[:, 0] - torch.tensor(batch[name])) ** 2
        return (terms * weights).sum() / weights.sum()

    def predictions(self, held, tokenizer, length: int, size: int) -> list:
        """Predictions for examples, as `tasks.kinds` has them."""
        import torch

        groups, _ = self.examples.features(tokenizer, self.examples.encode(tokenizer, held), length)
        rows, found = [row for (row,) in groups], []
        with torch.no_grad():
            for start in range(0, len(rows), size):
                part = rows[start : start + size]
                width = max(len(row["input_ids"]) for row in part)
                batch = {
                    name: np.stack([np.pad(row[name], (0, width - len(row[name]))) for row in part])
                    for name in ("input_ids", "segment_ids", "token_type_ids")
                }
                found += list(self.scores(batch).numpy())
        if self.head == "classify":
            return [self._told(scores) for scores in found]
        tags, row = [], 0
        for sentence in held:  # a long one took several rows
            words: list[str] = []
            while len(words) < len(sentence.words):
                places = np.flatnonzero(rows[row]["token_weights"])
                words += [self.examples.labels[int(i)] for i in found[row][places].argmax(-1)]
                row += 1
            tags.append(tuple(words))
        return tags

    def _told(self, scores) -> Prediction:
        if not self.examples.labels:
            return Prediction("", {}, float(scores[0]))
        return Prediction(self.examples.labels[int(scores.argmax())], {})


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
