"""Use a model on texts: fill masks, generate, classify, tag, find entities, answer questions,
embed, search, find similar lines. With a task of `ptm list --tasks`: write predictions for its test
file in the benchmark's submission format.

Example:
  ptm predict runs/mini --task fill-mask --text 'Return the [MASK] of the list.'
  ptm predict runs/gpt --task generate --text 'The king' --temperature 0.8 --top-p 0.9
  ptm predict t5-small --task generate --text 'translate English to German: The house is old.' \
    --beams 4
  ptm predict runs/unmt --task generate --language de --answer-language en --text 'Ein Mann lacht.'
  ptm predict runs/sst2 --task classify --text 'a charming film'
  ptm predict runs/wnut17 --task tag --text 'Paris is a city in Texas'
  ptm predict runs/gliner --task entities --types person city --text 'Paris is a city in Texas'
  ptm predict runs/squad2 --task qa --text 'Who wrote it ?' \
    --pair 'It was written by Ann in 1912 .'
  ptm predict runs/own --input new.csv --output predictions.csv
  ptm predict runs/mrpc --task mrpc --input MRPC/test.tsv --output MRPC.tsv
  ptm predict CHECKPOINT --adapter houlsby.safetensors --task classify --text 'a charming film'
  ptm predict runs/mini --task embed --input lines.txt --output vectors.npy
  ptm predict runs/mini --task embed --input 'texts/*.txt' --output out/vectors.npy --runner direct
  ptm predict sentence-transformers/all-MiniLM-L6-v2 --task search --input lines.txt \
    --text 'how long is a list?'
  ptm predict runs/mini --task similar --input lines.txt --text 'the length of a list' --top 3
  ptm predict glove.6B.300d.txt --task similar --text paris --text 'king - man + woman'
  ptm predict lid.176.ftz --task classify --text 'la maison est vieille'

A decoder continues its prompt; an encoder-decoder (T5, BART, mBART, PEGASUS) prints its output
alone. Texts come from --text, from the lines of --input, or from standard input; at a terminal the
command asks for them. search and similar compare the texts of --text or of standard input with the
lines of --input or of the --index. With word vectors a text of --task similar is a word, or words
with + and - between them, and the nearest words are printed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from ptm_jax.cli import derived, options, target
from ptm_jax.cli.models import predict_files, predict_shards, predict_tables
from ptm_jax.core.errors import UserError, unknown
from ptm_jax.inference.uses import Request, Use

Number = Annotated[float | None, tyro.conf.arg(metavar="X")]
NETWORKS = (
    *("pair", "adapter", "tower", "language", "ensemble", "beside", "pooling", "prompt"),
    "prompt_name",
)
"""Options that word vectors do not take."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Args:
    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
    """A workdir or one checkpoint of it, a Hugging Face directory, a name on the Hub, or a file of
    word vectors."""
    task: Annotated[str | None, tyro.conf.arg(metavar="TASK")] = None
    """fill-mask, generate, classify, keywords, tag, entities, qa, embed, similar or search; a task
    of `ptm list --tasks`, with --input; or FILE.py:NAME, a task of your own (default, for a run on
    a table of yours or on a task of texts, as translation: the run's)."""
    text: Annotated[tuple[str, ...], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="TEXT")] = ()
    """A text; repeat the option for several."""
    pair: Annotated[tuple[str, ...], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="TEXT")] = ()
    """classify: second text of a pair. qa: the passage of a question. One for each --text."""
    input: options.Path = None
    """A file with one text per line, a .csv, .tsv or .jsonl, or a task's file of examples; or a
    pattern of files of text or .jsonl. Any length: it is read in blocks, and the same command goes
    on where it stopped."""
    adapter: options.Path = None
    """An adapter of MODEL that `ptm export --adapter` wrote."""
    tower: options.Text = None
    """The network to use if the model has several, as "generator" of ELECTRA (default: main)."""
    language: options.Text = None
    """The language of the texts, for a model with vectors or adapters of languages (XLM, X-MOD), as
    de (default: the checkpoint's, or none)."""
    ensemble: options.Names = ()
    """classify, tag, qa and downstream tasks: average the scores of MODEL and these models. embed,
    similar, search: put their vectors side by side, each of length 1."""
    beside: options.Text = None
    """Model of the first stage of a two-stage task (squad2_retro: squad2_sketchy; hotpot:
    hotpot_rank)."""
    output: options.Path = None
    """Write the results to this file: .jsonl, .csv, .tsv, .json, .npy (embed), else text (default:
    print them)."""
    shards: options.Number = None
    """Write --output in N shards, OUT-00003-of-00016.jsonl, each resumed alone (default: as many
    as are there, else one for 64 MB, at least 16). --output without an ending is their folder."""
    runner: Literal["direct", "flink", "spark", "dataflow"] | None = None
    """Write the shards by an Apache Beam pipeline; workers must see MODEL, --input and --output."""
    runner_options: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME=VALUE ...")] = ()
    """Further options of Beam."""
    workers: options.Number = None
    """Processes of --runner direct (default: 1)."""
    dry_run: options.Flag = False
    """Print the options of the pipeline and stop."""
    overwrite: options.Flag = False
    """Begin --output anew where it holds other results, or --index where it is of other texts."""
    index: options.Path = None
    """similar, search: folder of the vectors of --input. Made at first use; then --input may be
    left out."""
    rerank: options.Text = None
    """similar, search: cross-encoder that reads each text with its best --candidates and orders
    them anew (a run of --task rank, or a checkpoint with one label)."""
    candidates: Annotated[int, tyro.conf.arg(metavar="N")] = 50
    """Lines that --rerank reads for each text."""
    strict: options.Flag = False
    """End at the first line that is refused (default: its row gives the reason)."""
    block: Annotated[int, tyro.conf.arg(metavar="N")] = 1024
    """Lines of --input that are computed and written together."""
    text_column: options.Text = None
    """Column of the texts in an --input of .csv, .tsv or .jsonl (default: text, sentence, ...)."""
    pair_column: options.Text = None
    """Column of the second texts (default: pair, sentence2; qa: context)."""
    id_column: options.Text = None
    """Column of ids, which the rows of --output carry (default: that of the training of a run on a
    table of yours, or id, guid, uuid, index or idx, where the table has one)."""
    json: options.Flag = False
    """Print one JSON document."""
    top: Annotated[int, tyro.conf.arg(metavar="N")] = 5
    """Number of fillings, answers or similar lines."""
    method: Literal["3cosadd", "3cosmul"] = "3cosadd"
    """similar, with word vectors: score of the words, a cosine with the sum or a product of
    cosines."""
    pooling: Literal["mean", "cls", "max", "mean_sqrt_len", "weightedmean", "lasttoken"] | None = (
        None
    )
    """embed, similar, search: pooling of the token vectors (default: a sentence-transformers
    folder's, else mean)."""
    prompt: options.Text = None
    """embed, similar, search: text before every text (default: that of a sentence-transformers
    folder)."""
    prompt_name: options.Text = None
    """embed, similar, search: name of a prompt of the folder."""
    truncate: options.Flag = False
    """embed, similar, search: cut texts that are too long for the model."""
    exact: options.Flag = False
    """embed, similar, search: vectors have the same bits whatever other texts are encoded."""
    types: Annotated[tuple[str, ...], tyro.conf.arg(metavar="TYPE ...")] = ()
    """entities: the types as text, also such as no training has seen, as person 'work of art'; or
    one text with commas."""
    threshold: Number = None
    """entities: smallest probability of a span (default: 0.5)."""
    nested: options.Flag = False
    """entities: a span may lie inside another one."""
    max_new_tokens: options.Number = None
    """generate: longest output in tokens (default: the checkpoint's, else 64)."""
    start: options.Text = None
    """generate: first piece of an encoder-decoder's output, as mBART's language (default: the
    model's)."""
    answer_language: options.Text = None
    """generate: the language of the answers, beside --language, for an encoder-decoder with vectors
    of languages (a run of xlm_unmt_mini), as en."""
    temperature: Number = None
    """generate: sample at this temperature (default: the checkpoint's, else greedy)."""
    top_k: options.Number = None
    """generate: sample from the N most probable tokens (default: all)."""
    top_p: Number = None
    """generate: sample from the smallest set of tokens with this total probability (default:
    all)."""
    beams: options.Number = None
    """generate: width of beam search (default: the checkpoint's, else none)."""
    length_penalty: Number = None
    """generate: alpha of the length penalty of beam search (default: the checkpoint's, 1 where it
    has none; 0.6 for a run that began without one)."""
    length_rule: Literal["gnmt", "power"] | None = None
    """generate: divisor of the log-probability of N tokens in beam search, ((5 + N) / 6)^alpha or
    N^alpha (default: power for a checkpoint of Transformers, gnmt for a run without one)."""
    early_stopping: Literal["true", "false", "never"] | None = None
    """generate: end of a beam search, as in transformers (default: the checkpoint's, false
    where it has none; never for a run that began without one)."""
    repetition_penalty: Number = None
    """generate: divide the scores of tokens that occurred by this number, above 1."""
    no_repeat_ngram: options.Number = None
    """generate: no sequence of N tokens occurs twice."""
    bad_words: Annotated[
        tuple[str, ...], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="WORD")
    ] = ()
    """generate: a word that no answer has; repeat the option for several."""
    seed: Annotated[int, tyro.conf.arg(metavar="N")] = 0
    """Seed of sampling."""


