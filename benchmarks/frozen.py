"""The frozen models of `benchmarks.tagger_features`: word vectors, ELMo and language models of
characters, of one text.

    python -m benchmarks.frozen --workdir runs/frozen

The text is what lies beside the labelled sets: the sentences of three tagged sets without their
labels (`REPEATED` times), Wikipedia and news, 1.3 million words with the sentences in a random
order. No held-out sentence of a task is in it. Each model has a folder in `--workdir`; a command
that was stopped goes on where it stopped.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ptm_jax import systems
from ptm_jax.core.recipe import AdamW, Cosine, Phase, Recipe
from ptm_jax.core.spec import with_field
from ptm_jax.core.system import Experiment, System
from ptm_jax.core.types import Vocab
from ptm_jax.inference import loading
from ptm_jax.systems.recurrent.elmo import elmo, network
from ptm_jax.systems.recurrent.flair import flair
from ptm_jax.training import loop

TAGGED = {
    "ner/wnut17/wnut17train.conll": 0,
    "ud/en_partut/en_partut-ud-train_first1200.conllu": 1,
    "ud/en_ewt/en_ewt-ud-dev_first1000.conllu": 1,
}
"""{file of labelled words: the column of the words}."""
PLAIN = ("lm/wikitext-2/valid.txt",)
COLUMNS = {
    "glue/mrpc/msr_paraphrase_train.txt": ("\t", (3, 4)),
    "glue/rte/train.tsv": ("\t", (1, 2)),
    "glue/qnli/dev_first3000.tsv": ("\t", (1, 2)),
    "glue/stsb/sts-train.tsv": ("\t", (5, 6)),
    "classification/ag_news/test_first3000.csv": (",", (1, 2)),
    "relation/semeval2010-task8/train.txt": ("|", (3,)),
}
"""{file: (what separates its columns, those with text)}."""
REPEATED = 3
WORDS = 16_384


def sentences(data: Path) -> Iterator[str]:
    """Returns the lines of the text."""
    for name, column in TAGGED.items():
        words: list[str] = []
        for line in [*(data / name).read_text().splitlines(), ""]:
            fields = line.split("\t")
            if line.strip() and not line.startswith("# ") and (not column or fields[0].isdigit()):
                words.append(fields[column])
            elif not line.strip() and words:
                yield from [" ".join(words)] * REPEATED
                words = []
    for name in PLAIN:
        yield from (
            line for line in (data / name).read_text().splitlines() if len(line.split()) > 5
        )
    for name, (separator, columns) in COLUMNS.items():
        with (data / name).open(encoding="utf-8-sig", newline="") as file:
            quoting = csv.QUOTE_MINIMAL if separator == "," else csv.QUOTE_NONE
            rows = csv.reader(file, delimiter=separator, quoting=quoting)
            for row in list(rows)[1:]:
                yield from (
                    row[column].replace("\\", " ") for column in columns if column < len(row)
                )


def text(data: Path, folder: Path) -> str:
    """Returns the file of the text, a document for a sentence, in a random order."""
    file = folder / "text.txt"
    if not file.exists():
        lines = [line.strip() for line in sentences(data) if line.strip()]
        order = np.random.default_rng(0).permutation(len(lines))
        folder.mkdir(parents=True, exist_ok=True)
        file.write_text("\n\n".join(lines[i] for i in order) + "\n")
        print(
            f"{len(lines):,} sentences, {sum(len(line.split()) for line in lines):,} words",
            flush=True,
        )
    return str(file)


def vectors() -> System:
    """Skip-gram of width 128 with the published rates, but the subsampling of a small text."""
    system = with_field(systems.get("skipgram"), "width", 128)
    system = with_field(system, "limit", 0.5 / 128)
    tokenizer = dataclasses.replace(system.tokenizer, lowercase=False, min_count=2)
    return dataclasses.replace(
        system,
        name="vectors",
        tokenizer=tokenizer,
        examples=dataclasses.replace(system.examples, sample=1e-3),
    )


def recipe(steps: int, batch: int, length: int, lr: float) -> Recipe:
    phases = (Phase(steps=steps, batch=batch, length=length),)
    return Recipe(
        phases=phases,
        lr=lr,
        optimizer=AdamW(b2=0.98, weight_decay=0.0),
        schedule=Cosine(warmup=steps // 20),
        clip=1.0,
    )


def words_lm(steps: int) -> System:
    """ELMo of width 128: cells of 384, convolutions of 1 to 4 characters, a softmax over 1,024
    drawn words."""
    vocab = Vocab(size=WORDS, pad=0, eos=1, unk=2)
    encoder = network(vocab, 128, 384, filters=((1, 32), (2, 32), (3, 64), (4, 128)))
    system = elmo("elmo_small", encoder, spelling=16, sampled=1024)
    tokenizer = dataclasses.replace(system.tokenizer, vocab=WORDS)
    return dataclasses.replace(system, tokenizer=tokenizer, recipe=recipe(steps, 32, 32, 4e-3))


def strings_lm(steps: int) -> System:
    """Flair's language models with 256 units."""
    system = with_field(flair("flair_small", 64, 256), "dropout", 0.0)
    return dataclasses.replace(system, recipe=recipe(steps, 32, 128, 8e-3))


def one(system: System, data: Path, folder: Path, name: str, **fields: Any) -> None:
    """Trains a model on the text, in the folder `name`, unless it is finished."""
    config = Experiment(
        system=system,
        data=(text(data, folder),),
        save_every=100,
        log_every=50,
        metrics=(),
        **fields,
    )
    loop.train(config, folder / name)


def train(
    data: Path,
    folder: Path,
    elmo_steps: int = 600,
    strings_steps: int = 500,
    vector_epochs: float = 5.0,
) -> None:
    """Trains what is not finished: the folders vectors, elmo, strings_lm, and strings, the vectors
    of words of the last."""
    one(vectors(), data, folder, "vectors", epochs=vector_epochs)
    one(words_lm(elmo_steps), data, folder, "elmo", precision="float32")
    one(strings_lm(strings_steps), data, folder, "strings_lm")
    if not (folder / "strings").exists():
        loading.strings(loading.load(folder / "strings_lm"), "strings").save(folder / "strings")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--workdir", type=Path, required=True)
    parser.add_argument("--vector-epochs", type=float, default=5.0)
    parser.add_argument("--elmo-steps", type=int, default=600)
    parser.add_argument("--strings-steps", type=int, default=500)
    args = parser.parse_args()
    train(args.data, args.workdir, args.elmo_steps, args.strings_steps, args.vector_epochs)


if __name__ == "__main__":
    main()
