"""Benchmark of the input stream: tokens/s of packed rows from a prepared corpus.
The figures are relative to disk and memory rates."""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path
from typing import Any

from ptm_jax.bench import timing
from ptm_jax.bench.peers import Peers
from ptm_jax.bench.record import Entry, median, settings, spread
from ptm_jax.data.corpora import stream
from ptm_jax.data.corpora.prepare import prepare
from ptm_jax.data.rows.examples import Packed
from ptm_jax.data.text import pydocs
from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec
from ptm_jax.data.tokenizers.vocabularies import TooLarge


@dataclasses.dataclass(frozen=True, kw_only=True)
class InputSizes:
    """The corpus has `text` characters of documentation.
    Each measurement of the stream takes `seconds`."""

    text: int = pydocs.MAX_BYTES
    vocab: int = 8192
    lengths: tuple[int, ...] = (128, 512)
    batch: int = 64
    seconds: float = 1.0


def run(sizes: InputSizes, repeats: int, say: timing.Say, peers: Peers = Peers()) -> list[Entry]:
    """Measures the tokens/s of packed rows, and the share of positions that hold a token."""
    with tempfile.TemporaryDirectory(prefix="ptm-bench-") as folder:
        say("input: preparing the documentation of the installed packages")
        corpus = _corpus(Path(folder), sizes)
        shards = [Path(path) for path in corpus.paths("train")]
        stored = sum(path.stat().st_size for path in shards) / corpus.size("train")["tokens"]
        return [
            _entry(sizes, length, corpus, shards, stored, repeats=repeats, say=say)
            for length in sizes.lengths
        ]


def _corpus(folder: Path, sizes: InputSizes) -> Any:
    documents = pydocs.documents(sizes.text)
    text = folder / "pydocs.txt"
    text.write_text(
        "\n\n".join("\n".join(document.sentences) for document in documents), encoding="utf8"
    )
    return prepared(text, folder / "prepared", sizes.vocab)


def prepared(text: Path, folder: Path, vocab: int) -> Any:
    """Returns the corpus of a text with a WordPiece vocabulary of a size.
    The size is at most the largest that the text supports."""
    tokenizer = TokenizerSpec(kind="wordpiece", vocab=vocab, lowercase=True)
    try:
        return prepare([str(text)], folder, tokenizer=tokenizer)
    except TooLarge as error:
        return prepare(
            [str(text)], folder, tokenizer=dataclasses.replace(tokenizer, vocab=error.largest)
        )


def _entry(sizes, length, corpus, shards, stored, *, repeats, say) -> Entry:
    say(f"input: rows of {length} tokens")
    measured = []

    def ours() -> float:
        measured.append(
            stream.measure(
                corpus, Packed(), length=length, batch=sizes.batch, seconds=sizes.seconds
            )
        )
        return measured[-1]["tokens_per_second"]

    meters = {"ours": ours, "disk": lambda: timing.read_raw(shards), "memory": timing.copies()}
    rates = timing.alternate(meters, repeats, say=say)
    real = median([m["utilisation"] for m in measured])
    fields = Packed().spec(length, corpus.vocab)
    placed = 2 * 4 * len(fields) / real  # bytes read and written to put one real token into a batch
    limits = [
        min(d / stored, c / placed) for d, c in zip(rates["disk"], rates["memory"], strict=True)
    ]
    ratios = [rate / limit for rate, limit in zip(rates["ours"], limits, strict=True)]
    return Entry(
        name=f"input/{length}",
        ours={"packed": {"tokens_per_second": median(rates["ours"]), "real_tokens": real}},
        peers={},
        ratio=median(ratios),
        spread=spread(ratios),
        roofline={
            "disk_bytes_per_second": median(rates["disk"]),
            "disk_tokens_per_second": median(rates["disk"]) / stored,
            "copy_bytes_per_second": median(rates["memory"]),
            "copy_tokens_per_second": median(rates["memory"]) / placed,
            "share": median(ratios),
        },
        settings=settings(
            ratio="tokens/s of the stream over the lower of disk and memory",
            compares="tokens_per_second",
            length=length,
            batch=sizes.batch,
            corpus=f"pydocs, {corpus.size('train')['tokens']:,} tokens, vocabulary "
            f"{corpus.vocab.size:,}",
            processes="one, with a thread that reads ahead",
            bytes_per_stored_token=stored,
            bytes_moved_per_served_token=placed,
        ),
    )