def run(args: Args) -> int:
    """Loads the model and prints or writes its results."""
    derived.use_programs()
    from ptm_jax.inference.words.trained_words import is_words

    args = dataclasses.replace(args, task=target.task_name(args.task))
    if sharded := predict_shards.asked(args):
        args = predict_shards.named(args)
    if (task := predict_tables.task_of(args)) is not None:
        if sharded:
            raise UserError(f"shards are for a use of a model; give --task, not {task}")
        return predict_tables.run(dataclasses.replace(args, task=task))
    if args.task is None and (args.text or args.input is not None):
        args = dataclasses.replace(args, task=predict_tables.use_of(args))
    if args.task is None:
        absent = "" if Path(args.model).exists() else f"{args.model} is no file or folder here; "
        uses = "--task fill-mask, classify, embed, ... (`ptm list --uses`)"
        raise UserError(f"{absent}name what to do: {uses}")
    uses = known()
    if all(args.task != use.name for use in uses) and _is_task(args.task):
        return _predict(args)
    use = chosen(args.task, args.model, uses, words=is_words(args.model))
    _check(args, use, uses)
    if use.ranking is not None and not args.text:
        args = dataclasses.replace(args, text=_queries(use))
    request = _request(args, use)
    asked = not args.text and args.input is None and sys.stdin.isatty()
    streams = not (args.text or use.ranking or asked)
    predict_files.check(args, use, streams)
    if sharded:
        return predict_shards.run(args, use, opened)
    if asked:
        model, _ = _loaded(args, use)
        for text in _asked():
            for result in use.run(model, dataclasses.replace(request, text=(text,))):
                print("\n".join(use.lines(result)))
        return 0
    model, parts = _loaded(args, use)
    if streams:
        return predict_files.run(args, use, request, model, parts)
    if use.ranking is not None:
        predict_files.put_all(args, use, predict_files.rank(args, use, request, model, parts))
    else:
        predict_files.put_all(
            args, use, use.run(model, dataclasses.replace(request, text=args.text))
        )
    return 0


