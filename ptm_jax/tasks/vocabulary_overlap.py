"""Pieces that two languages share under a model's tokenizer, beside their transfer (row 127).

Pires et al. 2019 (arXiv 1906.01502, section 3) divide the pieces of both texts by those of either;
Wu and Dredze 2019 (arXiv 1904.09077) count how much of the target text consists of pieces of the
source, once by different pieces and once by occurrences. K et al. 2020 (arXiv 1912.07840, section
3.1.1) make all of them 0 by fake English (`data.languages.fake`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ptm_jax.core.errors import UserError
from ptm_jax.data.languages import codes
from ptm_jax.data.text import sources
from ptm_jax.inference.loading import load
from ptm_jax.runs.evaluations import METHOD, Evaluation, Report, Request
from ptm_jax.runs.run import best_checkpoint

if TYPE_CHECKING:
    from ptm_jax.data.tokenizers.tokenizing import Tokenizer


class Overlap(NamedTuple):
    """Shares in [0, 1] of the pieces of a source and a target text.

    common    pieces of both, of the pieces of either
    types     different pieces of the target that are in the source
    tokens    occurrences in the target of pieces that are in the source
    """

    common: float
    types: float
    tokens: float


def overlap(source: np.ndarray, target: np.ndarray) -> Overlap:
    """Returns the shares of two texts, given how often each piece occurs, [V] each."""
    first, second = source > 0, target > 0
    both = first & second
    return Overlap(
        common=both.sum() / max(1, (first | second).sum()),
        types=both.sum() / max(1, second.sum()),
        tokens=target[first].sum() / max(1, target.sum()),
    )


def counts(tokenizer: Tokenizer, texts: Sequence[str]) -> np.ndarray:
    """Returns how often each piece occurs, [V]; the unknown token and other special ones, which
    all languages have, count as 0."""
    ids = np.concatenate([np.zeros(0, np.int32), *tokenizer.encode_batch(list(texts))])
    times, vocab = np.bincount(ids, minlength=tokenizer.vocab.size), tokenizer.vocab
    times[[one for one in (vocab.unk, *vocab.specials) if one is not None]] = 0
    return times


def report(request: Request) -> Report:
    """Returns the shares of each language with the first one. Raises UserError."""
    parts = codes.grouped(request.data)
    if len(parts) < 2 or any("-" in name for name in parts):
        raise UserError(
            "give texts of two languages or more, as --data language:en=FILE language:de=FILE; "
            f"given {' '.join(request.data) or 'none'}"
        )
    tokenizer = load(best_checkpoint(request.model))._tokenizer()
    pieces = {
        code: counts(tokenizer, [" ".join(one.sentences) for one in sources.documents(texts)])
        for code, texts in parts.items()
    }
    (first, start), *others = pieces.items()
    shares = {code: overlap(start, one) for code, one in others}
    means = np.mean(list(shares.values()), 0).tolist()
    rows = [
        [code, f"{pieces[code].sum():,}", *(f"{share:.4f}" for share in one)]
        for code, one in shares.items()
    ]
    total = int(sum(one.sum() for one in pieces.values()))
    document = {
        "task": request.task,
        "examples": total,
        "metrics": dict(zip(Overlap._fields, means, strict=True)),
        "languages": {code: one._asdict() for code, one in shares.items()},
        "source": ", ".join(request.data),
    }
    head = f"{request.task}: {total:,} tokens; the shares of pieces of {first}, and their means"
    return Report(
        document=document, head=head, width=22,
        table=[["language", "tokens", *Overlap._fields], *rows],
    )  # fmt: skip


EVALUATIONS = (
    Evaluation(
        name="overlap", reads="task", run=report,
        refuses=(
            METHOD,
            (
                ("predictions", "plot", "adapter", "ensemble", "beside", "languages", "speed"),
                "{option} is not for overlap; leave it out",
            ),
        ),
        help="pieces that languages share (--data language:en=FILE language:de=FILE)",
    ),
)  # fmt: skip
