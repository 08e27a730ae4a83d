"""A task's training texts with as many new ones, made by conditional BERT.
Wu et al. 2019, arXiv 1812.06705. The new texts have the same labels. `ptm train --task` reads the
file.

    made_texts.write("bert-base-uncased", "sst2", ("SST-2",), "runs/cbert")
    ptm train --init MODEL --task sst2 --data runs/cbert/train.tsv SST-2/dev.tsv
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ptm_jax.core import spec
from ptm_jax.core.spec.classes import kinds_of
from ptm_jax.inference.loading import load
from ptm_jax.tasks.catalogue import catalogue
from ptm_jax.training.logs import console
from ptm_jax.training.loop import train
from ptm_jax.tuning.augmentation import augmentation


def write(
    model: str | os.PathLike,
    task: str,
    data: Sequence[str],
    workdir: str | os.PathLike,
    *,
    epochs: int = 10,
    share: float = 0.15,
    copies: int = 1,
    seed: int = 0,
    fields: Sequence[str] = (),
) -> Path:
    """Tunes a published BERT on the texts and labels of a task, and writes `train.tsv`.
    The file is in the workdir. Returns its path. The tuning goes on where it was stopped.

    task    on one text, with classes, whose table has no other column that counts
    epochs  of the conditional model; fields: of its experiment, "path=value" as in --set
    share   of the words of a text that are drawn anew, at least one
    copies  new texts for each text

    Raises UserError.
    """
    config = augmentation.conditional(task, model, data, epochs=epochs)
    train(spec.override(config, spec.parse_pairs(fields), kinds_of()), workdir)
    examples = catalogue.get(task).examples.settled(data)
    rows = examples.examples(examples.files(data)["train"])
    texts, labels = [row.first for row in rows], [row.label for row in rows]
    numbers = [int(examples.number(row)) for row in rows]
    tuned: Any = load(workdir)
    for copy in range(copies):
        texts += augmentation.filled(
            tuned, texts[: len(rows)], numbers, share=share, seed=seed + copy
        )
    pairs = zip(texts, labels * (1 + copies), strict=True)
    lines = ["\t".join((examples.first[0], examples.label[0]))]
    lines += ["\t".join(pair) for pair in pairs if pair[0]]
    path = Path(workdir) / "train.tsv"
    path.write_text("\n".join(lines) + "\n", encoding="utf8")
    console.say(f"{path}: {len(rows):,} texts and {len(lines) - 1 - len(rows):,} new ones")
    return path