def opened(args: Args) -> tuple[Use, Request, object, Sequence[object]]:
    """Loads the model of checked arguments. Returns (use, request, the model, or several as one;
    the models). Raises UserError."""
    from ptm_jax.inference.words.trained_words import is_words

    use = chosen(args.task, args.model, known(), words=is_words(args.model))
    return use, _request(args, use), *_loaded(args, use)


def known() -> tuple[Use, ...]:
    """Returns the uses that the package `inference` lists."""
    from ptm_jax.inference import predicting

    return predicting.kinds()


def chosen(task: str, model: str, uses: Sequence[Use], *, words: bool) -> Use:
    """Returns the use of a name, of word vectors or of a network. Raises UserError."""
    named = {use.name: use for use in uses if use.words == words}
    if task in named:
        return named[task]
    if words:
        raise UserError(f"{model} holds word vectors; give --task {_any(named)}, not {task}")
    from ptm_jax.tasks.catalogue import catalogue

    raise unknown("task", task, [*named, *catalogue.names()])


def _any(names: Iterable[str]) -> str:
    """'a, b or c'."""
    *others, last = names
    return f"{', '.join(others)} or {last}" if others else last


def _check(args: Args, use: Use, uses: Sequence[Use]) -> None:
    """Raises UserError for arguments that the use does not take."""
    if use.words:
        if args.text and args.input is not None:
            raise UserError("give the words by --text or by --input, not both")
        if flags := options.given(args, NETWORKS):
            raise UserError(
                f"{flags[0]} is for models with an encoder; {args.model} holds word vectors: "
                "leave it out"
            )
    else:
        _check_network(args, use)
    use.check(_request(args, use))
    family = [other for other in uses if other.words == use.words]
    for option in dict.fromkeys(option for other in family for option in other.options):
        if option not in use.options and (flags := options.given(args, (option,))):
            names = _any(other.name for other in family if option in other.options)
            raise UserError(f"{flags[0]} needs --task {names}; the task is {use.name}")


