"""A folder with what the commands of the pages name."""

import gzip
from pathlib import Path

import numpy as np

from ptm_jax.cli.main import main
from support import tiny_checkpoint, tiny_runs

ROOT = Path(__file__).resolve().parents[2]


def furnish(folder: Path, base: Path, named: set[str]) -> None:
    """Makes the working directory `folder`: in capitals a checkpoint and tables; a text, and of the
    runs those in `named`. Programs are compiled once, in `base`."""
    tiny_checkpoint.write(folder / "CHECKPOINT", architectures=["BertForMaskedLM"])
    (folder / "MODEL").symlink_to("CHECKPOINT")
    tiny_checkpoint.written(folder / "SST-2")
    (folder / "text").mkdir()
    draw, syllables = (
        np.random.default_rng(0),
        [a + b + c for a in "bdfgklmnprst" for b in "aeiou" for c in ("", "n", "r")],
    )
    words = draw.choice(["".join(draw.choice(syllables, 3)) for _ in range(12_000)], (400, 10, 12))
    pages = [path.read_text(encoding="utf8") for path in sorted((ROOT / "docs").rglob("*.md"))]
    drawn = [
        "\n".join(" ".join(line).capitalize() + "." for line in lines) for lines in words.tolist()
    ]
    text = "\n\n".join([*pages, *drawn])
    (folder / "text" / "a.txt").write_text(text, encoding="utf8")
    (folder / "text" / "a.txt.gz").write_bytes(gzip.compress(text.encode()))
    sentences = [line for several in drawn for line in several.splitlines()]
    (folder / "de.txt").write_text("\n".join(sentences[:2000]) + "\n")
    (folder / "mt").mkdir()
    for place, language in enumerate(("de", "en")):
        lines = sentences[2000 + 1000 * place :][:1000]
        (folder / "mt" / f"train.{language}").write_text("\n".join(lines) + "\n")
    (folder / "lines.txt").write_text("the film is long\nthe length of a list\na good story\n")
    (folder / "words.txt").write_text("king\nqueen\nhat\n")
    topics = "".join(f"the film is long {n},{'ab'[n % 2]}\n" for n in range(20))
    for name in ("train", "new", "more"):
        (folder / f"{name}.csv").write_text(f"question,category\n{topics}")
    tuning = ["--init", "CHECKPOINT", "--task", "sst2", "--data", "SST-2", "--epochs", "1"]
    first = ["--data", "text/a.txt", "--set", "recipe.phases.0.steps=2"]
    columns = ["--text-column", "question", "--label-column", "category", "--epochs", "1"]
    own = ["--init", "CHECKPOINT", "--data", "train.csv", *columns]
    runs = {
        "own": own,
        "sst2": tuning,
        "mini": ["bert_mini", *first],
        "quickstart": ["bert_mini", *first],
        "de-en": [
            "xlm_translation_mini", "--task", "translation", "--data", "language:de-en=mt/train",
            "--set", "recipe.phases.0.steps=2",
        ],
    }  # fmt: skip
    with tiny_runs.compiling(base / "compiled"):
        for name, words in runs.items():
            if f"runs/{name}" in named:
                assert main(["train", *words, "--workdir", f"runs/{name}"]) == 0
