"""Text to a tokenizer and packed records, in parallel; run again, it goes on where it stopped.

Example:
  ptm prepare --data pydocs --out prepared --vocab 4096
  ptm prepare --data 'books/*.txt.gz' news.jsonl --out prepared --tokenizer bytebpe --vocab 16384
"""

from __future__ import annotations

import dataclasses
import time
from typing import Annotated, Any, Literal

import tyro

from ptm_jax.cli.options import Flag, Number, Path, print_json
from ptm_jax.cli.progress import Progress
from ptm_jax.core.errors import UserError

Sources = Annotated[tuple[str, ...], tyro.conf.arg(metavar="SOURCE ...")]

# The special tokens of the family that made each kind of tokenizer known.
STYLES = {"wordpiece": "bert", "bytebpe": "roberta", "unigram": "t5", "bpe": "xlnet"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Args:
    data: Sources
    """Files, globs or directories (txt, jsonl, csv, tsv, parquet, also gz, bz2, zst), tfds:name/config, or pydocs."""
    out: Annotated[str, tyro.conf.arg(metavar="DIR")]
    """Where the tokenizer, the shards and the manifest are written."""
    tokenizer: Literal["wordpiece", "bytebpe", "unigram", "bpe"] = "wordpiece"
    """What kind of vocabulary is trained."""
    vocab: Annotated[int, tyro.conf.arg(metavar="N")] = 8192
    """Its size, special tokens included."""
    specials: Literal["bert", "roberta", "gpt2", "t5", "xlnet", "auto"] = "auto"
    """The family whose special tokens it has; auto: bert, roberta, t5, xlnet for the four kinds above."""
    sentinels: Annotated[int, tyro.conf.arg(metavar="N")] = 0
    """Number of <extra_id_N> pieces, which T5's spans need."""
    lowercase: Flag = False
    """Lower-case the text: what wordpiece does unless told otherwise."""
    no_lowercase: Flag = False
    """Keep case: what the other kinds do."""
    tokenizer_path: Path = None
    """A tokenizer to use as it is: vocab.txt, tokenizer.json, a sentencepiece .model, or a directory of one."""
    heldout: Annotated[float, tyro.conf.arg(metavar="FRACTION")] = 0.02
    """Fraction of the documents kept for evaluation."""
    seed: Annotated[int, tyro.conf.arg(metavar="N")] = 0
    """Which documents those are."""
    workers: Number = None
    """Processes; unless given, one for each core, or one for little text. The result does not depend on it."""
    block_tokens: Number = None
    """Tokens of a block, the unit of reading and shuffling; 8192 unless given."""
    json: Flag = False
    """The summary as JSON: documents, tokens, vocabulary, shards, seconds."""


def run(args: Args) -> int:
    """Prepare the corpus and print a summary."""
    _check(args)
    from ptm_jax.data import prepare

    began = time.monotonic()
    options = {} if args.block_tokens is None else {"block_tokens": args.block_tokens}
    with Progress() as progress:
        corpus = prepare.prepare(
            args.data,
            args.out,
            tokenizer=_spec(args),
            heldout=args.heldout,
            seed=args.seed,
            workers=args.workers,
            progress=progress,
            **options,
        )
    report = summary(corpus, time.monotonic() - began)
    if args.json:
        print_json(report)
        return 0
    print("{documents:,} documents, {tokens:,} tokens, vocabulary {vocabulary:,}, {shards} shards".format(**report))
    print(f"in {args.out} after {report['seconds']} s; next: ptm train bert_mini --data {args.out} --workdir DIR")
    return 0


def summary(corpus: Any, seconds: float) -> dict[str, Any]:
    """What was prepared, in numbers."""
    splits = corpus.manifest["splits"].values()
    return {
        "documents": sum(split["documents"] for split in splits),
        "tokens": sum(split["tokens"] for split in splits),
        "vocabulary": corpus.manifest["vocab"]["size"],
        "shards": sum(len(split["shards"]) for split in splits),
        "seconds": round(seconds, 1),
    }


def _check(args: Args) -> None:
    if args.lowercase and args.no_lowercase:
        raise UserError("--lowercase and --no-lowercase are both given; leave one out")
    if not 0 <= args.heldout < 1:
        raise UserError(f"--heldout is {args.heldout}; it must be a fraction in [0, 1)")
    for name in ("vocab", "workers", "block_tokens"):
        value = getattr(args, name)
        if value is not None and value < 1:
            raise UserError(f"--{name.replace('_', '-')} is {value}; it must be at least 1")


def _spec(args: Args) -> Any:
    from ptm_jax.data.tokenizers import TokenizerSpec

    return TokenizerSpec(
        kind=args.tokenizer,
        vocab=args.vocab,
        lowercase=args.lowercase or (args.tokenizer == "wordpiece" and not args.no_lowercase),
        specials=STYLES[args.tokenizer] if args.specials == "auto" else args.specials,
        sentinels=args.sentinels,
        path=args.tokenizer_path,
    )
