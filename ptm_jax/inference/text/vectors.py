"""Vectors of texts from the states of their tokens, similarity, search.
Reimers & Gurevych 2019, arXiv 1908.10084.

`Pretrained.encode` follows the sentence-transformers folder of its model
(`convert.libraries.sentence_folder`).
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from ptm_jax.convert.libraries.sentence_folder import SIMILARITIES, Dense, Sentence
from ptm_jax.core.errors import UserError, unknown
from ptm_jax.encoders.transformer.seq2seq import makes_vector
from ptm_jax.inference import bars, inputs, steady
from ptm_jax.inference.decoding.settings import bucket
from ptm_jax.inference.retrieval import other_vectors
from ptm_jax.inference.retrieval.text_rows import has_pooling, rows_of, settings
from ptm_jax.nn.heads.text_vector import MODES

if TYPE_CHECKING:
    import scipy.sparse

    from ptm_jax.data.corpora.store import Corpus
    from ptm_jax.inference.pretrained import Pretrained


FEW = 64
"""Tokens of a batch of few texts, where the compiler adds in the same order for it as for one of
`steady.tokens()`. On CPUs it does from 64 tokens on (JAX 0.10, products of 384 and 1,536); below,
the sums of a product depend on the number of tokens. A single text of 4 words takes 26 ms (without
the mode 11), of 21 words 28 (19), of 42 words 25 (24): MiniLM, one core."""

QUERIES, DOCUMENTS = ("query",), ("document", "passage", "corpus")
"""Names of prompts for the texts that are searched with, and for those that are searched."""


def _sigmoid(x: np.ndarray) -> np.ndarray:
    from scipy.special import expit

    return expit(x)


def _gelu(x: np.ndarray) -> np.ndarray:
    from scipy.special import ndtr

    return x * ndtr(x)


_ACTIVATIONS = {
    "Identity": lambda x: x,
    "GELU": _gelu,
    "ReLU": lambda x: np.maximum(x, 0),
    "SiLU": lambda x: x * _sigmoid(x),
    "Sigmoid": _sigmoid,
    "Tanh": np.tanh,
}


class Found(NamedTuple):
    """A text of a corpus that `search` found: its index, and its similarity to the query.
    `text` is None for vectors."""

    index: int
    score: float
    text: str | None = None


def pooled(mode: str, hidden: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Returns vectors [B, D] of states [B, L, D] float32 where `mask` [B, L] is above 0.
    Rows are padded on the right.

    cls first token; lasttoken last token; max; mean; mean_sqrt_len: the sum over the square root of
    the number of tokens; weightedmean: the mean with weights 1, 2, .. (Muennighoff 2022, arXiv
    2202.08904, equation 2). Raises UserError for another mode.
    """
    real, rows = mask[..., None] > 0, np.arange(len(hidden))
    if mode == "cls":
        return hidden[rows, (mask > 0).argmax(1)]
    if mode == "lasttoken":
        return hidden[rows, mask.shape[1] - 1 - (mask[:, ::-1] > 0).argmax(1)]
    if mode == "max":
        return np.where(real, hidden, -np.inf).max(1)
    if mode in ("mean", "mean_sqrt_len"):
        count = np.maximum(real.sum(1).astype(np.float32), 1e-9)
        return np.where(real, hidden, 0).sum(1) / (count if mode == "mean" else np.sqrt(count))
    if mode == "weightedmean":
        weights = real * np.arange(1, mask.shape[1] + 1, dtype=np.float32)[None, :, None]
        return np.where(real, hidden * weights, 0).sum(1) / np.maximum(weights.sum(1), 1e-9)
    raise unknown("pooling", str(mode), MODES)


