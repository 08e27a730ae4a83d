"""One small model of eight languages: transfer of parts of speech, retrieval by layer, TLM.

    apt-get download manpages manpages-{de,es,fr,it,pl,pt-br,ru}
    python -m benchmarks.cross_lingual --packages . --workdir runs/cross_lingual --seeds 1

The text is man pages, whose translations have the same paragraphs; the parts of speech are those
of UD. Arms: English alone, eight languages, the same with translations (TLM), and English beside
fake English (K et al. 2020). A run that is there is not repeated. Figures: cross_lingual.md.
"""

from __future__ import annotations

import argparse
import collections
import gzip
import json
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import ptm_jax
from ptm_jax.core.system import System
from ptm_jax.data.languages.fake import shifted
from ptm_jax.kernels import program_cache
from ptm_jax.runs.evaluations import Request
from ptm_jax.systems.transformers.bert_gpt import miniature
from ptm_jax.systems.transformers.many_languages import xlm
from ptm_jax.tasks import layer_retrieval

LANGUAGES = ("de", "es", "fr", "it", "pl", "pt", "ru")
FAKE = "en_Fake"
CHARACTERS, PAIRS = 300_000, 1500
"""Characters of a language's text, and pairs of paragraphs with English."""
UD = {
    "en": "en_ewt/en_ewt-ud-dev_first1000.conllu",
    "de": "de_gsd/de_gsd-ud-dev_first400.conllu",
    "fr": "fr_sequoia/fr_sequoia-ud-dev.conllu",
    "zh": "zh_gsdsimp/zh_gsdsimp-ud-dev.conllu",
}
TRAIN = "en_partut/en_partut-ud-train_first1200.conllu"
ARMS = ("english", "eight", "eight_tlm", "fake")
_FONT = re.compile(r"\\f(\[[^]]*\]|\(..|.)|\\s[-+]?\d|\\&|\\[|^/,:%]|\\\*\(..|\\\*\[[^]]*\]")
_CHAR = re.compile(r"\\\((..)|\\\[([^]]*)\]")
_NAMED = {"aq": "'", "dq": '"', "co": "(c)", "em": "-", "en": "-", "lq": '"', "rq": '"'}
_BREAKS = {"SH", "SS", "P", "PP", "LP", "TP", "IP", "TQ", "RS", "RE", "br", "sp"}
_FONTS = {"B", "I", "BR", "RB", "BI", "IB", "IR", "RI", "SM", "SB"}


def paragraphs(page: str) -> list[str]:
    """Returns the paragraphs of a man page, without markup, tables and examples."""
    parts, text, skipping = [], [], False
    for line in page.split("\n"):
        name, _, words = line.lstrip(".'").partition(" ")
        if line[:1] not in (".", "'"):
            text += [] if skipping else [line]
        elif name in ("nf", "EX", "TS", "fi", "EE", "TE"):
            skipping = name in ("nf", "EX", "TS")
        elif name in _FONTS and not skipping:
            glue = " " if name in ("B", "I", "SM", "SB") else ""
            text.append(glue.join(_words(words)))
        elif name in _BREAKS:
            parts.append(" ".join(text))
            text = _words(words) if name in ("SH", "SS") else []
    parts.append(" ".join(text))
    return [" ".join(_plain(part).split()) for part in parts]


def _words(line: str) -> list[str]:
    return [quoted or word for quoted, word in re.findall(r'"([^"]*)"|(\S+)', line)]


def _plain(text: str) -> str:
    text = _CHAR.sub(lambda found: _NAMED.get(found[1] or found[2], ""), _FONT.sub("", text))
    return text.replace("\\-", "-").replace("\\e", "\\").replace("\\~", " ").replace("\\ ", " ")


def pages(packages: Path, code: str) -> dict[str, list[str]]:
    """Returns {section/name: paragraphs} of the package of a language."""
    name = {"en": "manpages_*", "pt": "manpages-pt-br_*"}.get(code, f"manpages-{code}_*")
    archive = next(packages.glob(f"{name}.deb"))
    folder = packages / archive.name.partition("_")[0]
    if not folder.is_dir():
        subprocess.run(["dpkg-deb", "-x", archive, folder], check=True)
    place = folder / "usr/share/man" / {"en": "", "pt": "pt_BR"}.get(code, code)
    return {
        f"{file.parent.name}/{file.name}": paragraphs(gzip.decompress(file.read_bytes()).decode())
        for file in sorted(place.glob("man*/*.gz"))
        if not file.is_symlink()
    }


def aligned(first: dict[str, list[str]], other: dict[str, list[str]]) -> Iterator[tuple[str, str]]:
    """Yields translated paragraphs. A translation has a section more, on its translators; pages
    with another number of paragraphs than this are left out."""
    names = sorted(first.keys() & other.keys())
    more = collections.Counter(len(other[name]) - len(first[name]) for name in names)
    usual = more.most_common(1)[0][0]
    for name in names:
        if len(other[name]) - len(first[name]) == usual:
            for both in zip(first[name], other[name], strict=False):
                if all(20 <= len(text) <= 400 for text in both) and both[0] != both[1]:
                    yield both


