"""Bring word vectors of two languages into one space, by the canonical correlations of a
dictionary's pairs.

Example:
  ptm align en.vec de.vec --dictionary en-de.txt --out aligned
  ptm align en.vec de.vec --dictionary en-de.txt --keep 1 --out aligned --format word2vec-binary \
    --json

Faruqui and Dyer 2014: both tables are projected on the directions in which the vectors of the pairs
correlate most; 80% of the directions are kept. The dictionary has two words a line, or is one of
FreeDict (.dict.dz) or iso-codes (.mo). The folder gets `first` and `second`, which `ptm evaluate
aligned/first.txt --task dictionary --beside aligned/second.txt` compares.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import tyro

from ptm_jax.cli import options

ENDINGS = {"word2vec-binary": ".bin", "keyed-vectors": ".kv", "folder": ""}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Args:
    first: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="FIRST")]
    """Word vectors, or a run of a word-vector system."""
    second: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="SECOND")]
    """Word vectors of the other language."""
    dictionary: Annotated[str, tyro.conf.arg(metavar="FILE")]
    """Pairs of words, one of each language, with a tab or a blank between."""
    out: Annotated[str, tyro.conf.arg(metavar="DIR")]
    """Directory to write, empty or new."""
    keep: Annotated[float, tyro.conf.arg(metavar="SHARE")] = 0.8
    """Share of the directions that is kept."""
    format: str = "word2vec"
    """Format of the files: word2vec, word2vec-binary, glove, keyed-vectors, folder."""
    json: options.Flag = False
    """Print one JSON document: pairs, width, correlations, files."""


def run(args: Args) -> int:
    """Aligns the tables and writes them."""
    from ptm_jax.inference.loading import vectors_of
    from ptm_jax.inference.words import two_languages
    from ptm_jax.knowledge.from_text import dictionaries
    from ptm_jax.runs.writing import check_free

    check_free(args.out)
    pairs = dictionaries.pairs_of(args.dictionary)
    first, second = vectors_of(args.first), vectors_of(args.second)
    *models, alignment = two_languages.aligned(first, second, pairs, args.keep)
    ending, files = ENDINGS.get(args.format, ".txt"), []
    for name, model in zip(("first", "second"), models, strict=True):
        files += model.save(Path(args.out) / f"{name}{ending}", args.format)
    known = sum(a in first and b in second for a, b in pairs)
    document = {
        "pairs": known,
        "width": models[0].width,
        "correlations": alignment.correlations.tolist(),
    }
    lines = [f"{known:,} of {len(pairs):,} pairs; {models[0].width} directions, correlations "
             f"{alignment.correlations[0]:.3f} to {alignment.correlations[-1]:.3f}",
                 *(f"  {file}" for file in files)]  # fmt: skip
    return options.report(
        {**document, "files": [str(file) for file in files]}, "\n".join(lines), args.json
    )
