"""Word vectors on the command line: `ptm predict`, `ptm export` and `ptm import` with a file or
folder of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ptm_jax.cli import options
from ptm_jax.core.errors import UserError

TASKS = ("similar", "embed", "classify")
SETS = ("analogy", "similarity", "properties", "dictionary", "retrieval")
"""Values of `ptm evaluate --task` for word vectors."""


def load(path: str, allow_pickle: bool = False) -> Any:
    """The `WordVectors` of a path."""
    import ptm_jax

    return ptm_jax.load(path, allow_pickle=allow_pickle)


def vectors(path: str, language: str | None = None) -> Any:
    """The `WordVectors` of a file or folder, or of the table of a run; of one language of it."""
    from ptm_jax.inference.words import two_languages
    from ptm_jax.inference.words.word_vectors import WordVectors

    model = load(path)
    model = model if isinstance(model, WordVectors) else WordVectors.of_model(model)
    return model if language is None else two_languages.of_language(model, language)


def check(args: Any) -> None:
    """Refuses what `ptm predict` cannot do with word vectors."""
    if args.task not in TASKS:
        raise UserError(
            f"{args.model} holds word vectors; give --task {', '.join(TASKS[:-1])} or "
            f"{TASKS[-1]}, not {args.task}"
        )
    if args.text and args.input is not None:
        raise UserError("give the words by --text or by --input, not both")
    others = ("pair", "adapter", "tower", "ensemble", "beside", "pooling", "prompt", "prompt_name")
    if given := options.given(args, others):
        raise UserError(
            f"{given[0]} is for models with an encoder; {args.model} holds word vectors: "
            "leave it out"
        )
    if args.method != "3cosadd" and args.task != "similar":
        raise UserError(f"--method needs --task similar; the task is {args.task}")


def results(args: Any, model: Any, texts: Sequence[str]) -> list[dict[str, Any]]:
    """The objects of --json: nearest words, vectors, or classes."""
    if args.task == "classify":
        return [
            {"text": text, "labels": found}
            for text, found in zip(texts, model.classify(texts), strict=True)
        ]
    if args.task == "embed":
        found = model.encode(texts) if model.encodes else (model[text] for text in texts)
        return [
            {"text": text, "vector": vector.tolist()}
            for text, vector in zip(texts, found, strict=True)
        ]
    found = []
    for text in texts:
        best = model.most_similar(*terms(model, text), top=args.top, method=args.method)
        found.append(
            {
                "text": text,
                "similar": [{"score": score, "text": _printable(word)} for word, score in best],
            }
        )
    return found


def terms(model: Any, text: str) -> tuple[list[str], list[str]]:
    """Returns (words to add, words to take away) of `king - man + woman`; a word of the vocabulary
    is itself."""
    if text in model or not any(f" {sign} " in text for sign in "+-"):
        return [text], []
    words, sign, parts = {"+": [], "-": []}, "+", text.split()
    for number, part in enumerate(parts):
        if (number % 2 == 1) != (part in words):
            raise UserError(f"{text!r} is no sum of words; write it as 'king - man + woman'")
        if number % 2:
            sign = part
        else:
            words[sign].append(part)
    if len(parts) % 2 == 0:
        raise UserError(f"{text!r} ends with {parts[-1]!r}; write it as 'king - man + woman'")
    return words["+"], words["-"]


def evaluate(args: Any) -> int:
    """Evaluates word vectors on a set of words, or two tables on pairs."""
    from ptm_jax.tasks import properties, wordsets

    if args.task not in SETS:
        raise UserError(
            f"{args.workdir} holds word vectors; give --task {', '.join(SETS)}, not {args.task}"
        )
    if len(args.data) != 1 + (args.task == "retrieval"):
        wanted = (
            "two files, line by line translations,"
            if args.task == "retrieval"
            else "one file of words"
        )
        raise UserError(
            f"give {wanted} as --data, such as questions-words.txt or EN-WS-353-ALL.txt"
        )
    pairs = args.task in ("dictionary", "retrieval")
    others = ("split", "batches", "config", "predictions", "plot", "adapter", "ensemble", "batch")
    others += () if pairs else ("beside", "languages")
    if given := options.given(args, others):
        raise UserError(f"{given[0]} is not for --task {args.task} with word vectors; leave it out")
    if pairs:
        found = _two(args)
    elif args.task == "properties":
        found = properties.evaluate(vectors(args.workdir), args.data[0])
    else:
        found = wordsets.evaluate(vectors(args.workdir), args.task, args.data[0], args.method)
    return _printed(args, found)


def links(args: Any) -> int:
    """Evaluates link prediction of a run on a graph: the split valid, or test with --split test;
    with --batches that many batches of its triples."""
    from ptm_jax.tasks import completion

    if not args.data:
        raise UserError(
            "give the graph as --data: a folder with train.tsv and dev.tsv, or one of ptm "
            "prepare --graph"
        )
    others = (
        "config",
        "predictions",
        "plot",
        "adapter",
        "ensemble",
        "beside",
        "languages",
        "method",
    )
    if given := options.given(args, others):
        raise UserError(f"{given[0]} is not for --task links; leave it out")
    split, most = {"heldout": "valid"}.get(args.split, args.split), args.batches * args.batch
    return _printed(
        args, completion.evaluate(args.workdir, args.data, split, max(args.batch, 256), most)
    )


def _printed(args: Any, found: Any) -> int:
    document = {
        "task": args.task,
        "examples": found.examples,
        "metrics": dict(found.metrics),
        "source": args.data[0],
    }
    document["remarks"] = dict(found.remarks)
    lines = [f"{args.task}: {found.examples:,} examples of {args.data[0]}"]
    lines += [f"  {name:<28} {options.figure(value)}" for name, value in found.metrics.items()]
    lines += [f"  {count} {remark}" for remark, count in found.remarks.items()]
    return options.report(document, "\n".join(lines), args.json)


def _two(args: Any) -> Any:
    """The outcome of vectors of two languages on a dictionary or on parallel sentences."""
    from pathlib import Path

    from ptm_jax.data.text.bitext import words_of
    from ptm_jax.inference.words import two_languages
    from ptm_jax.tasks.wordsets import Outcome

    if (args.beside is None) == (not args.languages) or len(args.languages) not in (0, 2):
        raise UserError(
            "give the vectors of the other language as --beside, or the two --languages of "
            "one table"
        )
    own, other = args.languages or (None, None)
    first, second = vectors(args.workdir, own), vectors(args.beside or args.workdir, other)
    if args.task == "dictionary":
        return Outcome(
            *two_languages.translations(first, second, two_languages.read_pairs(args.data[0])), {}
        )
    texts = [[words_of(line) for line in two_languages.lines_of(Path(file))] for file in args.data]
    if len(texts[0]) != len(texts[1]):
        raise UserError(
            f"{args.data[0]} has {len(texts[0]):,} lines and {args.data[1]} "
            f"{len(texts[1]):,}; give translations"
        )
    return Outcome(two_languages.sentences(first, second, texts), len(texts[0]), {})


def export(args: Any) -> int:
    """Writes word vectors, of a file or of a trained table, in a format."""
    from pathlib import Path

    from ptm_jax.inference.words.paragraph_vectors import ParagraphModel
    from ptm_jax.inference.words.word_vectors import WordVectors

    if given := options.given(args, ("adapter", "tower", "push", "private")):
        raise UserError(
            f"{given[0]} is for models with an encoder; {args.model} holds word vectors: "
            "leave it out"
        )
    if args.dtype != "float32":
        raise UserError(f"--dtype is {args.dtype}; files of word vectors hold float32")
    if Path(args.out).exists():
        raise UserError(f"{args.out} exists; remove it, or give another --out")
    model = load(args.model)
    model = model.words if isinstance(model, ParagraphModel) else model
    model = model if isinstance(model, WordVectors) else WordVectors.of_model(model)
    files = model.save(args.out, args.format)
    print(
        f"wrote {len(model):,} words of width {model.width}",
        *(f"  {file}" for file in files),
        sep="\n",
    )
    return 0


def take(args: Any) -> int:
    """Writes word vectors as a folder of ours."""
    if given := options.given(args, ("architecture", "revision", "grow", "expand")):
        raise UserError(
            f"{given[0]} is for models with an encoder; {args.model} holds word vectors: "
            "leave it out"
        )
    model = load(args.model, args.allow_pickle)
    model.save(args.out, "folder")
    document = {
        "format": model.table.format,
        "words": len(model),
        "width": model.width,
        "out": args.out,
    }
    return options.report(document, f"{model}\n  in {args.out}", args.json)


def _printable(word: str) -> str:
    """A word whose bytes are not UTF-8, with their numbers in their places."""
    return word.encode("utf8", "backslashreplace").decode()
