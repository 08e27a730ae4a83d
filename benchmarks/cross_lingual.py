"""One small model of eight languages: zero-shot transfer, retrieval by layer, TLM, fake English.

    apt-get download manpages manpages-{de,es,fr,it,pl,pt-br,ru}
    python -m benchmarks.cross_lingual --packages . --workdir runs/cross_lingual --seeds 0 1 2

The text is man pages, whose translations have the same paragraphs. Parts of speech are those of
UD, pairs of sentences those of SNLI (English) and XNLI. Arms: English alone, German alone, eight
languages, the same with translations (TLM), and English beside fake English (K et al. 2020). What
figures.json has is not measured again; the page cross_lingual.md is written from it.
"""

from __future__ import annotations

import argparse
import collections
import csv
import gzip
import itertools
import json
import re
import statistics
import subprocess
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import ptm_jax
from ptm_jax.core.system import System
from ptm_jax.data.corpora import prepare
from ptm_jax.data.languages.fake import shifted
from ptm_jax.data.tokenizers import saved
from ptm_jax.kernels import program_cache
from ptm_jax.runs.evaluations import Request
from ptm_jax.systems.transformers.bert_gpt import miniature
from ptm_jax.systems.transformers.many_languages import xlm
from ptm_jax.tasks import layer_retrieval
from ptm_jax.tasks import vocabulary_overlap as overlap
from ptm_jax.tuning import scoring

LANGUAGES = ("de", "es", "fr", "it", "pl", "pt", "ru")
EIGHT = ("en", *LANGUAGES)
FAKE = "en_Fake"
LAYERS = 2
CHARACTERS, PAIRS = 300_000, 1500
"""Characters of a language's text, and pairs of paragraphs with English."""
UD = {
    "train": ("en_partut/en_partut-ud-train_first1200.conllu", 0, 1200),
    "en": ("en_ewt/en_ewt-ud-dev_first1000.conllu", 0, 400),
    "german": ("de_gsd/de_gsd-ud-dev_first400.conllu", 0, 200),
    "de": ("de_gsd/de_gsd-ud-dev_first400.conllu", 200, 200),
    "fr": ("fr_sequoia/fr_sequoia-ud-dev.conllu", 0, 200),
    "zh": ("zh_gsdsimp/zh_gsdsimp-ud-dev.conllu", 0, 200),
}
"""{part: file, its first sentence, their number}."""
TESTED = {"ud": ("en", "de", "fr", "zh"), "snli": ("en", "hr", "sw")}
RETRIEVED = ("de", "ru")
CODES = {
    "english": ("en", "de", "fr", "zh"), "eight": ("en", "de", "fr", "zh"), "fake": ("en", FAKE)
}  # fmt: skip
"""The languages of an arm whose pieces are counted."""
NAMES = {
    "english": "English alone", "eight": "eight languages", "eight_tlm": "the same with TLM",
    "fake": "English and fake English", "german": "German alone, tagger of 200 German sentences",
}  # fmt: skip
PLACE = Path(__file__).with_suffix(".md")
ARMS = ("english", "german", "eight", "eight_tlm", "fake")
PARTS = ("loss", "ud", "retrieval", "snli")
_FONT = re.compile(r"\\f(\[[^]]*\]|\(..|.)|\\s[-+]?\d|\\&|\\[|^/,:%]|\\\*\(..|\\\*\[[^]]*\]")
_CHAR = re.compile(r"\\\((..)|\\\[([^]]*)\]")
_NAMED = {"aq": "'", "dq": '"', "co": "(c)", "em": "-", "en": "-", "lq": '"', "rq": '"'}
_BREAKS = {"SH", "SS", "P", "PP", "LP", "TP", "IP", "TQ", "RS", "RE", "br", "sp"}
_FONTS = {"B", "I", "BR", "RB", "BI", "IB", "IR", "RI", "SM", "SB"}


