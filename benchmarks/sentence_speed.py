"""Twenty steps of contrastive training here and in sentence-transformers' trainer, on the same
batches: losses, and seconds of a step.

    pip install --target PEER accelerate datasets
    PYTHONPATH=PEER PTM_DATA=../shared/data python -m benchmarks.sentence_speed --model MODEL

Both train a published folder without dropout, by multiple negatives on SNLI's triplets, AdamW with
a constant rate, float32. The trainer's batches are in the order of the data. Seconds are of the
processor, so that other work on the machine counts little; the first step is left out.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import shutil
import tempfile
import time
from pathlib import Path

import jax
import numpy as np

import ptm_jax
from benchmarks.sentence_training import triplets
from ptm_jax.core.recipe import AdamW, Constant, Phase, Recipe
from ptm_jax.objectives.sentences.multiple_negatives import MultipleNegatives
from ptm_jax.tasks.formats import taskrows
from ptm_jax.tasks.formats.text_groups import Group, TextGroups
from ptm_jax.training.steps import step
from ptm_jax.tuning import finetuning

STEPS, BATCH, RATE = 20, 16, 2e-5
QUIET = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def quiet(model: str, folder: Path) -> Path:
    """Returns a copy of a published folder without dropout."""
    shutil.copytree(model, folder, dirs_exist_ok=True)
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf8")) | QUIET))
    return folder


def ours(model: Path, rows: list[dict[str, str]]) -> tuple[list[float], float]:
    """Returns the loss of each step, and the median of the seconds of the others but the first."""
    spec = TextGroups(negatives=1).with_settings(ptm_jax.load(model).sentence)
    system = dataclasses.replace(
        finetuning.with_head(str(model), spec),
        examples=spec,
        corruption=None,
        objective=MultipleNegatives(),
        recipe=Recipe(
            phases=(Phase(steps=STEPS, batch=3 * BATCH, length=64),), lr=RATE, schedule=Constant(),
            optimizer=AdamW(b1=0.9, b2=0.999, eps=1e-8, weight_decay=0.0), clip=None,
        ),
    )  # fmt: skip
    loaded = ptm_jax.load(model)
    names = "anchor", "positive", "negative"
    groups = [Group(tuple(row[n] for n in names), (), "", k) for k, row in enumerate(rows)]
    records = spec.encode(loaded.tokenizer, groups)
    features, _ = spec.features(loaded.tokenizer, records, 64)
    batches = []
    for number in range(STEPS):
        parts = [row for group in features[number * BATCH :][:BATCH] for row in group]
        fields = taskrows.padded(parts, spec, loaded.vocab, 64, len(parts))
        batches.append({**fields, "rows": np.arange(len(parts), dtype=np.int32)})
    work = step.program(system, 0)
    begun = {name: x for name, x in loaded.params["main"].items() if name != "heads_pool"}
    state, begun = work.init(batches[0]), jax.tree.map(jax.numpy.asarray, {"main": begun})
    state = dataclasses.replace(state, params=begun, opt_state=work.optimizer.init(begun))
    advance, losses, seconds = jax.jit(work.step, donate_argnums=0), [], []
    for batch in batches:
        start = time.process_time()
        state, metrics = jax.block_until_ready(advance(state, batch))
        seconds.append(time.process_time() - start)
        ratio = metrics["loss"]
        losses.append(float(np.sum(np.asarray(ratio.sum) / np.asarray(ratio.weight))))
    return losses, float(np.median(seconds[1:]))


def theirs(model: Path, rows: list[dict[str, str]], folder: Path) -> tuple[list[float], float]:
    """`ours`, by the library's trainer."""
    import torch
    from datasets import Dataset
    from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer
    from sentence_transformers import SentenceTransformerTrainingArguments as Arguments
    from sentence_transformers.base.sampler import DefaultBatchSampler
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
    from torch.utils.data import SequentialSampler
    from transformers import TrainerCallback

    class InOrder(SentenceTransformerTrainer):
        def get_batch_sampler(self, dataset, batch_size, drop_last, **options):
            sampler = SequentialSampler(dataset)
            return DefaultBatchSampler(sampler, batch_size=batch_size, drop_last=drop_last)

    class Recorded(MultipleNegativesRankingLoss):
        def forward(self, *inputs, **options):
            value = super().forward(*inputs, **options)
            losses.append(value.item())
            return value

    class Clock(TrainerCallback):
        def on_step_begin(self, *args, **options):
            self.start = time.process_time()

        def on_step_end(self, *args, **options):
            seconds.append(time.process_time() - self.start)

    losses, seconds = [], []
    peer = SentenceTransformer(str(model), device="cpu")
    arguments = Arguments(
        output_dir=str(folder), max_steps=STEPS, per_device_train_batch_size=BATCH,
        learning_rate=RATE, lr_scheduler_type="constant", weight_decay=0.0, max_grad_norm=0.0,
        save_strategy="no", logging_strategy="no", report_to="none", use_cpu=True,
    )  # fmt: skip
    torch.manual_seed(0)
    InOrder(
        model=peer, args=arguments, train_dataset=Dataset.from_list(rows), loss=Recorded(peer),
        callbacks=[Clock()],
    ).train()  # fmt: skip
    return losses, float(np.median(seconds[1:]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    options = parser.parse_args()
    rows = triplets()[: STEPS * BATCH]
    with tempfile.TemporaryDirectory() as folder:
        model = quiet(options.model, Path(folder) / "model")
        (mine, seconds), (its, others) = ours(model, rows), theirs(model, rows, Path(folder) / "x")
    for number, pair in enumerate(zip(mine, its, strict=True), 1):
        print(f"{number:2d}  {pair[0]:.5f}  {pair[1]:.5f}  {abs(pair[0] - pair[1]):.1e}")
    print(f"largest difference {max(abs(np.subtract(mine, its))):.1e}")
    print(f"seconds of the processor for a step: {seconds:.2f} here, {others:.2f} there")


if __name__ == "__main__":
    main()
