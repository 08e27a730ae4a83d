"""The supervised fastText model that a run trained, as a `.bin` file has it."""

from __future__ import annotations

from typing import Any

import numpy as np

from ptm_jax.convert.words.wordtable import EOS, Classes, Subwords, WordTable
from ptm_jax.core.errors import UserError
from ptm_jax.inference.words.bag_classes import LABEL
from ptm_jax.nn.heads.class_tree import ClassTree


def table_of(model: Any) -> WordTable:
    """Returns the table of a `Pretrained` model with a bag of words and classes.
    Blanks in the names of classes become `_`.

    fastText splits a text at blanks, and our tokenizer also at punctuation: give the file tokens
    with blanks between them. Raises UserError for a model without classes."""
    encoder, system, tokenizer = model.module.encoder, model.system, model._tokenizer()
    head = model.module.heads.get("classify")
    if head is None:
        raise UserError(
            f"{system.name} has no classes; train it on a task (configs/fasttext_supervised.py)"
        )
    params, (end,) = model.params[model.tower], encoder.vocab.need("eos")
    words = [i for i, piece in enumerate(tokenizer.pieces) if piece not in tokenizer.special_pieces]
    tree = isinstance(head, ClassTree)
    counts = head.counts if tree else (1,) * head.classes
    order = sorted(range(head.classes), key=lambda n: -counts[n])
    output = np.asarray(params["heads_classify"]["classes"]["kernel"], np.float32).T
    names = [LABEL + system.examples.labels[n].replace(" ", "_") for n in order]
    output = np.ascontiguousarray(output if tree else output[order])
    grams, rows = encoder.grams, np.asarray(params["encoder"]["ngrams"], np.float32)
    classes = Classes(
        names=names, counts=np.array(counts, np.int64)[order], rows=output,
        loss="hs" if tree else "softmax",
        word_ngrams=grams.longest,
    )  # fmt: skip
    settings = {
        "model": 3,
        "loss": 1 if tree else 3,
        "word_ngrams": grams.longest,
        "buckets": grams.buckets,
    }
    return WordTable(
        words=[EOS, *(tokenizer.pieces[i] for i in words)],
        rows=np.asarray(params["encoder"]["token"], np.float32)[[end, *words]],
        subwords=Subwords(rows=rows, shortest=0, longest=0, buckets=grams.buckets),
        classes=classes,
        settings={**settings, "output": output},
    )
