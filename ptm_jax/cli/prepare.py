"""Text to a tokenizer and packed records, in parallel; run again, it goes on where it stopped.

Example:
  ptm prepare --data pydocs --out prepared --vocab 4096
  ptm prepare --data 'books/*.txt.gz' news.jsonl --out prepared --tokenizer bytebpe --vocab 16384
  ptm prepare --data pydocs --out clean --vocab 4096 --clean c4 --dedup near --cooccurrence 10
  ptm prepare --data pydocs --out prepared --vocab 4096 --runner direct --workers 2
  ptm prepare --data text --out ready --runner flink --dry-run --runner-options flink_master=h:8081 environment_config=I
"""

from __future__ import annotations

import dataclasses
import importlib.util
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
    """Text, tables, Wikipedia dumps, WET, OpenWebText (gz, bz2, zst, xz): files, globs, URLs; tfds:name/config; pydocs."""
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
    clean: Literal["none", "c4", "openwebtext"] = "none"
    """Rules for documents: those of C4 (lines, pages, spans that occur again) or of OpenWebText (128 words)."""
    bad_words: Path = None
    """A file of words, one on each line, whose pages --clean c4 drops."""
    language: Annotated[str | None, tyro.conf.arg(metavar="CODE")] = None
    """Keep documents of this language (ISO 639-1, as en); needs ptm_jax[clean]."""
    language_threshold: Annotated[float, tyro.conf.arg(metavar="P")] = 0.99
    """The least probability of it."""
    dedup: Literal["none", "exact", "near"] = "none"
    """Keep the first of equal documents; near: also of similar ones, by MinHash over 5 words on end."""
    similarity: Annotated[float | None, tyro.conf.arg(metavar="J")] = None
    """The Jaccard similarity from which documents are similar; 0.8, or 0.5 with --clean openwebtext."""
    cooccurrence: Annotated[int | None, tyro.conf.arg(metavar="WINDOW")] = None
    """Also count which ids of the train split are this near to one another, by 1 / distance: what GloVe needs."""
    runner: Literal["direct", "flink", "spark", "dataflow"] | None = None
    """Do it there as an Apache Beam pipeline with the same result; every worker must see --data and --out (or --staging)."""
    runner_options: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME=VALUE ...")] = ()
    """Further options of Beam's."""
    staging: Annotated[str | None, tyro.conf.arg(metavar="URL")] = None
    """Where workers leave what they write (gs://BUCKET/DIR) when they do not see --out; it is fetched at the end."""
    dry_run: Flag = False
    """Print the options of the pipeline and stop."""
    json: Flag = False
    """The summary as JSON: documents, tokens, vocabulary, shards, seconds."""


def run(args: Args) -> int:
    """Prepare the corpus and print a summary."""
    _check(args)
    from ptm_jax.data import prepare

    runner = _runner(args)
    if args.dry_run:
        if importlib.util.find_spec("apache_beam"):
            from ptm_jax.data import beam

            beam.options(runner)  # refuses what Beam does not know
        print("\n".join(runner.flags()))
        return 0
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
            cleaning=_steps(args),
            cooccurrence=args.cooccurrence,
            runner=runner,
            progress=progress,
            **options,
        )
    report = summary(corpus, time.monotonic() - began)
    if args.json:
        print_json(report)
        return 0
    print("{documents:,} documents, {tokens:,} tokens, vocabulary {vocabulary:,}, {shards} shards".format(**report))
    if cleaning := report.get("cleaning"):
        dropped = "; ".join(f"{name} {count:,}" for name, count in cleaning["dropped"].items()) or "nothing"
        print(f"cleaning kept {cleaning['kept']:,} of {cleaning['read']:,} documents; dropped {dropped}")
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
    } | ({"cleaning": corpus.manifest["cleaning"]} if "cleaning" in corpus.manifest else {})


def _check(args: Args) -> None:
    if args.lowercase and args.no_lowercase:
        raise UserError("--lowercase and --no-lowercase are both given; leave one out")
    if not 0 <= args.heldout < 1:
        raise UserError(f"--heldout is {args.heldout}; it must be a fraction in [0, 1)")
    for name in ("vocab", "workers", "block_tokens"):
        value = getattr(args, name)
        if value is not None and value < 1:
            raise UserError(f"--{name.replace('_', '-')} is {value}; it must be at least 1")


    if args.bad_words and args.clean != "c4":
        raise UserError("--bad-words is a rule of --clean c4; add that or leave it out")
    if args.similarity is not None and args.dedup != "near" and args.clean != "openwebtext":
        raise UserError("--similarity is of --dedup near; add that or leave it out")
    if not 0 <= args.language_threshold <= 1:
        raise UserError(f"--language-threshold is {args.language_threshold}; it must be a probability")
    if args.runner is None and (args.runner_options or args.dry_run or args.staging):
        given = "--runner-options, --staging and --dry-run"
        raise UserError(f"{given} are of a pipeline; add --runner direct, flink, spark or dataflow")


def _steps(args: Args) -> tuple[Any, ...]:
    """The steps in order: rules for one document, then what occurs again, then OpenWebText's least length."""
    from ptm_jax.data import cleaning, duplicates

    web, steps = args.clean == "openwebtext", []
    if args.clean == "c4":
        words = cleaning.read_words(args.bad_words) if args.bad_words else ()
        steps.append(cleaning.C4(bad_words=words))
    if args.language:
        cleaning.identify("")  # refuses where its package is missing
        steps.append(cleaning.Language(code=args.language, least=args.language_threshold))
    if args.clean == "c4":
        steps.append(duplicates.Spans())
    if args.dedup != "none":
        steps.append(duplicates.Exact())
    if args.dedup == "near" or web:
        similarity = args.similarity if args.similarity is not None else 0.5 if web else 0.8
        steps.append(duplicates.Near(similarity=similarity))
    return (*steps, cleaning.Shortest()) if web else tuple(steps)


def _runner(args: Args) -> Any:
    from ptm_jax.data.runners import Runner

    if args.runner is None:
        return None
    several = args.runner == "direct" and (args.workers or 1) > 1
    processes = (f"direct_num_workers={args.workers}", "direct_running_mode=multi_processing") if several else ()
    return Runner(args.runner, (*processes, *args.runner_options), args.staging)


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
