"""The words of a text by the attention from which its class is predicted.

Progress notes (Tang et al. 2019, row 161): BERT, a bidirectional LSTM and one attention over its
states classify a note (`--adapt bilstm attentive`), and the words with the greatest weights are its
keywords. A classifier of the first token (BERT) has its heads of the last layer, whose mean counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ptm_jax.core.errors import UserError
from ptm_jax.inference import inputs
from ptm_jax.inference.saliency import alternatives
from ptm_jax.inference.text import tags
from ptm_jax.inference.uses import Request, Result, Use

if TYPE_CHECKING:
    from ptm_jax.inference.pretrained import Pretrained

Weighted = list[tuple[str, float]]
"""(word, weight)."""
BATCH = 16


def weights_of(model: Pretrained, texts: Sequence[str]) -> list[Weighted]:
    """Returns each word of the texts, between blanks, with its share of the attention to the text.

    The share of a word is the sum over its pieces. Raises UserError for an empty text, for a text
    that is too long, and for a model without one attention.
    """
    part, params = alternatives.part_of(model)
    tokenizer, specials = model._tokenizer(), np.array(model.vocab.specials, np.int32)
    words = [text.split() for text in texts]
    if not all(words):
        raise UserError("a text has no words; give texts")
    records = tags.records_of(tokenizer, words)
    rows = [tokenizer.frame(record["ids"]) for record in records]
    model._check([ids for ids, _ in rows])
    typed, weighted = model.module.encoder.types > 1, [Weighted()] * len(texts)
    for chosen in inputs.batches([ids for ids, _ in rows], BATCH):
        ids, kinds = zip(*(rows[i] for i in chosen), strict=True)
        types = inputs.rectangle(kinds, 0)[0] if typed else None
        fields = model._batch(*inputs.rectangle(ids, model.vocab.pad), types)
        seen = alternatives.attended(part, params, fields, specials)
        shares, text = np.asarray(seen.share()).mean(1), np.asarray(seen.text)
        for row, i in enumerate(chosen):
            weighted[i] = _by_word(words[i], records[i], shares[row][text[row]], specials)
    return weighted


def _by_word(words, record, shares: np.ndarray, specials: np.ndarray) -> Weighted:
    """Returns the words with the sums of the shares of their pieces that are no special tokens."""
    inside = ~np.isin(record["ids"], specials)
    of_pieces = np.zeros(len(inside))
    of_pieces[inside] = shares
    word = np.repeat(np.arange(len(words)), record["sizes"])
    totals = np.bincount(word, of_pieces, minlength=len(words))
    return list(zip(words, totals.tolist(), strict=True))


def run(model: Pretrained, request: Request) -> list[Result]:
    """Returns the class of each text and its `top` words, the greatest weight first."""
    results = []
    weighted = weights_of(model, request.text)
    classes = model.classify(list(request.text))
    for text, words, labels in zip(request.text, weighted, classes, strict=True):
        best = sorted(words, key=lambda one: -one[1])[: request.top]
        keywords = [{"word": word, "weight": round(weight, 6)} for word, weight in best]
        results.append({"text": text, "label": max(labels, key=labels.get), "keywords": keywords})
    return results


def lines_of(result: Result) -> Iterator[str]:
    """Yields the text with its class, and a line for each keyword."""
    yield f"{result['text']}  ({result['label']})"
    for one in result["keywords"]:
        yield f"  {one['weight']:6.1%}  {one['word']}"


USES = (
    Use(
        name="keywords",
        run=run,
        lines=lines_of,
        help="words by the attention from which the class of a text is predicted",
        columns=("text", "label", "keywords"),
    ),
)
