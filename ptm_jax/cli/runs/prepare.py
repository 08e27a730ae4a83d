"""Prepare text: train a tokenizer and write packed records, in parallel. The same command again
resumes. With --graph compile a graph of entities instead.

Example:
  ptm prepare --data pydocs --out prepared --vocab 4096
  ptm prepare --data 'books/*.txt.gz' news.jsonl --out prepared --tokenizer bytebpe --vocab 16384
  ptm prepare --data pydocs --out clean --vocab 4096 --clean c4 --dedup near --cooccurrence 10
  ptm prepare --data pydocs --out phrased --tokenizer word --vocab 8192 --phrases 200 100
  ptm prepare --data language:de=de.txt language:de-en=mt/train --out two --vocab 8192 \
    --tokenizer unigram --specials roberta --sampling 0.5
  ptm prepare --data pydocs --out prepared --vocab 4096 --runner direct --workers 2
  ptm prepare --graph wordnet:/usr/share/wordnet --out wordnet
  ptm prepare --graph wordnet:/usr/share/wordnet --out wordnet --link 'books/*.txt'
  ptm prepare --data text --out ready --runner flink --dry-run \
    --runner-options flink_master=h:8081 environment_config=I
"""

from __future__ import annotations

import dataclasses
import importlib.util
import time
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from ptm_jax.cli.options import Flag, Number, Path, given, report
from ptm_jax.cli.progress import bars
from ptm_jax.cli.runs import prepared
from ptm_jax.core.errors import UserError

if TYPE_CHECKING:
    from ptm_jax.data.corpora.store import Corpus


Sources = Annotated[tuple[str, ...], tyro.conf.arg(metavar="SOURCE ...")]

