"""Use a model on texts: fill masks, generate, classify, tag, answer questions, embed, search, find
similar lines. With a task of `ptm list --tasks`: write predictions for its test file in the
benchmark's submission format.

Example:
  ptm predict runs/mini --task fill-mask --text 'Return the [MASK] of the list.'
  ptm predict runs/gpt --task generate --text 'The king' --temperature 0.8 --top-p 0.9
  ptm predict t5-small --task generate --text 'translate English to German: The house is old.' \
    --beams 4
  ptm predict runs/sst2 --task classify --text 'a charming film'
  ptm predict runs/wnut17 --task tag --text 'Paris is a city in Texas'
  ptm predict runs/squad2 --task qa --text 'Who wrote it ?' \
    --pair 'It was written by Ann in 1912 .'
  ptm predict runs/mrpc --task mrpc --input MRPC/test.tsv --output MRPC.tsv
  ptm predict CHECKPOINT --adapter houlsby.safetensors --task classify --text 'a charming film'
  ptm predict runs/mini --task embed --input lines.txt --output vectors.npy
  ptm predict sentence-transformers/all-MiniLM-L6-v2 --task search --input lines.txt \
    --text 'how long is a list?'
  ptm predict runs/mini --task similar --input lines.txt --text 'the length of a list' --top 3
  ptm predict glove.6B.300d.txt --task similar --text paris --text 'king - man + woman'
  ptm predict lid.176.ftz --task classify --text 'la maison est vieille'

A decoder continues its prompt; an encoder-decoder (T5, BART, mBART, PEGASUS) prints its output
alone. Texts come from --text, from the lines of --input, or from standard input; at a terminal the
command asks for them. With word vectors a text of --task similar is a word, or words with + and -
between them, and the nearest words are printed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from ptm_jax.cli import options
from ptm_jax.core.errors import UserError, unknown

Number = Annotated[float | None, tyro.conf.arg(metavar="X")]
TASKS = ("fill-mask", "generate", "classify", "tag", "qa", "embed", "similar", "search")
RANKED = ("embed", "similar", "search")
EMBEDDING = ("pooling", "prompt", "prompt_name", "truncate", "exact")
"""Options of --task embed, similar and search only."""
SAMPLING = (
    "start", "temperature", "top_k", "top_p", "beams", "length_penalty", "length_rule",
    "early_stopping",
    "repetition_penalty", "no_repeat_ngram",
)  # fmt: skip
"""Options of --task generate only."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Args:
    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
    """A workdir or one checkpoint of it, a Hugging Face directory, a name on the Hub, or a file of
    word vectors."""
    task: Annotated[str, tyro.conf.arg(metavar="TASK")]
    """fill-mask, generate, classify, tag, qa, embed, similar or search; a task of `ptm list
    --tasks`, with --input; or FILE.py:NAME, a task of your own."""
    text: Annotated[tuple[str, ...], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="TEXT")] = ()
    """A text; repeat the option for several."""
    pair: Annotated[tuple[str, ...], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="TEXT")] = ()
    """classify: second text of a pair. qa: the passage of a question. One for each --text."""
    input: options.Path = None
    """A file with one text per line, or a task's file of examples."""
    adapter: options.Path = None
    """An adapter of MODEL that `ptm export --adapter` wrote."""
    tower: options.Text = None
    """The network to use if the model has several, as "generator" of ELECTRA (default: main)."""
    ensemble: options.Names = ()
    """classify, tag, qa and downstream tasks: average the scores of MODEL and these models. embed,
    similar, search: put their vectors side by side, each of length 1."""
    beside: options.Text = None
    """Model of the first stage of a two-stage task (squad2_retro: squad2_sketchy; hotpot:
    hotpot_rank)."""
    output: options.Path = None
    """Write the result to this file (embed: .npy or .json; default: print it)."""
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
    max_new_tokens: options.Number = None
    """generate: longest output in tokens (default: the checkpoint's, else 64)."""
    start: options.Text = None
    """generate: first piece of an encoder-decoder's output, as mBART's language (default: the
    model's)."""
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
    """generate: alpha of the length penalty of beam search."""
    length_rule: Literal["gnmt", "power"] | None = None
    """generate: divisor of the log-probability of N tokens in beam search, ((5 + N) / 6)^alpha or
    N^alpha (default: the checkpoint's, else gnmt)."""
    early_stopping: Literal["true", "false", "never"] | None = None
    """generate: end of a beam search, as in transformers (default: the checkpoint's, else
    never)."""
    repetition_penalty: Number = None
    """generate: divide the scores of tokens that occurred by this number, above 1."""
    no_repeat_ngram: options.Number = None
    """generate: no sequence of N tokens occurs twice."""
    seed: Annotated[int, tyro.conf.arg(metavar="N")] = 0
    """Seed of sampling."""