PAGE = """# Many languages in a small model

{zero}
Accuracy in percent, mean and standard deviation over seeds ({runs}; {minutes} CPU-minutes).
XLM with 2 layers of 128 and 4,096 pieces is trained for {steps} steps of 1,000 tokens,
then for 80 steps on English sentences of ParTUT (German alone: on 200 of GSD); no page is Chinese.
"One answer for all" is the most frequent tag of the test.{verdict}

## Retrieval by layer

{retrieval}
Share of texts whose nearest neighbour, by the mean vector of a layer (0: the embeddings), is the
translation: among 1,000 sentences of Tatoeba, or 200 paragraphs of man pages that no pair of TLM
has; chance is 0.1 and 0.5. Paragraphs share names of functions and options, in any language.

## Shared pieces

{overlap}
What `ptm evaluate --task overlap` counts, of the words for the test and the English ones for
tagging: pieces of both among those of either, among the different pieces of the language, and among
its tokens. Unknown characters do not count. English pieces cut German into letters, which are
shared: the share of tokens says nothing then.
"""
VERDICT = """

## What they show

Three seeds: German is tagged some eight points above one answer, French one to four, Chinese and
fake English not above it. Seven more languages change German by nothing, and French by less than
two deviations; TLM takes three points from German. 200 German sentences teach far more than 1,200
English ones. 3,600 pairs of sentences teach none of these models inference: all are at chance.
TLM brings translations no nearer to each other, and retrieval falls with depth.
"""
"""Of three seeds, November 2026."""


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
    for code in EIGHT:
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
    """Returns XLM with 2 layers of 128, without vectors of languages."""
    parent = xlm("", LAYERS, 128, 2, languages=0, translations=True)
    return miniature(parent, "cross_lingual_mini", steps=steps, lr=2e-3, std=0.08, length=64)


def prepared(arm: str, workdir: Path) -> Path:
    """Returns the corpus of an arm, with a tokenizer of its text. It is the same for all seeds."""
    texts = workdir / "texts"
    codes = {"english": ("en",), "german": ("de",), "fake": ("en", FAKE)}
    sources = [f"language:{code}={texts / code}.txt" for code in codes.get(arm, EIGHT)]
    if arm == "eight_tlm":
        sources += [f"language:en-{code}={texts}/pairs.en-{code}" for code in LANGUAGES]
    tokenizer = system(1).tokenizer
    return Path(prepare.prepare(sources, workdir / "corpora" / arm, tokenizer=tokenizer).dir)


def write_tests(data: Path, out: Path) -> None:
    """Writes ud.CODE.conllu, of German a half to train on, and nli.CODE.tsv."""
    for code, (name, start, count) in UD.items():
        sentences = (data / "ud" / name).read_text("utf8").strip().split("\n\n")
        text = "\n\n".join(sentences[start : start + count]) + "\n\n"
        (out / f"ud.{code}.conllu").write_text(text, encoding="utf8")
    fields = [line.split("\t") for line in (out / "ud.en.conllu").read_text("utf8").split("\n")]
    for row in fields:
        if len(row) > 1:
            row[1] = shifted(row[1])
    (out / f"ud.{FAKE}.conllu").write_text("\n".join(map("\t".join, fields)), encoding="utf8")
    snli = [(data / "glue/snli" / f"{name}.dev").open() for name in ("s1", "s2", "labels")]
    pairs = [[text.strip().replace(" .", ".") for text in row] for row in zip(*snli, strict=True)]
    with (data / "xnli/sw/sw.genre.dev.tsv").open(encoding="utf8") as file:
        swahili = [[row[2], row[3], row[1]] for row in csv.reader(file, delimiter="\t", quoting=3)]
    with (data / "xnli/hr/xnli.dev.hr.csv").open(encoding="utf8") as file:
        croatian = [[row[0], row[1], row[5]] for row in csv.reader(file)]
    fake = [[*map(shifted, row[:2]), row[2]] for row in pairs[3600:]]
    parts = {"train": pairs[:3600], "en": pairs[3600:], FAKE: fake}
    parts |= {"hr": croatian[1:601], "sw": swahili[1:601]}
    for code, rows in parts.items():
        lines = ["premise\thypothesis\tlabel", *("\t".join(row) for row in rows)]
        (out / f"nli.{code}.tsv").write_text("\n".join(lines) + "\n", encoding="utf8")


