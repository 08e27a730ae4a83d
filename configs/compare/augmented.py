"""A task's training texts, and as many new ones of the same labels, made by conditional BERT (Wu et
al. 2019).

    python configs/compare/augmented.py --init MODEL --task sst2 --data SST-2 \
        --workdir runs/augmented
    ptm train --init MODEL --task sst2 --data runs/augmented/train.tsv SST-2/dev.tsv \
        --workdir runs/sst2

MODEL is a published BERT; it is tuned to tell masked words from their context and the label, then
draws a share of the words of every text anew. For tasks on one text with classes, whose table has
no other column that counts. The run goes on where it was stopped.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import tyro


@dataclasses.dataclass(frozen=True, kw_only=True)
class Args:
    init: str
    """A Hugging Face checkpoint."""
    task: str
    """On one text, with classes."""
    data: tuple[str, ...]
    """As `ptm train --task` takes them."""
    workdir: Path
    """Where the conditional model's run and train.tsv lie."""
    epochs: int = 10
    """Of the conditional model."""
    share: float = 0.15
    """Of the words of a text are drawn anew; at least one is."""
    copies: int = 1
    """New texts for every text."""
    seed: int = 0
    """Of what is drawn."""
    set: Annotated[tuple[str, ...], tyro.conf.arg(metavar="PATH=VALUE ...")] = ()
    """Fields of the conditional model's config, as `ptm train --set`."""


def main(args: Args) -> None:
    """Tune, draw, and write the table."""
    import ptm_jax
    from ptm_jax.core import spec
    from ptm_jax.core.spec.classes import kinds_of
    from ptm_jax.tasks.catalogue import catalogue
    from ptm_jax.training.loop import train
    from ptm_jax.tuning.augmentation import augmentation

    config = augmentation.conditional(args.task, args.init, args.data, epochs=args.epochs)
    train(spec.override(config, spec.parse_pairs(args.set), kinds_of()), args.workdir)
    examples = catalogue.get(args.task).examples.settled(args.data)
    rows = examples.examples(examples.files(args.data)["train"])
    texts, labels = [row.first for row in rows], [row.label for row in rows]
    numbers = [int(examples.number(row)) for row in rows]
    model = ptm_jax.load(args.workdir)
    for copy in range(args.copies):
        texts += augmentation.filled(
            model, texts[: len(rows)], numbers, share=args.share, seed=args.seed + copy
        )
    lines = ["\t".join((examples.first[0], examples.label[0]))]
    lines += [
        "\t".join(row) for row in zip(texts, labels * (1 + args.copies), strict=True) if row[0]
    ]
    (args.workdir / "train.tsv").write_text("\n".join(lines) + "\n", encoding="utf8")
    print(
        f"{args.workdir / 'train.tsv'}: {len(rows):,} texts and "
        f"{len(lines) - 1 - len(rows):,} new ones"
    )


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
