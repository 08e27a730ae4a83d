"""Word vectors on the command line: `ptm predict`, `ptm export` and `ptm import` with a file or folder of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ptm_jax.cli import options
from ptm_jax.core.errors import UserError

TASKS = ("similar", "embed", "classify")


def load(path: str, allow_pickle: bool = False) -> Any:
    """The `WordVectors` of a path."""
    import ptm_jax

    return ptm_jax.load(path, allow_pickle=allow_pickle)


def check(args: Any) -> None:
    """Refuses what `ptm predict` cannot do with word vectors."""
    if args.task not in TASKS:
        raise UserError(
            f"{args.model} holds word vectors; give --task {', '.join(TASKS[:-1])} or {TASKS[-1]}, not {args.task}"
        )
    if args.text and args.input is not None:
        raise UserError("give the words by --text or by --input, not both")
    others = ("pair", "adapter", "tower", "ensemble", "beside", "pooling", "prompt", "prompt_name")
    if given := options.given(args, others):
        raise UserError(f"{given[0]} is for models with an encoder; {args.model} holds word vectors: leave it out")
    if args.method != "3cosadd" and args.task != "similar":
        raise UserError(f"--method needs --task similar; the task is {args.task}")


def results(args: Any, model: Any, texts: Sequence[str]) -> list[dict[str, Any]]:
    """The objects of --json: nearest words, vectors, or classes."""
    from ptm_jax.inference.static_model import StaticModel

    if args.task == "classify":
        return [{"text": text, "labels": found} for text, found in zip(texts, model.classify(texts), strict=True)]
    if args.task == "embed":
        found = model.encode(texts) if isinstance(model, StaticModel) else (model[text] for text in texts)
        return [{"text": text, "vector": vector.tolist()} for text, vector in zip(texts, found, strict=True)]
    found = []
    for text in texts:
        best = model.most_similar(*terms(model, text), top=args.top, method=args.method)
        found.append({"text": text, "similar": [{"score": score, "text": _printable(word)} for word, score in best]})
    return found


def terms(model: Any, text: str) -> tuple[list[str], list[str]]:
    """Returns (words to add, words to take away) of `king - man + woman`; a word of the vocabulary is itself."""
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
    """Evaluates word vectors on a published set of words."""
    from ptm_jax.tasks import wordsets

    if args.task not in ("analogy", "similarity"):
        raise UserError(f"{args.workdir} holds word vectors; give --task analogy or similarity, not {args.task}")
    if len(args.data) != 1:
        raise UserError("give one file of words as --data, such as questions-words.txt or EN-WS-353-ALL.txt")
    others = ("split", "batches", "config", "predictions", "plot", "adapter", "ensemble", "beside", "batch")
    if given := options.given(args, others):
        raise UserError(f"{given[0]} is for models with an encoder; {args.workdir} holds word vectors: leave it out")
    found = wordsets.evaluate(load(args.workdir), args.task, args.data[0], args.method)
    document = {"task": args.task, "examples": found.examples, "metrics": dict(found.metrics), "source": args.data[0]}
    document["remarks"] = dict(found.remarks)
    lines = [f"{args.task}: {found.examples:,} examples of {args.data[0]}"]
    lines += [f"  {name:<28} {options.figure(value)}" for name, value in found.metrics.items()]
    lines += [f"  {count} {remark}" for remark, count in found.remarks.items()]
    return options.report(document, "\n".join(lines), args.json)


def export(args: Any) -> int:
    """Writes word vectors, of a file or of a trained table, in a format."""
    from pathlib import Path

    from ptm_jax.inference.word_vectors import WordVectors

    if given := options.given(args, ("adapter", "tower", "push", "private")):
        raise UserError(f"{given[0]} is for models with an encoder; {args.model} holds word vectors: leave it out")
    if args.dtype != "float32":
        raise UserError(f"--dtype is {args.dtype}; files of word vectors hold float32")
    if Path(args.out).exists():
        raise UserError(f"{args.out} exists; remove it, or give another --out")
    model = load(args.model)
    model = model if isinstance(model, WordVectors) else WordVectors.of_model(model)
    files = model.save(args.out, args.format)
    print(f"wrote {len(model):,} words of width {model.width}", *(f"  {file}" for file in files), sep="\n")
    return 0


def take(args: Any) -> int:
    """Writes word vectors as a folder of ours."""
    if given := options.given(args, ("architecture", "revision", "grow")):
        raise UserError(f"{given[0]} is for models with an encoder; {args.model} holds word vectors: leave it out")
    model = load(args.model, args.allow_pickle)
    model.save(args.out, "folder")
    document = {"format": model.table.format, "words": len(model), "width": model.width, "out": args.out}
    return options.report(document, f"{model}\n  in {args.out}", args.json)


def _printable(word: str) -> str:
    """A word whose bytes are not UTF-8, with their numbers in their places."""
    return word.encode("utf8", "backslashreplace").decode()