def run(args: Args) -> int:
    """Loads the model and prints or writes its results."""
    from ptm_jax.cli import target
    from ptm_jax.cli.models import scoring, word_tables
    from ptm_jax.inference.words.trained_words import is_words

    args = dataclasses.replace(args, task=target.task_name(args.task))
    if args.task not in TASKS and scoring.is_task(args.task):
        return scoring.predict(args)
    words = is_words(args.model)
    word_tables.check(args) if words else _check(args)
    load = (lambda: word_tables.load(args.model)) if words else lambda: _loaded(args)
    if not args.text and args.input is None and sys.stdin.isatty():
        model = load()
        for text in _asked():
            print("\n".join(_lines(args.task, _results(args, model, [text]))))
        return 0
    lines = _texts(Path(args.input).read_bytes(), args.input) if args.input is not None else []
    texts = list(args.text) or lines or _texts(sys.stdin.buffer.read(), "standard input")
    results = _results(args, load(), texts, lines)
    if args.task == "embed" and args.output is not None and args.output.endswith(".npy"):
        _write_npy(Path(args.output), results)
        return 0
    as_json = args.json or args.task == "embed"
    document = (
        json.dumps(results, indent=2, ensure_ascii=False)
        if as_json
        else "\n".join(_lines(args.task, results))
    )
    if args.output is None:
        print(document)
    else:
        _write(Path(args.output), (document + "\n").encode())
        options.say(f"wrote {args.output}")
    return 0


def _loaded(args: Args) -> Any:
    """The model, or several as one."""
    from ptm_jax.cli.models import scoring
    from ptm_jax.inference.text.vectors import SideBySide

    models = scoring.load((args.model, *args.ensemble), args.adapter, args.tower)
    return SideBySide(models) if args.ensemble and args.task in RANKED else scoring.together(models)


def _check(args: Args) -> None:
    if args.task not in TASKS:
        from ptm_jax.tasks.catalogue import catalogue

        raise unknown("task", args.task, [*TASKS, *catalogue.names()])
    if args.task == "qa" and not (args.text and args.pair):
        raise UserError("qa needs a question (--text) and its passage (--pair); give both")
    if options.given(args, ("method",)):
        raise UserError(
            f"--method is for word vectors; {args.model} is no file of them: leave it out"
        )
    ranks = args.task in ("similar", "search")
    if ranks and (args.input is None or not args.text):
        raise UserError(
            f"{args.task} ranks the lines of --input by their similarity to --text; give both"
        )
    if not ranks and args.input is not None and args.text:
        raise UserError("give the texts by --text or by --input, not both")
    if (
        args.task == "embed"
        and args.output is not None
        and not args.output.endswith((".npy", ".json"))
    ):
        raise UserError(f"embeddings are written as .npy or .json; given --output {args.output}")
    if args.task == "embed" and not args.text and args.input is None and sys.stdin.isatty():
        raise UserError("give the texts to embed by --text, --input or standard input")
    if args.pair and args.task not in ("classify", "qa"):
        raise UserError(f"--pair needs --task classify or qa; the task is {args.task}")
    if args.pair and len(args.pair) != len(args.text):
        raise UserError(
            f"{len(args.text)} texts and {len(args.pair)} pairs; give every --text its --pair"
        )
    if args.ensemble and args.task not in ("classify", "tag", "qa", *RANKED):
        others = "fill-mask and generate take a single model"
        raise UserError(f"--ensemble is not for --task {args.task}; {others}")
    if args.beside is not None:
        raise UserError(
            "--beside needs a downstream task with two stages, and --input; leave it out"
        )
    if args.task not in RANKED and (given := options.given(args, EMBEDDING)):
        raise UserError(
            f"{given[0]} needs --task embed, similar or search; the task is {args.task}"
        )
    if args.task != "generate" and (given := options.given(args, SAMPLING)):
        raise UserError(f"{given[0]} needs --task generate; the task is {args.task}")