def through(layer: Dense, vectors: np.ndarray) -> np.ndarray:
    """Returns a layer's output [B, F] of vectors [B, D].
    The sums of a row do not depend on the number of rows."""
    products = np.einsum(
        "bd,df->bf", vectors, layer.kernel
    )  # without BLAS, whose order of additions depends on B
    return _ACTIVATIONS[layer.activation](
        products if layer.bias is None else products + layer.bias
    ).astype(np.float32)


def encode(
    model: Pretrained,
    texts: Sequence[str],
    *,
    pooling: str | None,
    batch_size: int,
    normalize: bool | None,
    specials: bool,
    prompt: str | None,
    prompt_name: str | None,
    truncate: bool,
    exact: bool,
    progress: bool | None,
    query: bool = False,
) -> Any:
    """`Pretrained.encode`."""
    sentence = settings(model)
    if (form := other_vectors.form_of(model)) is not None:
        prefix = prompt_of(sentence, prompt, prompt_name)
        texts = [_lowered(sentence, prefix + text) for text in inputs.texts_of(texts)]
        return form.encode(
            texts, query=query, batch_size=batch_size, specials=specials, truncate=truncate,
            progress=progress, pooling=pooling, normalize=normalize, exact=exact,
        )  # fmt: skip
    if pooling is None and sentence.refused:
        raise UserError(
            f"{sentence.refused}; give a pooling, for example pooling={sentence.modes[0]!r} "
            "(--pooling)"
        )
    modes, layers = (sentence.modes, sentence.dense) if pooling is None else ((pooling,), ())
    if pooling is None and model.module.encoder.gives_vectors and not has_pooling(model):
        modes = ()
    if wrong := [mode for mode in modes if mode not in MODES]:
        raise unknown("pooling", str(wrong[0]), MODES)
    prompt, texts = prompt_of(sentence, prompt, prompt_name), inputs.texts_of(texts)
    texts = [_lowered(sentence, prompt + text) for text in texts]
    rows = rows_of(model, texts, specials, truncate)
    skip = _prompt_length(model, prompt) if prompt and not sentence.include_prompt else 0
    vector_of_row: dict[int, np.ndarray] = {}
    shown = False if steady.inside() else progress
    with bars.bar(len(rows), "text", shown=shown) as bar:
        for chosen, ids, mask in (
            _alike(model, rows)
            if exact or steady.inside()
            else inputs.padded_batches(rows, batch_size, model.vocab.pad)
        ):
            vector_of_row.update(
                zip(
                    chosen.tolist(),
                    _vectors(model, modes, layers, ids, mask, skip=skip),
                    strict=False,
                )
            )
            bar.update(len(chosen))
    if not rows:
        return _vectors(
            model, modes, layers, np.zeros((1, 1), np.int32), np.ones((1, 1), np.int32), skip=0
        )[:0]
    vectors = np.stack([vector_of_row[i] for i in range(len(rows))])
    return unit(vectors) if (sentence.normalize if normalize is None else normalize) else vectors


def _lowered(sentence: Sentence, text: str) -> str:
    return text.lower() if sentence.lower else text


def unit(vectors: np.ndarray) -> np.ndarray:
    """Returns vectors [n, D] of length 1; a vector of length 0 stays."""
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


def prompt_of(sentence: Sentence, prompt: str | None, name: str | None) -> str:
    """Returns the text before every text: `prompt`, the one of a name, or the folder's default.
    Raises UserError."""
    if prompt is not None and name is not None:
        raise UserError(f"both a prompt and the prompt_name {name!r} are given; give one of them")
    if name is not None and not sentence.prompts:
        raise UserError(
            f"the model names no prompts, given prompt_name={name!r}; give the text itself: "
            'prompt="query: "'
        )
    if name is not None and name not in sentence.prompts:
        raise unknown("prompt", name, sentence.prompts)
    name = sentence.default_prompt if name is None else name
    return sentence.prompts.get(name, "") if prompt is None else prompt


