"""Each language's config on text of that language: its tokenizer, 300 steps of its miniature, the
held-out loss beside that of word frequencies. Writes benchmarks/languages.json and languages.md.

    python -m benchmarks.languages --text TEXTS

One config after another; those that the record has are left out, so that a stopped run goes on.
`--only camembert_mini finbert_mini`: these alone, anew. `--text` is a folder with a file
LANGUAGE.txt for each language, a paragraph a line; absent ones come from Debian's packages
(`benchmarks.manuals`). Japanese needs `pip install -e ".[japanese]"`, Chinese `".[chinese]"`.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path

import tyro

from benchmarks import manuals
from ptm_jax import systems
from ptm_jax.core import slots, spec
from ptm_jax.core.errors import UserError
from ptm_jax.core.system import Experiment, System
from ptm_jax.data.corpora.prepare import prepare
from ptm_jax.data.corpora.store import Corpus
from ptm_jax.data.languages import segmenters
from ptm_jax.data.tokenizers.tokenizing import Tokenizer
from ptm_jax.training import loop

RECORD = Path(__file__).with_suffix(".json")
CONFIGS = {
    "camembert_mini": ("fr",),
    "flaubert_mini": ("fr",),
    "flaubert_large_mini": ("fr",),
    "bertje_mini": ("nl",),
    "robbert_mini": ("nl",),
    "finbert_mini": ("fi",),
    "rubert_mini": ("ru",),
    "slavic_bert_mini": ("bg", "cs", "pl", "ru"),
    "arabert_mini": ("ar",),
    "bert_japanese_mini": ("ja",),
    "bert_japanese_char_mini": ("ja",),
    "bert_japanese_pieces_mini": ("ja",),
    "ulmfit_japanese_mini": ("ja",),
    "elmo_japanese_mini": ("ja",),
    "roberta_chinese_wwm_mini": ("zh",),
    "nezha_mini": ("zh",),
    "zen_mini": ("zh",),
}
"""{miniature: languages of its text}, in the order of the table."""
WORDS = {"ja": "ipadic", "zh": "rjieba", "th": "pythainlp"}
"""{language: the segmenter that finds the words of its text}; other languages have blanks."""
STEPS = 300
HELDOUT = 0.05
SAMPLE = 300_000
"""Characters of a language's text in which pieces and unknown ones are counted."""


def pieces(tokenizer: Tokenizer, language: str, path: Path) -> tuple[float, float]:
    """Returns (pieces a word, share of unknown pieces) of the end of a text."""
    lines = path.read_text(encoding="utf8")[-SAMPLE:].splitlines()[1:]
    ids = [row for row in tokenizer.encode_batch(lines) if len(row)]
    cut = WORDS.get(language)
    parts = (segmenters.words(cut, line) if cut else line.split() for line in lines)
    words = sum(sum(bool(word.strip()) for word in line) for line in parts)
    count = sum(map(len, ids))
    unknown = sum(int((row == tokenizer.vocab.unk).sum()) for row in ids)
    return count / words, unknown / count


def measured(name: str, text: Path, seed: int) -> dict:
    """Returns the figures of one config. Raises UserError where there is no text or segmenter."""
    system = spec.override(systems.get(name), {"recipe.phases.0.steps": STEPS})
    paths = {one: manuals.write(one, text) for one in CONFIGS[name]}
    several = [f"language:{one}={path}" for one, path in paths.items()]
    sources = several if len(several) > 1 else [str(path) for path in paths.values()]
    start = time.process_time()
    with tempfile.TemporaryDirectory() as name_of_folder:
        folder = Path(name_of_folder)
        corpus = prepare(
            sources, folder / "text", tokenizer=system.tokenizer, heldout=HELDOUT, seed=seed
        )
        data = (str(folder / "text"),)
        config = Experiment(system=system, data=data, heldout=HELDOUT, save_every=0, seed=seed)
        result = loop.train(config, folder / "run", quiet=True)
        return figures(system, paths, corpus, result, time.process_time() - start)


def figures(
    system: System, paths: dict[str, Path], corpus: Corpus, result: loop.Result, seconds: float
) -> dict:
    """Returns the figures of a system that was trained on the files of some languages."""
    counts = [pieces(corpus.tokenizer(), one, path) for one, path in paths.items()]
    metric = slots.objective(system.objective).baseline
    return {
        "languages": list(paths),
        "text": sum(path.stat().st_size for path in paths.values()),
        "packages": sorted({one for code in paths for one in manuals.PACKAGES.get(code, ())}),
        "kind": system.tokenizer.kind,
        "segmenter": system.tokenizer.segmenter,
        "vocab": corpus.vocab.size,
        "pieces": sum(one for one, _ in counts) / len(counts),
        "unknown": sum(share for _, share in counts) / len(counts),
        "loss": result.heldout[metric],
        "baseline": result.baseline,
        "seconds": seconds,
    }


def page(record: dict[str, dict]) -> str:
    """Returns the page of a record."""
    lines = [
        "# Text of each language",
        "",
        "| config | text | bytes | tokenizer | pieces | pieces a word | unknown | loss | unigram | "
        "CPU s |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name in [*(one for one in CONFIGS if one in record), *(record.keys() - CONFIGS.keys())]:
        row = record[name]
        kind = row["kind"] + (f", {row['segmenter']}" if row["segmenter"] else "")
        lines.append(
            f"| `{name}` | {' '.join(row['languages'])} | {row['text']:,} | {kind} | "
            f"{row['vocab']:,} | {row['pieces']:.2f} | {row['unknown']:.2%} | {row['loss']:.3f} | "
            f"{row['baseline']:.3f} | {row['seconds']:.0f} |"
        )
    packages = sorted({one for row in record.values() for one in row["packages"]})
    lines += [
        "",
        "The tokenizer of each config is trained on text of its language, at most 2 MB of Debian's "
        f"packages ({', '.join(packages)}), then its miniature for {STEPS} steps. Loss and unigram "
        "baseline are nats a token on a twentieth of the documents. Words are those between "
        "blanks, and in text without blanks those of a segmenter. Losses of different tokenizers "
        "do not compare; there is one seed, and seconds are those of the processor.",
    ]
    above = [f"`{name}`" for name, row in record.items() if row["loss"] >= row["baseline"]]
    absent = [f"`{name}`" for name in CONFIGS if name not in record]
    for words, names in (("Not below the baseline", above), ("Not measured yet", absent)):
        lines += ["", f"- {words}: {', '.join(names)}."] if names else []
    return "\n".join(lines) + "\n"


def main(text: Path, only: tuple[str, ...] = (), seed: int = 0) -> None:
    """Measure the configs."""
    for name in only or CONFIGS:
        record = json.loads(RECORD.read_text()) if RECORD.exists() else {}
        if name in record and not only:
            continue
        try:
            row = measured(name, text, seed)
        except UserError as error:
            print(f"{name}: {error}", file=sys.stderr)
            continue
        RECORD.write_text(json.dumps(record | {name: row}, indent=1) + "\n")
        RECORD.with_suffix(".md").write_text(page(record | {name: row}), encoding="utf8")
        print(f"{name}: {row['loss']:.3f}, unigram {row['baseline']:.3f}, {row['seconds']:.0f} s")


if __name__ == "__main__":
    tyro.cli(main)