def _results(args: Args, model: Any, texts: Sequence[str], lines: Sequence[str] = ()) -> list[Any]:
    """The objects of --json, one for each text."""
    from ptm_jax.cli.models import word_tables
    from ptm_jax.inference.text import tags
    from ptm_jax.inference.words.word_vectors import WordVectors

    if isinstance(model, WordVectors):
        return word_tables.results(args, model, texts)
    if args.task == "fill-mask":
        every = zip(texts, model.fill_mask(texts, top=args.top), strict=True)
        return [
            {"text": text, "masks": [[f._asdict() for f in mask] for mask in masks]}
            for text, masks in every
        ]
    if args.task == "generate":
        chosen = {name: value for name in SAMPLING if (value := vars(args)[name]) is not None}
        if args.temperature is not None:
            chosen["strategy"] = "sample"
        if args.early_stopping is not None:
            chosen["early_stopping"] = {"true": True, "false": False}.get(
                args.early_stopping, "never"
            )
        found = model.generate(texts, max_new_tokens=args.max_new_tokens, seed=args.seed, **chosen)
        return [{"prompt": text, "text": answer} for text, answer in zip(texts, found, strict=True)]
    if args.task == "classify":
        found = model.classify(texts, args.pair or None)
        seconds = [{"pair": second} for second in args.pair] or [{}] * len(texts)
        every = zip(texts, seconds, found, strict=True)

        def best(labels):
            return {"label": max(labels, key=labels.get)} if len(labels) > 1 else {}

        return [
            {"text": text, **second, **best(labels), "labels": labels}
            for text, second, labels in every
        ]
    if args.task == "tag":
        found = model.tag(texts)
        return [
            {
                "text": text,
                "tags": [{"word": w, "tag": t} for w, t in pairs],
                "entities": tags.spans_of(pairs),
            }
            for text, pairs in zip(texts, found, strict=True)
        ]
    if args.task == "qa":
        every = zip(texts, args.pair, model.answer(texts, args.pair), strict=True)

        def best(answer):
            return [span._asdict() for span in answer.best[: args.top]]

        return [
            {"question": q, "context": c, "text": a.text, "null": a.null, "best": best(a)}
            for q, c, a in every
        ]
    chosen = {name: vars(args)[name] for name in EMBEDDING}
    if args.task == "search":
        every = zip(texts, model.search(texts, lines, args.top, **chosen), strict=True)
        return [
            {"text": text, "found": [{"line": i + 1, "score": s, "text": t} for i, s, t in best]}
            for text, best in every
        ]
    vectors = model.encode(texts, normalize=True if args.task == "similar" else None, **chosen)
    if args.task == "embed":
        return [
            {"text": text, "vector": v.tolist()} for text, v in zip(texts, vectors, strict=True)
        ]
    if args.top < 1:
        raise UserError(f"--top is {args.top}; it must be at least 1")
    cosines = vectors @ model.encode(lines, normalize=True, **chosen).T
    ranked = [
        [(int(i), float(row[i])) for i in (-row).argsort(kind="stable")[: args.top]]
        for row in cosines
    ]
    return [
        {"text": text, "similar": [{"line": i + 1, "cosine": c, "text": lines[i]} for i, c in best]}
        for text, best in zip(texts, ranked, strict=True)
    ]


def _lines(task: str, results: Sequence[Any]) -> Iterator[str]:
    """The results as text."""
    for result in results:
        if task == "classify":
            yield from _classes(result)
        elif task == "tag":
            yield " ".join(f"{one['word']}/{one['tag']}" for one in result["tags"])
        else:
            yield result["text"] or "(no answer)" if task == "qa" else result["text"]
        nearest = [
            (best.get("cosine", best.get("score")), best["text"])
            for best in result.get("similar", ())
        ]
        yield from (f"  {score:7.4f}  {text}" for score, text in nearest)
        yield from (f"  {best['score']:7.4f}  {best['text']}" for best in result.get("found", ()))
        masks = result.get("masks", ())
        for number, fillings in enumerate(masks, 1):
            if len(masks) > 1:
                yield f"  mask {number}"
            width = max(len(f["token"]) for f in fillings)
            yield from (
                f"  {f['probability']:6.1%}  {f['token']:<{width}}  {f['sentence']}"
                for f in fillings
            )


def _classes(result: Any) -> Iterator[str]:
    """A text and its classes by falling probability; a regression's number as it is."""
    yield " | ".join(result[name] for name in ("text", "pair") if name in result)
    number = len(result["labels"]) == 1
    for label, value in sorted(result["labels"].items(), key=lambda pair: -pair[1]):
        yield f"  {value:7.4f}  {label}" if number else f"  {value:6.1%}  {label}"


def _asked() -> Iterator[str]:
    """Texts typed at the terminal, until an empty line or the end of the input."""
    options.say("one text per line; an empty line ends")
    with contextlib.suppress(EOFError):
        while text := input("> ").strip():
            yield text


def _texts(data: bytes, source: str) -> list[str]:
    """The lines of `data` that are not empty."""
    try:
        found = [line.strip() for line in data.decode("utf-8-sig").splitlines() if line.strip()]
    except UnicodeDecodeError as error:
        raise UserError(
            f"{source} is not UTF-8 text (byte {error.start}); convert it, as iconv -t utf-8 does"
        ) from error
    if not found:
        raise UserError(f"{source} holds no text; give one text per line, or --text")
    return found


def _write(path: Path, data: bytes) -> None:
    """The whole file or none of it."""
    draft = path.with_name(path.name + ".draft")
    draft.write_bytes(data)
    os.replace(draft, path)


def _write_npy(path: Path, results: Sequence[Any]) -> None:
    import io

    import numpy as np

    buffer = io.BytesIO()
    np.save(buffer, np.array([result["vector"] for result in results], np.float32))
    _write(path, buffer.getvalue())
    options.say(f"wrote {len(results)} vectors to {path}")
