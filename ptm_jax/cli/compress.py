"""Compress a model. static: vectors of its tokens without the network, as model2vec makes them; a text is their mean.

Example:
  ptm compress static sentence-transformers/all-MiniLM-L6-v2 --out static-minilm
  ptm compress static runs/mini --out static-mini --width 128 --sif 1e-3
  ptm compress static bert-base-uncased --out static-bert --width 0.95 --dtype float16

The folder is in model2vec's layout: model2vec and sentence-transformers load it, and so do ptm predict --task embed and
--task similar, and ptm export.
"""

from __future__ import annotations

import dataclasses
from typing import Annotated, Literal

import tyro

from ptm_jax.cli import options


@dataclasses.dataclass(frozen=True, kw_only=True)
class Args:
    method: Annotated[Literal["static"], tyro.conf.Positional, tyro.conf.arg(metavar="METHOD")]
    """static."""
    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
    """A workdir or one checkpoint of it, a Hugging Face directory, or a name on the Hub."""
    out: Annotated[str, tyro.conf.arg(metavar="DIR")]
    """Directory to write, empty or new."""
    width: Annotated[float, tyro.conf.arg(metavar="N")] = 256
    """Width of the vectors after PCA; below 1 the share of variance that is kept; 0: no PCA."""
    sif: Annotated[float, tyro.conf.arg(metavar="A")] = 1e-4
    """Smoothing A of the weights A / (A + frequency) by Zipf's law; 0: no weights."""
    pooling: Literal["mean", "first", "last"] = "mean"
    """States of a token between its special tokens: their mean, the first or the last."""
    drop: str = r"\[unused\d+\]"
    """Pattern of tokens that are left out."""
    dtype: Literal["float32", "float16"] = "float32"
    """Type of the vectors in the file."""
    json: options.Flag = False
    """Print one JSON document: tokens, width, out."""


def run(args: Args) -> int:
    """Makes the static vectors and writes the folder."""
    from ptm_jax.cli import scoring
    from ptm_jax.convert.words.wordfiles import is_words
    from ptm_jax.core.errors import UserError
    from ptm_jax.inference.distilling import distil
    from ptm_jax.runs import run

    run.check_free(args.out)
    if is_words(args.model):
        raise UserError(f"{args.model} holds word vectors already; give a model with an encoder")
    if args.width < 0 or (args.width >= 1 and args.width != int(args.width)):
        raise UserError(f"--width is {args.width}; give a whole number, a share below 1, or 0 for no PCA")
    (model,) = scoring.load((args.model,))
    width = None if not args.width else args.width if args.width < 1 else int(args.width)
    found = distil(model, width, args.sif or None, args.drop or None, args.pooling, name=args.model)
    found.static.fields["embedding_dtype"] = args.dtype
    found.save(args.out, "static")
    document = {"method": args.method, "tokens": len(found), "width": found.width, "out": args.out}
    return options.report(document, f"{found!r}\n  in {args.out}", args.json)