# Special tokens of each kind of tokenizer, by family.
STYLES = {
    "wordpiece": "bert",
    "bytebpe": "roberta",
    "unigram": "t5",
    "bpe": "xlnet",
    "word": "t5",
    "characters": "bert",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Args:
    data: Sources = ()
    """Files, globs, URLs, tfds:name/config or pydocs: text, tables, Wikipedia dumps, WET,
    OpenWebText (gz, bz2, zst, xz). Each with its language as language:de=SOURCE, translations as
    language:de-en=PATH (`ptm list --sources`)."""
    out: Annotated[str, tyro.conf.arg(metavar="DIR")]
    """Folder for the tokenizer, the shards and the manifest."""
    graph: Sources = ()
    """In place of --data: triples, WordNet, Wikidata5m, ConceptNet, ATOMIC, SentiWordNet or UMLS,
    as KIND:PATH or PATH."""
    link: Sources = ()
    """Graphs: link the mentions of this text's sentences to entities, into mentions.jsonl, with
    counts in mentions.json."""
    entities: Annotated[int, tyro.conf.arg(metavar="N")] = 100
    """Graphs: entities of one alias at most."""
    strict: Flag = False
    """Graphs: refuse a graph with faults (dangling identifiers, cycles, duplicates) instead of
    counting them."""
    tokenizer: Literal["wordpiece", "bytebpe", "unigram", "bpe", "word", "characters"] = "wordpiece"
    """Kind of tokenizer to train; word: whole words, for word vectors."""
    vocab: Annotated[int, tyro.conf.arg(metavar="N")] = 8192
    """Size of the vocabulary with special tokens."""
    specials: Literal["bert", "roberta", "gpt2", "t5", "xlnet", "auto"] = "auto"
    """Special tokens by family; auto: bert, roberta, t5, xlnet, t5, bert for the six kinds of
    tokenizer."""
    sentinels: Annotated[int, tyro.conf.arg(metavar="N")] = 0
    """Number of <extra_id_N> pieces, for T5."""
    lowercase: Flag = False
    """Lower-case the text (default for wordpiece and word)."""
    no_lowercase: Flag = False
    """Keep case (default for the other kinds)."""
    keep_accents: Flag = False
    """Wordpiece: keep the accents of letters in lower case, where BERT takes them away."""
    sampling: Annotated[float, tyro.conf.arg(metavar="POWER")] = 1.0
    """Several languages: one of n bytes has the share n^POWER in the training of the tokenizer."""
    segmenter: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    """Text without blanks: a package that divides it into words first: jieba, rjieba, pkuseg
    (Chinese), ipadic, unidic (Japanese), pythainlp (Thai)."""
    tokenizer_path: Path = None
    """Use this tokenizer: vocab.txt, tokenizer.json, a sentencepiece .model, or a folder with
    one."""
    phrases: Annotated[tuple[float, ...], tyro.conf.arg(metavar="THRESHOLD ...")] = ()
    """Words: join frequent pairs by an underscore in a pass for each threshold, as 200 100, into
    DIR.phrases.txt first."""
    heldout: Annotated[float, tyro.conf.arg(metavar="FRACTION")] = 0.02
    """Fraction of the documents held out for evaluation."""
    seed: Annotated[int, tyro.conf.arg(metavar="N")] = 0
    """Seed of the choice of held-out documents."""
    workers: Number = None
    """Processes (default: one per core, one for little text). The result does not depend on it."""
    block_tokens: Number = None
    """Tokens of a block, the unit of reading and shuffling (default: 8192)."""
    document_bytes: Number = None
    """Bytes of one document at most, decompressed (default: 134217728); a longer one is an
    error."""
    clean: Literal["none", "c4", "openwebtext"] = "none"
    """Cleaning rules: C4 (lines, pages, repeated spans) or OpenWebText (at least 128 words)."""
    bad_words: Path = None
    """File of words, one per line; --clean c4 drops pages with them."""
    language: Annotated[str | None, tyro.conf.arg(metavar="CODE")] = None
    """Keep documents in this language (ISO 639-1, as en); needs ptm_jax[clean]."""
    language_threshold: Annotated[float, tyro.conf.arg(metavar="P")] = 0.99
    """Least probability of --language."""
    dedup: Literal["none", "exact", "near"] = "none"
    """Keep the first of equal (exact) or also of similar documents (near: MinHash over 5-grams of
    words)."""
    similarity: Annotated[float | None, tyro.conf.arg(metavar="J")] = None
    """Least Jaccard similarity of similar documents (default: 0.8; with --clean openwebtext
    0.5)."""
    cooccurrence: Annotated[int | None, tyro.conf.arg(metavar="WINDOW")] = None
    """Also count co-occurrences of ids in this window, weighted by 1 / distance, for GloVe."""
    runner: Literal["direct", "flink", "spark", "dataflow"] | None = None
    """Run as an Apache Beam pipeline with the same result; workers must see --data and --out (or
    --staging)."""
    runner_options: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME=VALUE ...")] = ()
    """Further options of Beam."""
    staging: Annotated[str | None, tyro.conf.arg(metavar="URL")] = None
    """Folder (gs://BUCKET/DIR) for the output of workers that do not see --out; fetched at the
    end."""
    dry_run: Flag = False
    """Print the options of the pipeline and stop."""
    json: Flag = False
    """Print one JSON document: documents, tokens, vocabulary, shards, seconds."""


def run(args: Args) -> int:
    """Prepares the corpus and prints a summary."""
    _check(args)
    if args.graph:
        return _graph(args)
    from ptm_jax.data.corpora import prepare

    runner = _runner(args)
    if args.dry_run:
        if importlib.util.find_spec("apache_beam"):
            from ptm_jax.data.corpora import beam

            beam.options(runner)  # raises for options that Beam does not have
        print("\n".join(runner.flags()))
        return 0
    began = time.monotonic()
    limits = {"block_tokens": args.block_tokens, "document_bytes": args.document_bytes}
    options = {name: value for name, value in limits.items() if value is not None}
    with bars() as progress:
        corpus = prepare.prepare(
            args.data if not args.phrases else _joined(args),
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
    facts = summary(corpus, time.monotonic() - began)
    lines = [
        "{documents:,} documents, {tokens:,} tokens, vocabulary {vocabulary:,}, {shards} "
        "shards".format(**facts)
    ]
    lines += prepared.parts(facts.get("languages", {}), args.data[0])
    if cleaning := facts.get("cleaning"):
        dropped = (
            "; ".join(f"{name} {count:,}" for name, count in cleaning["dropped"].items())
            or "nothing"
        )
        lines.append(
            f"cleaning kept {cleaning['kept']:,} of {cleaning['read']:,} documents; dropped "
            f"{dropped}"
        )
    lines.append(f"in {args.out} after {facts['seconds']} s")
    lines += prepared.next_steps(corpus, args, _specials(args))
    return report(facts, "\n".join(lines), args.json)


def summary(corpus: Corpus, seconds: float) -> dict[str, Any]:
    """The counts of a corpus."""
    splits = corpus.manifest["splits"].values()
    languages = mixed(corpus)
    return {
        "documents": sum(split["documents"] for split in splits),
        "tokens": sum(split["tokens"] for split in splits),
        "vocabulary": corpus.manifest["vocab"]["size"],
        "shards": sum(len(split["shards"]) for split in splits),
        "seconds": round(seconds, 1),
        **({"languages": languages} if languages else {}),
    } | ({"cleaning": corpus.manifest["cleaning"]} if "cleaning" in corpus.manifest else {})


def mixed(corpus: Corpus) -> dict[str, dict[str, float]]:
    """The counts of each language of a corpus, and its share of all tokens."""
    total = sum(split["tokens"] for split in corpus.manifest["splits"].values())
    counts = {}
    for name, part in corpus.languages.items():
        sums = {
            count: sum(split[count] for split in part["splits"].values())
            for count in ("documents", "sentences", "tokens")
        }
        shares = {"share": sums["tokens"] / max(1, total), "unknown": part["unknown"]}
        words = corpus.manifest.get("words", {}).get(name)
        counts[name] = {**sums, **shares, "pieces": part["pieces"], "words": words}
    return counts


def _joined(args: Args) -> tuple[str]:
    """The file with the phrases of the text."""
    from pathlib import Path as File

    from ptm_jax.data.text import phrases

    out = File(args.out).expanduser()
    return (
        str(
            phrases.write(
                args.data,
                out.with_name(f"{out.name}.phrases.txt"),
                args.phrases,
                not args.no_lowercase,
            )
        ),
    )


def _graph(args: Args) -> int:
    """Compiles a graph, and prints its counts and faults."""
    from ptm_jax.data.graphs import linked_text
    from ptm_jax.knowledge.graphs import compiling, formats

    graph = compiling.compile_graph(
        formats.sources(args.graph), args.out, args.entities, strict=args.strict
    )
    facts = {
        **graph.counts,
        "splits": graph.manifest["splits"],
        "faults": graph.manifest["faults"],
        "digest": graph.digest,
    }
    lines = [
        ", ".join(f"{count:,} {name}" for name, count in graph.counts.items()) + f" in {args.out}"
    ]
    lines += [
        f"  {fault['count']:,} x {kind}; first: {fault['first']}"
        for kind, fault in facts["faults"].items()
    ]
    if args.link:
        facts["mentions"] = linked_text.link_text(graph, args.link, args.out)["counts"]
        lines.append(
            ", ".join(f"{count:,} {name}" for name, count in facts["mentions"].items())
            + " of the text"
        )
    lines.append(f"next: ptm train transe_mini --data triples:{args.out} --workdir DIR")
    return report(facts, "\n".join(lines), args.json)


def _check(args: Args) -> None:
    if bool(args.data) == bool(args.graph):
        raise UserError("give either text as --data or a graph as --graph")
    if args.link and not args.graph:
        raise UserError("--link finds the entities of a graph; add --graph")
    if args.phrases and args.tokenizer != "word":
        raise UserError(
            f"--phrases joins words; the tokenizer is {args.tokenizer}: add --tokenizer word"
        )
    if args.lowercase and args.no_lowercase:
        raise UserError("--lowercase and --no-lowercase are both given; leave one out")
    if not 0 <= args.heldout < 1:
        raise UserError(f"--heldout is {args.heldout}; it must be a fraction in [0, 1)")
    for name in ("vocab", "workers", "block_tokens", "document_bytes"):
        value = vars(args)[name]
        if value is not None and value < 1:
            raise UserError(f"--{name.replace('_', '-')} is {value}; it must be at least 1")
    if args.bad_words and args.clean != "c4":
        raise UserError("--bad-words needs --clean c4; add it, or leave --bad-words out")
    if args.similarity is not None and args.dedup != "near" and args.clean != "openwebtext":
        raise UserError("--similarity needs --dedup near; add it, or leave --similarity out")
    if not 0 <= args.language_threshold <= 1:
        raise UserError(
            f"--language-threshold is {args.language_threshold}; it must be a probability"
        )
    if args.runner is None and (args.runner_options or args.dry_run or args.staging):
        flags = given(args, ("runner_options", "staging", "dry_run"))
        raise UserError(
            f"{flags[0]} is for a pipeline; add --runner direct, flink, spark or dataflow"
        )


def _steps(args: Args) -> tuple[Any, ...]:
    """The cleaning steps in order: rules for documents, duplicates, OpenWebText's least length."""
    from ptm_jax.data.languages import codes
    from ptm_jax.data.text import cleaning, duplicates

    web, steps = args.clean == "openwebtext", []
    if args.clean == "c4":
        words = cleaning.read_words(args.bad_words) if args.bad_words else ()
        steps.append(cleaning.C4(bad_words=words))
    if args.language:
        codes.check(args.language)
        cleaning.identify("")  # raises if its package is missing
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
    from ptm_jax.data.corpora.runners import Runner

    if args.runner is None:
        return None
    several = args.runner == "direct" and (args.workers or 1) > 1
    processes = (
        (f"direct_num_workers={args.workers}", "direct_running_mode=multi_processing")
        if several
        else ()
    )
    return Runner(args.runner, (*processes, *args.runner_options), args.staging)


def _specials(args: Args) -> str:
    return STYLES[args.tokenizer] if args.specials == "auto" else args.specials


def _spec(args: Args) -> Any:
    from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec

    return TokenizerSpec(
        kind="spaced" if args.phrases else args.tokenizer,
        vocab=args.vocab,
        lowercase=args.lowercase
        or (args.tokenizer in ("wordpiece", "word") and not args.no_lowercase),
        specials=_specials(args),
        sentinels=args.sentinels,
        sampling=args.sampling,
        strip_accents=not args.keep_accents,
        segmenter=args.segmenter,
        path=args.tokenizer_path,
    )
