"""Compares supervised fastText with its own library: held-out accuracy and training time.

    python -m benchmarks.text_classes --config configs/fasttext_supervised.py --data AG_NEWS_FOLDER

Both sides train on the same tokens (the peer without unknown words), with the config's rate and
epochs, width 10, bigrams in ten million buckets, a linear decay to 0. Our seconds are those of the
steps, and of the whole run with its compilation and checkpoint; the peer's are those of
`train_supervised`, with its vocabulary and tables, on the cores of the process. Needs a wheel of
fastText (`pip install -e ".[parity]"`).

Measured on two cores of an AMD EPYC (AVX2) with fasttext-numpy2 0.9.2, while other work of low
priority ran. AG News: 2,700 texts x 25 epochs, 300 held out. TREC: 4,907 questions x 10, 545 held
out.

                        accuracy            seconds
                        ours   fastText     our steps   our run   fastText
    AG News   softmax   86.3   85.3         0.8         14        1.9
    AG News   tree      86.0   85.3         2.2         21        2.1
    TREC      softmax   84.2   85.0         0.7         17        0.6
    TREC      tree      84.0   81.7         0.5         16        0.7

fastText predicts by the exported file what the run predicts on 98.5% to 100% of them (the others
have unknown words). The steps take as long as all of fastText; a run imports, compiles, evaluates
and writes a checkpoint of 400 MB besides. Without the kernel, four texts an update, the softmax
took 103 and 77 s.
"""

from __future__ import annotations

import dataclasses
import os
import runpy
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import tyro

import ptm_jax
from ptm_jax.inference.words.word_vectors import WordVectors
from ptm_jax.systems.word_vectors import fasttext
from ptm_jax.training import loop
from ptm_jax.training.logs import logs


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sizes:
    """What is measured; `rate` and `epochs` are those of the config for the peer."""

    config: Path
    data: str
    rate: float = 0.5
    epochs: int = 25
    loss: str = "softmax"


def accuracy(found: Sequence[str], gold: Sequence[str]) -> float:
    return 100 * sum(a == b for a, b in zip(found, gold, strict=True)) / len(gold)


def main(sizes: Sizes) -> None:
    """Prints a line."""
    import fasttext as peer

    config = dataclasses.replace(
        runpy.run_path(str(sizes.config))["config"], data=(sizes.data,), log_every=0
    )
    examples = config.system.examples
    files = examples.files(config.data)
    train, held = (examples.examples(files[split]) for split in ("train", "heldout"))
    if sizes.loss == "hs":
        labels = [example.label for example in train]
        config = fasttext.classes(config, tuple(map(labels.count, examples.labels)))
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        start = time.perf_counter()
        loop.train(config, folder / "run", quiet=True)
        ours_took = time.perf_counter() - start
        steps_took = [*logs.read(folder / "run")][-1]["seconds"]
        model = ptm_jax.load(folder / "run")
        tokenizer, gold = model._tokenizer(), [example.label for example in held]
        found = [
            max(one, key=one.get) for one in model.classify([example.first for example in held])
        ]
        ours = accuracy(found, gold)

        def pieces(texts):
            return [
                " ".join(tokenizer.pieces[i] for i in ids if i != tokenizer.vocab.unk)
                for ids in tokenizer.encode_batch(texts)
            ]

        WordVectors.of_model(model).save(folder / "ours.bin", "fasttext-bin")
        lines = pieces([example.first for example in train])
        named = {name: "__label__" + name.replace(" ", "_") for name in examples.labels}
        labelled = [f"{named[one.label]} {line}\n" for one, line in zip(train, lines, strict=True)]
        (folder / "train.txt").write_text("".join(labelled), encoding="utf8")
        options = {
            "lr": sizes.rate,
            "epoch": sizes.epochs,
            "wordNgrams": 2,
            "dim": 10,
            "bucket": 10_000_000,
            "minn": 0,
        }
        options |= {
            "maxn": 0,
            "loss": sizes.loss,
            "thread": len(os.sched_getaffinity(0)),
            "verbose": 0,
        }
        start = time.perf_counter()
        known = peer.train_supervised(str(folder / "train.txt"), **options)
        took = time.perf_counter() - start
        texts, gold = pieces([example.first for example in held]), [named[label] for label in gold]
        theirs = accuracy([known.predict(text)[0][0] for text in texts], gold)
        exported = peer.load_model(str(folder / "ours.bin"))
        same = accuracy(
            [exported.predict(text)[0][0] for text in texts], [named[label] for label in found]
        )
    print(
        f"{config.system.name} {sizes.loss}, {len(train):,} texts x {sizes.epochs}, "
        f"{len(held):,} held out: accuracy "
        f"{ours:.1f}, fastText {theirs:.1f}; steps {steps_took:.2f} s, run {ours_took:.1f} "
        f"s, fastText {took:.2f} s; "
        f"fastText predicts by the exported file what the run predicts on {same:.1f}%",
        flush=True,
    )


if __name__ == "__main__":
    main(tyro.cli(Sizes))