def _check_network(args: Args, use: Use) -> None:
    if options.given(args, ("method",)):
        raise UserError(
            f"--method is for word vectors; {args.model} is no file of them: leave it out"
        )
    if use.ranking and args.input is None and args.index is None:
        raise UserError(
            f"{use.name} ranks the lines of a file by their similarity to a text; give "
            f"--input{' and --text' * (not args.text)}"
        )
    if not use.ranking and args.rerank is not None:
        raise UserError(
            f"--rerank orders found lines, of search or similar; the task is {use.name}"
        )
    if not use.ranking and args.input is not None and args.text:
        raise UserError("give the texts by --text or by --input, not both")
    if args.ensemble and use.several is None:
        others = "fill-mask and generate take a single model"
        raise UserError(f"--ensemble is not for --task {use.name}; {others}")
    if args.beside is not None:
        raise UserError(
            "--beside needs a downstream task with two stages, and --input; leave it out"
        )


def _request(args: Args, use: Use) -> Request:
    names = {field.name for field in dataclasses.fields(Request)} & vars(args).keys()
    settings = {name: vars(args)[name] for name in use.options}
    return Request(settings=settings, **{name: vars(args)[name] for name in names})


def _loaded(args: Args, use: Use) -> tuple[Any, Sequence[Any]]:
    """Returns (the model, or several as one; the models)."""
    if use.words:
        import ptm_jax

        model = ptm_jax.load(args.model)
        return model, (model,)
    from ptm_jax.inference.text.vectors import SideBySide
    from ptm_jax.tuning import scoring

    models = scoring.load((args.model, *args.ensemble), args.adapter, args.tower, args.language)
    side = args.ensemble and use.several == "vectors"
    return SideBySide(models) if side else scoring.together(models), models


def _queries(use: Use) -> tuple[str, ...]:
    """Returns the texts that are typed at the terminal, or the lines of standard input.
    Raises UserError where there is none."""
    texts = tuple(_asked()) if sys.stdin.isatty() else predict_files.queries()
    if not texts:
        raise UserError(
            f"{use.name} ranks the lines of a file by their similarity to a text; give --text, or "
            "one text a line on standard input"
        )
    return texts


def _is_task(name: str) -> bool:
    from ptm_jax.tasks.catalogue import catalogue

    return name in catalogue


def _predict(args: Args) -> int:
    """Writes predictions of a downstream task for a file of examples, labelled or not, in the
    benchmark's submission format."""
    from ptm_jax.runs import evaluations
    from ptm_jax.tasks import evaluating
    from ptm_jax.tuning import scoring

    if args.input is None:
        raise UserError(f"--task {args.task} reads a file of examples; give it as --input")
    if flags := options.given(args, ("text", "pair")):
        raise UserError(
            f"--task {args.task} reads a file of examples (--input); leave out "
            f"{' and '.join(flags)}"
        )
    if flags := options.given(
        args,
        (*predict_files.OPTIONS, *predict_shards.OPTIONS, "overwrite", "index", "rerank", "json"),
    ):
        raise UserError(
            f"{flags[0]} is for lines of text and for tables of your own; --task {args.task} reads "
            "a benchmark's file whole, and writes its server's format: leave it out"
        )
    request = evaluations.Request(
        task=args.task, model=args.model, data=(args.input,), split="test", adapter=args.adapter,
        ensemble=args.ensemble, beside=args.beside, predictions=args.output,
    )  # fmt: skip
    scored = scoring.scored(request, labels=False)
    for remark, count in scored.remarks.items():
        options.say(f"{scored.source.path}: {count} {remark}")
    if args.output is None:
        print("\n".join(evaluating.lines(scored.task, scored.examples, scored.predictions)))
    else:
        scored.write(args.output)
        options.say(f"wrote {len(scored.predictions)} predictions to {args.output}")
    return 0


def _asked() -> Iterator[str]:
    """Texts typed at the terminal, until an empty line or the end of the input."""
    options.say("one text per line; an empty line ends")
    with contextlib.suppress(EOFError):
        while text := input("> ").strip():
            yield text
