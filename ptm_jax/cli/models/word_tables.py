"""`ptm export` and `ptm import` with a file or folder of word vectors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ptm_jax.cli import options
from ptm_jax.core.errors import UserError

if TYPE_CHECKING:
    from ptm_jax.cli.models import exporting, importing


def load(path: str, allow_pickle: bool = False) -> Any:
    """The `WordVectors` of a path."""
    import ptm_jax

    return ptm_jax.load(path, allow_pickle=allow_pickle)


def export(args: exporting.Args) -> int:
    """Writes word vectors, of a file or of a trained table, in a format."""
    from pathlib import Path

    from ptm_jax.inference.words.paragraph_vectors import ParagraphModel
    from ptm_jax.inference.words.word_vectors import WordVectors

    if excluded := options.given(args, ("adapter", "tower", "push", "private")):
        raise UserError(
            f"{excluded[0]} is for models with an encoder; {args.model} holds word vectors: "
            "leave it out"
        )
    if args.dtype != "float32":
        raise UserError(f"--dtype is {args.dtype}; files of word vectors hold float32")
    if Path(args.out).exists():
        raise UserError(f"{args.out} exists; remove it, or give another --out")
    model = load(args.model)
    model = model.words if isinstance(model, ParagraphModel) else model
    model = WordVectors.of_model(model)
    files = model.save(args.out, args.format)
    print(
        f"wrote {len(model):,} words of width {model.width}",
        *(f"  {file}" for file in files),
        sep="\n",
    )
    return 0


def take(args: importing.Args) -> int:
    """Writes word vectors as a folder of ours."""
    if excluded := options.given(args, ("architecture", "revision", "grow", "expand")):
        raise UserError(
            f"{excluded[0]} is for models with an encoder; {args.model} holds word vectors: "
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
