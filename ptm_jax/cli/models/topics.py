"""Fit latent semantic analysis (lsa) or latent Dirichlet allocation (lda) to texts, by
scikit-learn.

Example:
  ptm topics lsa --data 'articles/*.txt' --out lsa --width 300
  ptm topics lsa --data pydocs --out lsa --weights logentropy
  ptm topics lda --data pydocs --out lda --width 50 --passes 5

The folder holds the vectors of the words and what those of new texts are computed from. `ptm
predict lsa --task embed` gives the vector of a text, and `--task similar` similar words; ptm
evaluate --task similarity and ptm export take it too.
"""

from __future__ import annotations

import dataclasses
from typing import Annotated, Literal

import tyro

from ptm_jax.cli import options


@dataclasses.dataclass(frozen=True, kw_only=True)
class Args:
    method: Annotated[Literal["lsa", "lda"], tyro.conf.Positional, tyro.conf.arg(metavar="METHOD")]
    """lsa or lda."""
    data: Annotated[tuple[str, ...], tyro.conf.arg(metavar="SOURCE ...")]
    """Texts, as of ptm prepare."""
    out: Annotated[str, tyro.conf.arg(metavar="DIR")]
    """Directory to write, empty or new."""
    width: Annotated[int, tyro.conf.arg(metavar="N")] = 100
    """Dimensions of LSA, topics of LDA."""
    weights: Literal["tfidf", "logentropy"] = "tfidf"
    """lsa: weights of the counts."""
    passes: Annotated[int, tyro.conf.arg(metavar="N")] = 10
    """lda: passes over the texts."""
    least: Annotated[int, tyro.conf.arg(metavar="N")] = 2
    """Documents that have a word, at least."""
    vocab: options.Number = None
    """The most frequent words that are kept (default: all)."""
    seed: Annotated[int, tyro.conf.arg(metavar="N")] = 0
    """Seed of the start."""
    json: options.Flag = False
    """Print one JSON document: method, words, width, out."""


def run(args: Args) -> int:
    """Fits the model and writes the folder."""
    from ptm_jax.core.errors import UserError
    from ptm_jax.data.text import sources
    from ptm_jax.inference.words.topic_models import LDA, LSA
    from ptm_jax.runs import writing

    writing.check_free(args.out)
    for name in ("width", "passes", "least"):
        if vars(args)[name] < 1:
            raise UserError(f"--{name} is {vars(args)[name]}; it must be at least 1")
    shared = {"least": args.least, "most": args.vocab, "seed": args.seed}
    lsa = LSA(width=args.width, weights=args.weights, **shared)
    model = lsa if args.method == "lsa" else LDA(topics=args.width, passes=args.passes, **shared)
    texts = (
        " ".join(item.sentences)
        for kind, name in sources.parts(args.data)
        for item in sources.read(kind, name)
    )
    fitted = model.fit(texts)
    fitted.save(args.out, "folder")
    document = {"method": args.method, "words": len(fitted), "width": fitted.width, "out": args.out}
    return options.report(document, f"{fitted!r}\n  in {args.out}", args.json)
