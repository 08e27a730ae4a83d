"""Going on in a domain: the loss on medical text and on the old text, with and without words that
the vocabulary gains, with and without old text mixed in.

    python -m benchmarks.domain --data DATA --workdir runs/domain --out benchmarks/

A general model is trained on WikiText-2's validation text, and goes on with the sentences of NCBI
disease and BC5CDR (`DATA` is the folder of the data sets), from its own vocabulary, and from one
with `--words` words of the new text. A tenth of the documents of each text is held out, the same
ones in each run. Every run has a folder in `--workdir`; a command that was stopped goes on.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import ptm_jax
from ptm_jax.cli.main import main
from ptm_jax.core.errors import UserError

FILES = ("NCBI-disease-IOB/train.tsv", "NCBI-disease-IOB/devel.tsv", "BC5CDR-IOB/*.tsv")
SENTENCES = 5
"""Sentences of a document; the files have no documents."""
WAYS = {"medical text alone": "0", "with 20% old text": "0.2"}
"""{row: share of the old text}."""


def texts(args: argparse.Namespace) -> None:
    """Writes the sentences of the tagged files, a document in a paragraph, and copies WikiText."""
    args.workdir.mkdir(parents=True, exist_ok=True)
    new, old = args.workdir / "medical.txt", args.workdir / "general.txt"
    files = [path for name in FILES for path in sorted((args.data / "bio_ner").glob(name))]
    blocks = [block for path in files for block in path.read_text("utf8").split("\n\n")]
    rows = [[line.split("\t")[0] for line in block.split("\n") if line] for block in blocks]
    sentences = [" ".join(row) for row in rows if row]
    starts = range(0, len(sentences), SENTENCES)
    documents = ["\n".join(sentences[n : n + SENTENCES]) for n in starts]
    new.write_text("\n\n".join(documents) + "\n", "utf8")
    old.write_text((args.data / "lm/wikitext-2/valid.txt").read_text("utf8"), "utf8")


def run(*words: str) -> None:
    """Runs a command of `ptm`. Raises UserError where it fails."""
    if main([*words]):
        raise UserError(f"ptm {' '.join(words)} failed")


def trained(args: argparse.Namespace, name: str, *, steps: int, **more: str) -> Path:
    """Returns the folder of a training that is complete."""
    folder = args.workdir / name
    data = more.get("data", "medical")
    words = ["train", args.system, "--data", str(args.workdir / f"{data}.txt")]
    if "init" in more:
        words += ["--init", more["init"]]
    if "old" in more:
        words += ["--mix", f"{more['old']}={args.workdir / 'general.txt'}"]
    fields = [f"recipe.phases.0.steps={steps}", "heldout=0.1", f"recipe.lr={more['lr']}"]
    fields += ["save_every=0", "keep=1"]
    run(*words, "--workdir", str(folder), "--set", *fields)
    return folder


def starts_of(args: argparse.Namespace, general: Path) -> dict[str, Path]:
    """Returns {vocabulary: folder of the model that goes on}."""
    published, grown = args.workdir / "published", args.workdir / "grown"
    if not published.exists():
        run("export", str(general), "--out", str(published))
    if not grown.exists():
        text = ["--grow-from", str(args.workdir / "medical.txt"), "--grow-words", str(args.words)]
        run("import", str(published), "--out", str(grown), *text)
    return {"its own": published, f"and {args.words} words": grown}


def line(way: str, vocabulary: str, folder: Path, text: str) -> str:
    """Returns a line of the table."""
    lines = (folder / "metrics.jsonl").read_text("utf8").splitlines()
    values = [json.loads(one) for one in lines]
    values = next(one["values"] for one in reversed(values) if one["split"] == "heldout")
    pieces = len(ptm_jax.load(folder).tokenizer.encode(text)) / len(text.split())
    new, old = values["new_mlm_nll"], values["old_mlm_nll"]
    return f"| {vocabulary} | {way} | {pieces:.2f} | {new:.3f} | {new * pieces:.2f} | {old:.3f} |"


def page(args: argparse.Namespace) -> str:
    """Trains and measures, and returns the page."""
    texts(args)
    general = trained(args, "general", steps=args.steps, data="general", lr=args.lr)
    text = " ".join((args.workdir / "medical.txt").read_text("utf8").split())
    lines = []
    for vocabulary, start in starts_of(args, general).items():
        first = {"init": str(start)}
        options = {"steps": 1, "lr": "1e-12", "old": "0"}
        before = trained(args, f"{start.name}_before", **first, **options)
        lines.append(line("before", vocabulary, before, text))
        for way, share in WAYS.items():
            options = {"steps": args.further, "lr": args.lr, "old": share}
            folder = trained(args, f"{start.name}_{share}", **first, **options)
            lines.append(line(way, vocabulary, folder, text))
    head = [
        "# Going on in a domain: nats per masked piece of held-out text\n",
        "| vocabulary | training | pieces a word | medical | medical, a word | general |",
        "|---|---|---:|---:|---:|---:|",
    ]
    return "\n".join([*head, *lines]) + "\n"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--workdir", type=Path, required=True)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--system", default="bert_tiny")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--further", type=int, default=150)
    parser.add_argument("--words", type=int, default=320)
    parser.add_argument("--lr", default="2e-3")
    arguments = parser.parse_args()
    result = page(arguments)
    print(result)
    if arguments.out is not None:
        (arguments.out / "domain.md").write_text(result, "utf8")