def zero_shot(model: Path, task: str, files: dict[str, Path]) -> dict[str, float]:
    """Returns the first metric by language, as `ptm evaluate --data language:CODE=FILE ...`."""
    data = tuple(f"language:{code}={file}" for code, file in files.items())
    report = scoring.report(Request(task=task, model=str(model), data=data))
    metrics = report.document["languages"]
    return {code: next(iter(one["metrics"].values())) for code, one in metrics.items()}


def tuned(run: Path, arm: str, task: str, steps: int) -> dict[str, float]:
    """Returns the figures by language after training on English (on German in that arm)."""
    texts, workdir = run.parent / "texts", run.with_name(f"{run.name}_{task}")
    form, end = {"ud": ("ud", "conllu"), "snli": ("nli", "tsv")}[task]
    codes = {"german": ("de",), "fake": ("en", FAKE)}.get(arm, TESTED[task])
    first = "german" if arm == "german" else "train"
    files = {code: texts / f"{form}.{code}.{end}" for code in codes}
    data = [texts / f"{form}.{first}.{end}", next(iter(files.values()))]
    options = {"steps": steps, "batch": 16, "length": 64, "lr": 1e-3}
    ptm_jax.finetune(run, task=task, data=data, workdir=workdir, quiet=True, **options)
    return zero_shot(workdir, task, files)


def retrieval(run: Path, args: argparse.Namespace, arm: str) -> dict[str, list]:
    """Returns the accuracies by layer of Tatoeba's and of held-out paragraphs."""
    texts, tatoeba = args.workdir / "texts", args.data / "mt/tatoeba"
    asked = {
        "tatoeba de": f"language:de-en={tatoeba}/tatoeba.deu-eng.deu,{tatoeba}/tatoeba.deu-eng.eng",
        **{f"pages {code}": f"language:en-{code}={texts}/held.en-{code}" for code in RETRIEVED},
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


def measured(arm: str, seed: int, part: str, args: argparse.Namespace) -> Any:
    """Returns a part of the figures of a run."""
    run = args.workdir / f"{arm}_{seed}"
    if part == "loss":
        corpus = str(prepared(arm, args.workdir))
        ptm_jax.pretrain(system(args.steps), corpus, workdir=run, seed=seed, quiet=True)
        lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
        return [one["values"]["mlm_nll"] for one in lines if one["split"] == "heldout"][-1]
    if part == "retrieval":
        return None if arm == "german" else retrieval(run, args, arm)
    if part == "snli" and arm == "german":
        return None
    return tuned(run, arm, part, args.tag_steps if part == "ud" else args.pair_steps)


def shared(arm: str, workdir: Path) -> dict[str, dict[str, float]]:
    """Returns which pieces of the words of a language the English words for tagging have too."""
    tokenizer, texts = saved.load(workdir / "corpora" / arm / "tokenizer"), workdir / "texts"
    counts = {code: overlap.counts(tokenizer, list(tags(texts, code)[0])) for code in (*UD, FAKE)}
    return {code: overlap.overlap(counts["train"], one)._asdict() for code, one in counts.items()}


def tags(texts: Path, code: str) -> tuple[list[str], list[str]]:
    """Returns the words and the tags of a file of UD."""
    lines = (texts / f"ud.{code}.conllu").read_text("utf8").split("\n")
    rows = [line.split("\t") for line in lines if re.match(r"\d+\t", line)]
    words, kinds = zip(*((row[1], row[3]) for row in rows), strict=True)
    return list(words), list(kinds)


def majority(texts: Path, code: str) -> float:
    """Returns the accuracy of one tag for all words, the most frequent one of the test file."""
    kinds = tags(texts, code)[1]
    return collections.Counter(kinds).most_common(1)[0][1] / len(kinds)


def over_seeds(figures: dict, arm: str, part: str, *keys: str | int) -> str:
    """Returns mean and standard deviation of a figure over the seeds, in percent."""
    values = []
    for name, run in figures["runs"].items():
        value = run.get(part) if name.rpartition("_")[0] == arm else None
        for key in keys:
            inside = value is not None and (isinstance(value, list) or key in value)
            value = value[key] if inside else None
        if value is not None:
            values.append(value)
    if not values:
        return ""
    spread = f" ± {100 * statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{100 * statistics.mean(values):.1f}{spread}"


def table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(row)} |" for row in (names, ["---"] * len(names), *rows)]
    return "\n".join(lines) + "\n"