def prompts_of(model: Pretrained | SideBySide, options: Mapping[str, Any]) -> list[str]:
    """Returns the text before every text with the options of `encode`, of each model."""
    if isinstance(model, SideBySide):
        return [prompt for one in model.models for prompt in prompts_of(one, options)]
    return [prompt_of(settings(model), options.get("prompt"), options.get("prompt_name"))]


def prompt_for(
    model: Pretrained, options: Mapping[str, Any], names: Sequence[str]
) -> dict[str, str]:
    """Returns the option with the first of the folder's prompts `names`, or with no prompt.
    Nothing where `options` have one."""
    if {"prompt", "prompt_name"} & options.keys():
        return {}
    prompts = (model.sentence or Sentence()).prompts
    return {"prompt": next((prompts[name] for name in names if name in prompts), "")}


def similarity(a: Any, b: Any, kind: str = "cosine") -> np.ndarray:
    """Returns the similarity [n, m] float32 of vectors [n, D] (or [D]) and [m, D].
    `kind` is "cosine", "dot", or a negative distance: "euclidean" or "manhattan". Raises UserError
    for another kind or unequal widths, and for texts."""
    if any(np.asarray(vectors).dtype.kind in "USO" for vectors in (a, b)):
        raise UserError(
            "similarity compares vectors, given texts; encode them first: "
            "model.similarity(model.encode(texts), model.encode(others))"
        )
    a, b = (np.atleast_2d(np.asarray(vectors, np.float32)) for vectors in (a, b))
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[1]:
        raise UserError(
            f"vectors of the shapes {a.shape} and {b.shape} are not comparable; give [n, D] "
            "and [m, D]"
        )
    if kind == "cosine":
        return unit(a) @ unit(b).T
    if kind == "dot":
        return a @ b.T
    if kind not in SIMILARITIES:
        raise unknown("similarity", str(kind), SIMILARITIES)
    from scipy.spatial import distance

    metric = "cityblock" if kind == "manhattan" else "euclidean"
    return -distance.cdist(a, b, metric).astype(np.float32)


def search(
    model: Pretrained, queries: Sequence[str], corpus: Corpus, top: int, **options: Any
) -> list[list[Found]]:
    """`Pretrained.search`."""
    if top < 1:
        raise UserError(f"top is {top}; it must be at least 1")
    sought = model.encode(queries, query=True, **prompt_for(model, options, QUERIES), **options)
    texts = None if _are_vectors(corpus) else inputs.texts_of(corpus, "corpus")
    stored = (
        corpus
        if texts is None
        else model.encode(texts, **prompt_for(model, options, DOCUMENTS), **options)
    )
    hits = []
    for row in (
        model.similarity(sought, stored)
        if _count(sought) and _count(stored)
        else np.zeros((_count(sought), 0))
    ):
        best = np.argsort(-row, kind="stable")[:top]
        hits.append(
            [Found(int(i), float(row[i]), None if texts is None else texts[i]) for i in best]
        )
    return hits


def _are_vectors(corpus: object) -> bool:
    """Whether a corpus is the result of `encode`."""
    if isinstance(corpus, list):
        return bool(corpus) and isinstance(corpus[0], np.ndarray)
    return isinstance(corpus, np.ndarray) or _is_sparse(corpus)


def _count(vectors: np.ndarray | list | scipy.sparse.spmatrix) -> int:
    return vectors.shape[0] if _is_sparse(vectors) else len(vectors)


def _is_sparse(vectors: object) -> bool:
    """Whether vectors are a matrix of scipy, which takes a third of a second to import: no process
    has one that has not imported it."""
    return "scipy.sparse" in sys.modules and sys.modules["scipy.sparse"].issparse(vectors)


