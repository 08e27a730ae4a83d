"""Beam search of T5-small and BART-base beside Transformers and CTranslate2: new tokens a second.

    pip install --target PEER ctranslate2
    PYTHONPATH=PEER python -m benchmarks.beams [--out benchmarks/]

The weights are random at the published sizes, in one folder that every side reads. Each side reads
sources of 64 tokens and writes 32 tokens, no fewer, with four beams and the rule n^alpha of the
lengths. Threads are those of the machine on every side. Each round times each side once; a ratio
is the median over rounds. CTranslate2 is also timed in int8, which is not the same work. The share
of answers that equal those of Transformers, token by token, stands beside the speed.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

import ptm_jax
from ptm_jax.bench import record, timing
from ptm_jax.cli import allocator
from ptm_jax.core.towers import Tower
from ptm_jax.data.tokenizers.published import write_published
from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec
from ptm_jax.data.tokenizers.vocabularies import make
from ptm_jax.inference.decoding import decode
from ptm_jax.inference.decoding.settings import Generation
from ptm_jax.inference.text import generating

SOURCE, NEW, BEAMS = 64, 32, 4
FAMILIES = {
    "T5-small": (
        "T5",
        {"vocab_size": 32_128, "decoder_start_token_id": 0},
        TokenizerSpec(kind="unigram", specials="t5", vocab=300, sentinels=100),
    ),
    "BART-base": (
        "Bart",
        {
            **{"vocab_size": 50_265, "d_model": 768, "encoder_layers": 6, "decoder_layers": 6},
            **{"encoder_attention_heads": 12, "decoder_attention_heads": 12},
            **{"encoder_ffn_dim": 3072, "decoder_ffn_dim": 3072},
            **{"forced_eos_token_id": None, "forced_bos_token_id": None},
            **{"normalize_before": False, "normalize_embedding": True},  # CTranslate2 asks
        },
        TokenizerSpec(kind="bytebpe", specials="roberta", vocab=400),
    ),
}
"""{name: (class of Transformers, its configuration where it is not the default, a tokenizer)}."""
Answers = Callable[[], np.ndarray]
"""Returns the answers [B, NEW] of a batch."""


def folder_of(name: str, path: Path) -> Path:
    """Writes a model with random weights, and a tokenizer of this file's text."""
    import torch
    import transformers

    prefix, settings, spec = FAMILIES[name]
    torch.manual_seed(0)
    config = getattr(transformers, f"{prefix}Config")(**settings)
    model = getattr(transformers, f"{prefix}ForConditionalGeneration")(config)
    model.save_pretrained(path)
    write_published(make(spec, Path(__file__).read_text(encoding="utf8").splitlines()), path)
    if prefix == "Bart":  # CTranslate2 asks for a word of each row of the table
        file = path / "tokenizer.json"
        tokenizer = json.loads(file.read_text(encoding="utf8"))
        words = tokenizer["model"]["vocab"]
        words |= {f"word {number}": number for number in range(len(words), config.vocab_size)}
        file.write_text(json.dumps(tokenizer), encoding="utf8")
    return path


def ours(folder: Path, sources: np.ndarray) -> Answers:
    """The answers of this library."""
    model = ptm_jax.load(folder)
    tower = Tower(model.module, model.params[model.tower])
    plan = Generation(
        max_new_tokens=NEW, min_new_tokens=NEW, beams=BEAMS, length_penalty=1.0,
        length_rule="power", early_stopping=False,
    )  # fmt: skip
    first = generating.start_of(model)
    options = {"head": model.head, "eos": generating.ends_of(model), "pad": model.vocab.pad or 0}
    return lambda: decode.decode(tower, list(sources), plan, start=first, **options).tokens[:, 0]


def transformers_answers(folder: Path, sources: np.ndarray) -> Answers:
    """The answers of Transformers in float32."""
    import torch
    import transformers

    torch.set_num_threads(os.cpu_count() or 1)
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    ids = torch.tensor(sources)

    def answers() -> np.ndarray:
        with torch.inference_mode():
            found = model.generate(
                input_ids=ids, attention_mask=torch.ones_like(ids), num_beams=BEAMS,
                do_sample=False, max_new_tokens=NEW, min_new_tokens=NEW,
            )  # fmt: skip
        return found[:, 1 : NEW + 1].numpy()

    return answers


