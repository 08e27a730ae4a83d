"""Compress a model by a method of `ptm list --compressions`, or keep static vectors of its tokens.

Example:
  ptm compress 'magnitude(share=0.7)' runs/sst2 --task sst2 --data SST-2 --out small
  ptm compress 'magnitude(share=0.3, when="after")' runs/sst2 --out sparse
  ptm compress static sentence-transformers/all-MiniLM-L6-v2 --out static-minilm
  ptm compress static bert-base-uncased --out static-bert --width 0.95 --dtype float16

A method that trains fine-tunes the model on the task, in a run beside --out; the same command goes
on after a stop. The folder is a workdir: `ptm predict`, `evaluate`, `export` and `train --init`
take it. static: the vector of each token is its state without a text; a text is the mean of its
tokens. Its folder is in model2vec's layout.
"""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any, Literal

import tyro

from ptm_jax.cli import options, target

OF_STATIC = ("width", "sif", "pooling", "drop", "dtype")
OF_METHODS = ("task", "data", "workdir", "epochs", "batch", "length", "lr", "set")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Args:
    method: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="METHOD")]
    """A compression of `ptm list --compressions`, as 'magnitude(share=0.7)', or static."""
    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
    """A workdir or one checkpoint of it, a Hugging Face directory, or a name on the Hub."""
    out: Annotated[str, tyro.conf.arg(metavar="DIR")]
    """Directory to write, empty or new."""
    task: options.Text = None
    """Task of `ptm list --tasks`: on its training examples the method trains or measures, on its
    held-out ones the scores before and after are computed."""
    data: Annotated[tuple[str, ...], tyro.conf.arg(metavar="SOURCE ...")] = ()
    """The task's data."""
    workdir: options.Path = None
    """Folder of the fine-tuning run (default: DIR.run)."""
    epochs: Annotated[float | None, tyro.conf.arg(metavar="X")] = None
    """Epochs of fine-tuning (default: the task's)."""
    batch: options.Number = None
    """Examples in a step (default: the task's)."""
    length: options.Number = None
    """Longest row in tokens (default: the task's)."""
    lr: Annotated[float | None, tyro.conf.arg(metavar="X")] = None
    """Peak learning rate (default: the task's)."""
    set: options.Sets = ()
    """Change fields of the fine-tuning's config, as recipe.phases.0.steps=500."""
    width: Annotated[float, tyro.conf.arg(metavar="N")] = 256
    """static: width of the vectors after PCA; below 1 the share of variance that is kept; 0: no
    PCA."""
    sif: Annotated[float, tyro.conf.arg(metavar="A")] = 1e-4
    """static: smoothing A of the weights A / (A + frequency) by Zipf's law; 0: no weights."""
    pooling: Literal["mean", "first", "last"] = "mean"
    """static: states of a token between its special tokens: their mean, the first or the last."""
    drop: str = r"\[unused\d+\]"
    """static: pattern of tokens that are left out."""
    dtype: Literal["float32", "float16"] = "float32"
    """static: type of the vectors in the file."""
    json: options.Flag = False
    """Print one JSON document: parameters, zeros, bytes and metrics before and after; of static:
    tokens, width, out."""


def run(args: Args) -> int:
    """Compresses the model and writes the folder."""
    from ptm_jax.core.errors import UserError

    static = args.method == "static"
    if excluded := options.given(args, OF_METHODS if static else OF_STATIC):
        raise UserError(f"{excluded[0]} is {'not ' if static else ''}for static; leave it out")
    return _static(args) if static else _compress(args)


def _compress(args: Args) -> int:
    from ptm_jax.compress import catalogue
    from ptm_jax.kernels import program_cache
    from ptm_jax.tuning import compressing

    compression = catalogue.read(args.method)
    program_cache.use()

    def change(config):
        return target.changed(config, options.pairs(args.set))

    asked = {name: vars(args)[name] for name in ("workdir", "epochs", "batch", "length", "lr")}
    task = target.task_name(args.task)
    outcome = compressing.compress(
        compression, args.model, args.out, task=task, data=args.data, change=change, **asked
    )
    if outcome.after is None:
        options.say(options.stopped(outcome.result))
        return options.status(outcome.result)
    document = {
        "method": args.method,
        "before": vars(outcome.before),
        "after": vars(outcome.after),
        "out": args.out,
    }
    return options.report(document, f"{_table(outcome)}\n  in {args.out}", args.json)


def _table(outcome: Any) -> str:
    sizes = outcome.before, outcome.after
    rows = [["parameters", *(f"{size.parameters:,}" for size in sizes)]]
    rows += [["  of them zero", *(f"{size.zeros:,}" for size in sizes)]]
    rows += [["megabytes", *(options.figure(size.bytes / 1e6) for size in sizes)]]
    for name in outcome.after.metrics:
        values = [size.metrics[name] if size.metrics else None for size in sizes]
        rows.append([name, *(options.metric(name, value) for value in values)])
    return options.table(["", "before", "after"], rows)


def _static(args: Args) -> int:
    from ptm_jax.convert.words.wordfiles import is_words
    from ptm_jax.core.errors import UserError
    from ptm_jax.inference.text.distilling import distil
    from ptm_jax.runs import writing
    from ptm_jax.tuning import scoring

    writing.check_free(args.out)
    if is_words(args.model):
        raise UserError(f"{args.model} holds word vectors already; give a model with an encoder")
    if args.width < 0 or (args.width >= 1 and args.width != int(args.width)):
        raise UserError(
            f"--width is {args.width}; give a whole number, a share below 1, or 0 for no PCA"
        )
    (model,) = scoring.load((args.model,))
    width = None if not args.width else args.width if args.width < 1 else int(args.width)
    vectors = distil(
        model, width, args.sif or None, args.drop or None, args.pooling, name=args.model
    )
    vectors.static.fields["embedding_dtype"] = args.dtype
    vectors.save(args.out, "static")
    document = {
        "method": args.method,
        "tokens": len(vectors),
        "width": vectors.width,
        "out": args.out,
    }
    return options.report(document, f"{vectors!r}\n  in {args.out}", args.json)