def write_texts(packages: Path, out: Path) -> None:
    """Writes CODE.txt, pairs en-CODE.en and .CODE, held-out pairs, and the fake English."""
    out.mkdir(parents=True, exist_ok=True)
    english = pages(packages, "en")
    for code in ("en", *LANGUAGES):
        texts = [part for page in pages(packages, code).values() for part in page if len(part) > 19]
        lines, count = [], 0
        for text in texts:
            if count < CHARACTERS:
                lines.append(text)
                count += len(text)
        (out / f"{code}.txt").write_text("\n".join(lines) + "\n", encoding="utf8")
        if code != "en":
            pairs = list(aligned(english, pages(packages, code)))
            for name, part in (("pairs", pairs[: -200 or None][:PAIRS]), ("held", pairs[-200:])):
                for side, tongue in enumerate(("en", code)):
                    file = out / f"{name}.en-{code}.{tongue}"
                    file.write_text("".join(f"{both[side]}\n" for both in part), encoding="utf8")
            print(code, f"{count:,} characters, {len(pairs):,} pairs of paragraphs", flush=True)
    text = (out / "en.txt").read_text(encoding="utf8")
    (out / f"{FAKE}.txt").write_text(shifted(text), encoding="utf8")


def system(steps: int) -> System:
    """Returns XLM with 4 layers of 128, without vectors of languages."""
    parent = xlm("", 4, 128, 4, languages=0, translations=True)
    return miniature(parent, "cross_lingual_mini", steps=steps, lr=2e-3, std=0.08, length=64)


def sources(arm: str, texts: Path) -> list[str]:
    """Returns the data of an arm."""
    codes = {"english": ("en",), "fake": ("en", FAKE)}.get(arm, ("en", *LANGUAGES))
    found = [f"language:{code}={texts / code}.txt" for code in codes]
    if arm == "eight_tlm":
        found += [f"language:en-{code}={texts}/pairs.en-{code}" for code in LANGUAGES]
    return found


def transfer(run: Path, args: argparse.Namespace, arm: str, seed: int) -> dict[str, float]:
    """Returns the accuracy of parts of speech by language, after training on English."""
    folder = args.data / "ud"
    files = {code: folder / name for code, name in UD.items()}
    if arm == "fake":
        files = {"en": files["en"], FAKE: args.workdir / "texts" / "fake.conllu"}
        rows = [line.split("\t") for line in (folder / UD["en"]).read_text("utf8").split("\n")]
        lines = ["\t".join([*row[:1], shifted(row[1]), *row[2:]]) if len(row) > 1 else row[0]
                 for row in rows]  # fmt: skip
        files[FAKE].write_text("\n".join(lines), encoding="utf8")
    model = ptm_jax.finetune(
        run, task="ud", data=[folder / TRAIN, folder / UD["en"]],
        workdir=run.with_name(f"{run.name}_ud"), epochs=args.epochs, lr=1e-3, length=64, seed=seed,
        quiet=True,
    )  # fmt: skip
    return {
        code: ptm_jax.evaluate(model, task="ud", data=str(file))["tag_accuracy"]
        for code, file in files.items()
    }


def retrieval(run: Path, args: argparse.Namespace, arm: str) -> dict[str, list]:
    """Returns the accuracies by layer of Tatoeba's and of held-out paragraphs."""
    texts, tatoeba = args.workdir / "texts", args.data / "mt/tatoeba"
    asked = {
        "tatoeba de": f"language:de-en={tatoeba}/tatoeba.deu-eng.deu,{tatoeba}/tatoeba.deu-eng.eng",
        "tatoeba fr": f"language:fr-en={tatoeba}/tatoeba.fra-eng.fra,{tatoeba}/tatoeba.fra-eng.eng",
        **{f"pages {code}": f"language:en-{code}={texts}/held.en-{code}" for code in ("de", "fr")},
    }
    if arm == "fake":
        real = tatoeba / "tatoeba.deu-eng.eng"
        (texts / "fake.eng").write_text(shifted(real.read_text("utf8")), encoding="utf8")
        asked = {"tatoeba fake": f"language:en-{FAKE}={real},{texts / 'fake.eng'}"}
    found = {}
    for name, source in asked.items():
        request = Request(task="layer_retrieval", model=str(run), data=(source,))
        (found[name],) = layer_retrieval.report(request).document["layers"].values()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--packages", type=Path, default=Path("."))
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--workdir", type=Path, default=Path("runs/cross_lingual"))
    parser.add_argument("--arms", nargs="+", default=list(ARMS), choices=ARMS)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--epochs", type=float, default=3.0)
    args = parser.parse_args()
    program_cache.use()
    texts, record = args.workdir / "texts", args.workdir / "figures.json"
    if not (texts / f"{FAKE}.txt").is_file():
        write_texts(args.packages, texts)
    figures = json.loads(record.read_text()) if record.is_file() else {}
    for seed in args.seeds:
        for arm in args.arms:
            name = f"{arm}_{seed}"
            if name in figures:
                continue
            start, run = time.process_time(), args.workdir / name
            ptm_jax.train(
                system(args.steps), sources(arm, texts), workdir=run, seed=seed, quiet=True
            )
            figures[name] = {
                "loss": ptm_jax.evaluate(run)["mlm_nll"],
                "ud": transfer(run, args, arm, seed),
                "retrieval": retrieval(run, args, arm),
                "cpu_seconds": round(time.process_time() - start),
            }
            record.write_text(json.dumps(figures, indent=1))
            print(name, json.dumps(figures[name]), flush=True)


if __name__ == "__main__":
    main()