def ctranslate2_answers(folder: Path, sources: np.ndarray, kind: str) -> Answers:
    """The answers of CTranslate2 in "float32" or "int8"."""
    import ctranslate2
    import transformers
    from ctranslate2.converters import TransformersConverter

    out = folder / "ctranslate2"
    if not out.exists():
        TransformersConverter(str(folder)).convert(str(out))
    cores = os.cpu_count() or 1
    translator = ctranslate2.Translator(str(out), compute_type=kind, intra_threads=cores)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    rows = [tokenizer.convert_ids_to_tokens(row.tolist()) for row in sources]
    names = {name: number for number, name in enumerate(_words(out))}

    def answers() -> np.ndarray:
        found = translator.translate_batch(
            rows, beam_size=BEAMS, max_decoding_length=NEW, min_decoding_length=NEW,
            length_penalty=1.0, max_batch_size=len(rows),
        )  # fmt: skip
        return np.array([[names[word] for word in one.hypotheses[0][:NEW]] for one in found])

    return answers


def _words(folder: Path) -> Sequence[str]:
    return json.loads((folder / "shared_vocabulary.json").read_text(encoding="utf8"))


def measured(name: str, batch: int, rounds: int, folder: Path) -> list[tuple[str, ...]]:
    """Returns a line for each side: name, batch, side, tokens a second, ratio, equal answers."""
    highest = FAMILIES[name][2].vocab - 50
    sources = np.random.default_rng(0).integers(5, highest, (batch, SOURCE)).astype(np.int32)
    sides = {
        "ours": ours(folder, sources),
        "Transformers": transformers_answers(folder, sources),
        "CTranslate2": ctranslate2_answers(folder, sources, "float32"),
        "CTranslate2, int8": ctranslate2_answers(folder, sources, "int8"),
    }
    meters = {side: timing.clocked(answers) for side, answers in sides.items()}
    seconds = timing.alternate(meters, rounds)
    expected = sides["Transformers"]()
    lines = []
    for side, answers in sides.items():
        speed = batch * NEW / record.median(seconds[side])
        ratios = record.over(seconds[side], seconds["ours"])
        among = record.spread(ratios)
        equal = np.mean(np.all(answers()[:, : NEW - 1] == expected[:, : NEW - 1], axis=1))
        ratio = f"{record.median(ratios):.2f} ({among['low']:.2f} to {among['high']:.2f})"
        ratio = "" if side == "ours" else ratio
        lines.append((name, str(batch), side, f"{speed:.0f}", ratio, f"{equal:.0%}"))
    return lines


def page(lines: Sequence[tuple[str, ...]], rounds: int) -> str:
    """Returns the text of the page."""
    head = ("model", "rows", "side", "new tokens/s", "ours over it (10% to 90%)", "equal answers")
    rows = [head, ("---", "---:", "---", "---:", "---:", "---:"), *lines]
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    return (
        f"# Beam search of T5 and BART\n\n{table}\n\n"
        f"Float32 but for int8, four beams, {SOURCE} tokens of source, {NEW} new ones, random "
        f"weights at the published sizes, {rounds} rounds on {record.device()}, "
        f"{datetime.date.today().isoformat()}.\n`python -m benchmarks.beams --out benchmarks/`\n"
    )


def main() -> None:
    """Print the table, or write the page."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--out", type=Path, help="write beams.md into this folder")
    args = parser.parse_args()
    lines = []
    with tempfile.TemporaryDirectory() as place:
        for name in FAMILIES:
            folder = folder_of(name, Path(place) / name)
            for batch in args.batches:
                lines += measured(name, batch, args.rounds, folder)
                print(*(" | ".join(line) for line in lines[-4:]), sep="\n", flush=True)
    if args.out:
        (args.out / "beams.md").write_text(page(lines, args.rounds), encoding="utf8")


if __name__ == "__main__":
    allocator.restart(("bench",))  # huge pages, for all sides
    main()
