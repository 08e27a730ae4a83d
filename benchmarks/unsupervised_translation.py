"""Translation without translations: Multi30k's halves as text of two languages.

    python -m benchmarks.unsupervised_translation --data MULTI30K --workdir runs/unsupervised \
        --dictionary freedict-deu-eng.dict.dz

The first 14,000 German and the last 14,000 English lines are the text; no line has its translation
there. MASS is trained on it, then XLM's denoising and back-translation from it; `val` is translated
in both directions, beside its copy, and the translation of each word in a FreeDict dictionary
(Debian's package dict-freedict-deu-eng) that is commonest in the text. A run that exists goes on;
the figures are in WORKDIR/figures.json and printed as a table.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

from ptm_jax.knowledge.from_text.dictionaries import pairs_of

HALF = 14_000
PTM = str(Path(sys.executable).with_name("ptm"))
WAYS = (("de", "en"), ("en", "de"))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of train.de, ..., val.en")
    parser.add_argument("--workdir", type=Path, default=Path("runs/unsupervised"))
    parser.add_argument("--dictionary", type=Path, help="a .dict.dz of FreeDict, German to English")
    parser.add_argument("--mass-steps", type=int, default=300)
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--sentences", type=int, default=200, help="of val that are translated")
    return parser.parse_args()


def lines_of(path: Path) -> list[str]:
    return path.read_text(encoding="utf8").splitlines()


def halves(data: Path) -> dict[str, list[str]]:
    """{language: its lines}; no line has its translation."""
    parts = ("de", slice(HALF)), ("en", slice(-HALF, None))
    return {code: lines_of(data / f"train.{code}")[part] for code, part in parts}


def commonest(pairs: Iterable[tuple[str, str]], text: list[str]) -> dict[str, str]:
    """{word: its translation with the greatest count in a text of the other language}."""
    counts = Counter(word for line in text for word in re.findall(r"\w+", line.lower()))
    best: dict[str, str] = {}
    for word, other in pairs:
        if " " not in word and counts[other] > counts[best.get(word, "")]:
            best[word] = other
    return best


def word_by_word(words: dict[str, str]) -> Callable[[str], str]:
    def translate(text: str) -> str:
        return re.sub(r"\w+", lambda match: words.get(match[0].lower(), match[0]), text)

    return translate


def scores(answers: Iterable[str], gold: list[str]) -> dict[str, float]:
    import sacrebleu

    answers = list(answers)
    bleu = sacrebleu.corpus_bleu(answers, [gold], lowercase=True).score
    return {"bleu": bleu, "chrf": sacrebleu.corpus_chrf(answers, [gold]).score}


def trained(name: str, system: str, options: list[str], args: argparse.Namespace) -> Path:
    """Returns the workdir of a training, which is finished first; prints its CPU-seconds."""
    workdir, began = args.workdir / name, os.times()
    command = [
        PTM,
        "train",
        system,
        "--data",
        str(args.workdir / "text"),
        "--workdir",
        str(workdir),
    ]
    fixed = ["log_every=20", "eval_batches=4", "save_every=100", "keep=1"]
    subprocess.run([*command, *options, *fixed], check=True)
    seconds = sum(os.times()[2:4]) - sum(began[2:4])
    print(f"{name}: {seconds:.0f} CPU-seconds", file=sys.stderr)
    return workdir


def trainings(args: argparse.Namespace) -> dict[str, Path]:
    text = args.workdir / "text"
    if not (text / "manifest.json").exists():
        args.workdir.mkdir(parents=True, exist_ok=True)
        for code, lines in halves(args.data).items():
            (args.workdir / f"{code}.txt").write_text("\n".join(lines) + "\n", encoding="utf8")
        sources = [f"language:{code}={args.workdir / f'{code}.txt'}" for code in ("de", "en")]
        options = ["--tokenizer", "bpe", "--specials", "roberta", "--vocab", "4096"]
        prepare = [PTM, "prepare", "--data", *sources, "--out", str(text), *options]
        subprocess.run(prepare, check=True)
    steps = "recipe.phases.0.steps"
    mass = trained("mass", "mass_mt_mini", ["--set", f"{steps}={args.mass_steps}"], args)
    again = ["--init", str(mass), "--set", "recipe.lr=5e-4", f"{steps}={args.steps}"]
    return {"MASS, then XLM's recipe": trained("unmt", "xlm_unmt_mini", again, args)}


def main() -> None:
    args = arguments()
    val = {code: lines_of(args.data / f"val.{code}")[: args.sentences] for code in ("de", "en")}
    figures, file = {}, args.workdir / "figures.json"
    text = halves(args.data)
    listed = pairs_of(args.dictionary) if args.dictionary else []
    pairs = [(word.lower(), other.lower()) for word, other in listed]
    for source, target in WAYS:
        row = figures.setdefault(f"{source}-{target}", {})
        row["copy"] = scores(val[source], val[target])
        if pairs:
            way = pairs if source == "de" else [pair[::-1] for pair in pairs]
            known = commonest(way, text[target])
            row["word by word"] = scores(map(word_by_word(known), val[source]), val[target])
    print(json.dumps(figures))
    runs = trainings(args)
    import ptm_jax

    for name, workdir in runs.items():
        for source, target in WAYS:
            model = ptm_jax.load(workdir, language=source)
            answers = model.generate(
                val[source], answer_language=target, start="</s>", max_new_tokens=40
            )
            figures[f"{source}-{target}"][name] = scores(answers, val[target])
            print(source, target, name, answers[:3], file=sys.stderr)
            file.write_text(json.dumps(figures, indent=1), encoding="utf8")
    for way, row in figures.items():
        for name, one in row.items():
            print(f"| {way} | {name} | {one['bleu']:.2f} | {one['chrf']:.1f} |")


if __name__ == "__main__":
    main()