def page(figures: dict) -> str:
    """Returns cross_lingual.md, with the arms and the tests of which there are figures."""
    runs = figures["runs"]
    names = [one for one in NAMES.items() if any(f"{one[0]}_{seed}" in runs for seed in range(99))]
    columns = [("ud", code) for code in (*TESTED["ud"], FAKE)]
    columns += [("snli", code) for code in (*TESTED["snli"], FAKE)]
    columns = [one for one in columns if any(over_seeds(figures, arm, *one) for arm, _ in names)]
    head = ["model", *(f"{'tags' if part == 'ud' else 'NLI'} {code}" for part, code in columns)]
    zero = [[name, *(over_seeds(figures, arm, *one) for one in columns)] for arm, name in names]
    base = [figures["majority"][code] if part == "ud" else 1 / 3 for part, code in columns]
    zero.append(["one answer for all", *(f"{100 * one:.1f}" for one in base)])
    asked = [("tatoeba de", "Tatoeba de-en"), *((f"pages {one}", f"pages en-{one}")
             for one in RETRIEVED), ("tatoeba fake", "Tatoeba English-fake")]  # fmt: skip
    nearest = [
        [f"{name}, layer {layer}"]
        + [over_seeds(figures, arm, "retrieval", key, layer, 0) for key, _ in asked]
        for arm, name in names if arm != "german" for layer in range(LAYERS + 1)
    ]  # fmt: skip
    pieces = [
        [f"{NAMES[arm]}, {code}", *(f"{100 * share:.1f}" for share in one[code].values())]
        + [over_seeds(figures, arm, "ud", code)]
        for arm, one in figures["overlap"].items() for code in CODES[arm]
    ]  # fmt: skip
    return PAGE.format(
        zero=table(head, zero),
        runs=", ".join(f"{name}: {_seeds(runs, arm)}" for arm, name in names),
        minutes=round(sum(run["cpu_seconds"] for run in runs.values()) / 60),
        steps=figures["steps"],
        verdict=VERDICT,
        retrieval=table(["model", *(title for _, title in asked)], nearest),
        overlap=table(["model, language", "common", "types", "tokens", "tags"], pieces),
    )  # fmt: skip


def _seeds(runs: dict, arm: str) -> int:
    return sum(name.rpartition("_")[0] == arm for name in runs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--packages", type=Path, default=Path("."))
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--workdir", type=Path, default=Path("runs/cross_lingual"))
    parser.add_argument("--arms", nargs="+", default=list(ARMS), choices=ARMS)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=PARTS)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--tag-steps", type=int, default=80)
    parser.add_argument("--pair-steps", type=int, default=150)
    args = parser.parse_args()
    program_cache.use()
    texts, record = args.workdir / "texts", args.workdir / "figures.json"
    if not (texts / f"{FAKE}.txt").is_file():
        write_texts(args.packages, texts)
    if not (texts / "nli.train.tsv").is_file():
        write_tests(args.data, texts)
    figures = {"runs": {}, "steps": args.steps}
    if record.is_file():
        figures = json.loads(record.read_text())
    for seed, arm, part in itertools.product(args.seeds, args.arms, args.parts):
        run = figures["runs"].setdefault(f"{arm}_{seed}", {"cpu_seconds": 0})
        if part not in run:
            start = time.process_time()
            run[part] = measured(arm, seed, part, args)
            run["cpu_seconds"] += round(time.process_time() - start)
            record.write_text(json.dumps(figures, indent=1))
            print(arm, seed, part, json.dumps(run[part]), run["cpu_seconds"], flush=True)
    figures["majority"] = {code: majority(texts, code) for code in (*TESTED["ud"], FAKE)}
    ready = [arm for arm in CODES if (args.workdir / "corpora" / arm).is_dir()]
    figures["overlap"] = {arm: shared(arm, args.workdir) for arm in ready}
    record.write_text(json.dumps(figures, indent=1))
    PLACE.write_text(page(figures), encoding="utf8")


if __name__ == "__main__":
    main()