@dataclasses.dataclass(frozen=True, eq=False)
class SideBySide:
    """Several models as one.
    A text's vector is the concatenation of theirs, each of length 1: combine-skip, of uni-skip and
    bi-skip (Kiros et al. 2015, section 3; the norm follows the authors' code)."""

    models: Sequence[Any]

    sentence: ClassVar[None] = None

    def encode(
        self, texts: Sequence[str], normalize: bool | None = None, **options: Any
    ) -> np.ndarray:
        """Returns vectors [n, sum of D] float32; `options` are those of `Pretrained.encode`.
        Raises UserError as that."""
        vectors = np.concatenate(
            [model.encode(texts, normalize=True, **options) for model in self.models], -1
        )
        return unit(vectors) if normalize else vectors

    def similarity(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """Returns the cosines [n, m] of vectors."""
        return similarity(a, b)

    def search(
        self, queries: Sequence[str], corpus: Corpus, top: int = 5, **options: Any
    ) -> list[list[Found]]:
        """`Pretrained.search`."""
        return search(self, queries, corpus, top, **options)


def _prompt_length(model: Pretrained, prompt: str) -> int:
    """Returns the number of tokens of a prompt with the special tokens before it."""
    (row,) = model._tokenizer().encode_batch([prompt])
    framed = inputs.framed(model, row)
    return len(framed) - int(len(row) > 0 and framed[-1] != row[-1])


def _alike(model: Pretrained, rows: Sequence[np.ndarray]) -> Iterator[tuple[np.ndarray, ...]]:
    """Yields (indices [b], ids [B, L], mask [B, L]): L is the bucket of each row's own length, and
    B = steady.tokens() / bucket(L) rows are filled with copies. One program computes a row,
    whatever the other rows are."""
    widths = np.array([bucket(len(row), inputs.SHORTEST, model.limit) for row in rows])
    for width in np.unique(widths):
        few, size = (max(1, tokens // bucket(int(width))) for tokens in (FEW, steady.tokens()))
        those = np.flatnonzero(widths == width)
        if len(those) <= 2 * few < size and _agree(
            model, _block(model, rows, those[:few], int(width), size), few
        ):
            size = few
        for start in range(0, len(those), size):
            chosen = those[start : start + size]
            yield chosen, *_block(model, rows, chosen, int(width), size)


def _block(
    model: Pretrained, rows: Sequence[np.ndarray], chosen: np.ndarray, width: int, size: int
) -> tuple[np.ndarray, ...]:
    """Returns (ids [B, L], mask [B, L]) of `size` rows: the chosen ones, and copies of them."""
    ids, mask = inputs.rectangle([rows[i] for i in chosen], model.vocab.pad)
    copies, more = np.arange(size) % len(chosen), ((0, 0), (0, width - ids.shape[1]))
    return np.pad(ids, more, constant_values=model.vocab.pad or 0)[copies], np.pad(mask, more)[
        copies
    ]


def _agree(model: Pretrained, block: tuple[np.ndarray, ...], few: int) -> bool:
    """Returns whether the first rows of a block have the same bits without the others.
    Tried once for each length."""
    known, width = model._agreeing, block[0].shape[1]
    if width not in known:
        states = [
            model(*(part[:size] for part in block), logits=False).hidden[:few]
            for size in (few, len(block[0]))
        ]
        known[width] = states[0].tobytes() == states[1].tobytes()
    return known[width]


def _vectors(
    model: Pretrained, modes: Sequence[str], layers: Sequence[Dense], ids, mask, *, skip: int
) -> np.ndarray:
    """Returns the vectors [B, F] of rows, pooled without their first `skip` tokens.
    Without modes, the encoder's own."""
    output = model(ids, mask, logits=False)
    if not modes:
        return output.vectors.astype(np.float32)
    states = output.source if makes_vector(model.module.encoder) else output.hidden
    hidden = states.astype(np.float32)
    mask = np.where(np.arange(mask.shape[1]) < skip, 0, mask)
    pooled_rows = np.concatenate([pooled(mode, hidden, mask) for mode in modes], -1)
    for layer in layers:
        pooled_rows = through(layer, pooled_rows)
    return pooled_rows
