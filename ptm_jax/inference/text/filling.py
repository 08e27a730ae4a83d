"""Mask filling: the most probable tokens for each [MASK] or <mask> of a text."""

from __future__ import annotations

import functools
import re
import textwrap
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ptm_jax.core.errors import UserError
from ptm_jax.core.networks import Network
from ptm_jax.core.towers import Tower
from ptm_jax.core.types import Array, Batch, Params
from ptm_jax.corruptions.masking.noise import Reconstruct
from ptm_jax.encoders.transformer.seq2seq import shifted
from ptm_jax.inference import inputs
from ptm_jax.inference.decoding.logits import NEVER
from ptm_jax.inference.decoding.settings import bucket
from ptm_jax.inference.text import generating
from ptm_jax.inference.uses import Request, Result, Use

if TYPE_CHECKING:
    from ptm_jax.data.tokenizers.tokenizing import Tokenizer
    from ptm_jax.inference.pretrained import Pretrained


BATCH = 32


class Filling(NamedTuple):
    """A token for the mask: its text, its probability, and the text with it.

    The probability of context2vec is the cosine of word and context.
    """

    token: str
    probability: float
    sentence: str


def fill(model: Pretrained, texts: Sequence[str], top: int) -> list[list[list[Filling]]]:
    """`Pretrained.fill_mask`."""
    check_fills(model)
    if top < 1 or top > model.vocab.size - len(model.vocab.specials):
        raise UserError(
            f"top is {top}; it must be 1 to {model.vocab.size - len(model.vocab.specials)}"
        )
    tokenizer = model._tokenizer()
    parts, rows = masked_rows(model, texts)
    predictions: list[Any] = [None] * len(rows)
    masks = np.array([bucket(len(pieces) - 1) for pieces in parts], np.int64)
    for count in np.unique(masks):  # the shape of a batch depends on its masks too
        alike = np.flatnonzero(masks == count)
        for chosen in inputs.batches([rows[i] for i in alike], BATCH):
            filled = _likeliest(model, [rows[i] for i in alike[chosen]], top)
            for index, fillings in zip(alike[chosen], filled, strict=True):
                predictions[index] = fillings
    return [
        [_fillings(tokenizer, pieces, place, *best) for place, best in enumerate(several)]
        for pieces, several in zip(parts, predictions, strict=True)
    ]


def check_fills(model: Pretrained) -> None:
    """Raises UserError for a model that fills no masks."""
    if mask_head(model) is None or model.vocab.mask is None:
        other = (
            "load a run of a masked language model, or a published folder of one (BertForMaskedLM)"
        )
        if model.pair and model.generates:
            other = "its decoder writes other text than it reads: use generate"
        if filler := next(
            (name for name, part in model.system.towers.items() if "mlm" in part.heads), None
        ):
            other = f"its tower {filler} does: give --tower {filler} (tower={filler!r} of load)"
        raise UserError(f"{model.system.name} does not fill masks; {other}")


def masked_rows(
    model: Pretrained, texts: Sequence[str]
) -> tuple[list[list[str]], list[np.ndarray]]:
    """Returns the parts of each text between its masks, and its ids [l] with special tokens.
    Raises UserError for a text without a mask."""
    tokenizer = model._tokenizer()
    parts = [_split(model, text) for text in texts]
    for number, pieces in enumerate(parts):
        if len(pieces) == 1:
            shown = textwrap.shorten(texts[number], 60, placeholder=" ...")
            raise UserError(f"text {number + 1} has no mask: {shown!r}; write [MASK] for a word")
    return parts, [_ids(model, tokenizer, pieces, number) for number, pieces in enumerate(parts)]


def parts_of(model: Pretrained, text: str) -> list[str]:
    """Returns the parts of a text between its masks: one, for a model that fills none."""
    fills = mask_head(model) is not None and model.vocab.mask is not None
    return _split(model, text) if fills else [text]


def ids_of(model: Pretrained, text: str) -> np.ndarray:
    """Returns the ids [l] of a text with special tokens, and with the masks that a model fills."""
    masked = len(parts_of(model, text)) > 1
    return masked_rows(model, [text])[1][0] if masked else model.ids_of([text])[0]


def _split(model: Pretrained, text: str) -> list[str]:
    marks = {"[MASK]", "<mask>", model._tokenizer().piece(model.vocab.mask)}
    return re.split("|".join(re.escape(mark) for mark in sorted(marks)), text)


def _ids(model: Pretrained, tokenizer: Tokenizer, pieces: Sequence[str], number: int) -> np.ndarray:
    """Returns the ids of a text split at its masks.
    In byte-level BPE the space before a mask belongs to the filling."""
    rows = tokenizer.encode_batch([piece.rstrip() for piece in pieces[:-1]] + [pieces[-1]])
    ids: list[int] = []
    for row in rows[:-1]:
        ids += [*row, model.vocab.mask]
    ids = inputs.framed(model, [*ids, *rows[-1]])
    if model.limit is not None:
        inputs.check_length(len(ids), model.limit, f"text {number + 1}")
    return ids


def _likeliest(
    model: Pretrained, rows: Sequence[np.ndarray], top: int
) -> list[list[tuple[np.ndarray, np.ndarray]]]:
    """Returns (ids [top], probabilities [top]) for every mask of every row."""
    batch = batch_of_rows(model, rows)
    places = [np.flatnonzero(row == model.vocab.mask) for row in rows]
    positions = np.zeros((len(batch["input_ids"]), bucket(max(map(len, places)))), np.int32)
    for number, place in enumerate(places):
        positions[number, : len(place)] = place
    count = min(bucket(top, 8), model.vocab.size)
    specials = (*model.vocab.specials, *_unknown(model))
    question = _Question(model.module, mask_head(model), count, specials)
    best, probabilities = _fill(question, model.weights, batch, positions)
    best, probabilities = np.asarray(best)[..., :top], np.asarray(probabilities)[..., :top]
    return [
        [(best[r, p], probabilities[r, p]) for p in range(len(place))]
        for r, place in enumerate(places)
    ]


def batch_of_rows(model: Pretrained, rows: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
    """Returns the padded batch of rows with masks; a decoder reads the row too (BART)."""
    ids, mask = inputs.rectangle(rows, model.vocab.pad)
    batch = model._batch(ids, mask)
    if model.pair and model.module.encoder.start is None:
        start = generating.start_of(model)
        batch["decoder_input_ids"] = np.asarray(
            shifted(batch["input_ids"], batch["segment_ids"], start)
        )
    return batch


def mask_head(model: Pretrained) -> str | None:
    """Returns the head that fills masks.
    Word vectors do it for an encoder in which no token sees itself (context2vec)."""
    if model.head == "mlm" or _reconstructs(model):
        return model.head
    if model.module.encoder.direction != "both":
        return None
    return next((name for name, head in model.module.heads.items() if head.gives_rows), None)


def _unknown(model: Pretrained) -> tuple[int, ...]:
    """Returns the unknown word, if it has a vector that nothing trains."""
    vectors = model.module.heads[mask_head(model)].gives_rows
    return (model.vocab.unk,) if vectors and model.vocab.unk is not None else ()


def _reconstructs(model: Pretrained) -> bool:
    """Whether the decoder reconstructs the whole row, and thus predicts the text at a mask
    (BART)."""
    return model.pair and model.head == "lm" and isinstance(model.system.corruption, Reconstruct)


class _Question(NamedTuple):
    """A head of a network, the number of its best words, and the ids that it may not predict."""

    module: Network
    head: str
    count: int
    specials: tuple[int, ...]


@functools.partial(jax.jit, static_argnums=0)
def _fill(question: _Question, params: Params, batch: Batch, positions: Array):
    """Returns (ids, probabilities) [B, P, count] at positions [B, P].
    The vocabulary head runs only there."""
    module, head, count, specials = question
    tower = Tower(module, params)
    hidden = jnp.take_along_axis(tower(batch).hidden, positions[..., None], 1)
    vectors = module.heads[head].gives_rows
    if vectors:
        words = tower.head(head, jnp.arange(module.heads[head].vocab.size))[0]
        scores = jnp.einsum("bpd,vd->bpv", _unit(hidden), _unit(words))
    else:
        scores = jax.nn.log_softmax(tower.head(head, hidden).logits(), -1)
    if specials:
        scores = scores.at[..., jnp.array(specials)].set(NEVER)
    values, ids = jax.lax.top_k(scores, count)
    return ids, values if vectors else jnp.exp(values)


def _unit(vectors):
    vectors = vectors.astype(jnp.float32)
    return vectors / jnp.maximum(jnp.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)


def _fillings(
    tokenizer: Tokenizer, pieces: Sequence[str], place: int, ids, probabilities
) -> list[Filling]:
    mark = "[MASK]"
    left, right = mark.join(pieces[: place + 1]), mark.join(pieces[place + 1 :])
    fillings = []
    for index, probability in zip(ids, probabilities, strict=True):
        token = (tokenizer.decode([int(index)]).strip() or tokenizer.piece(index)).removeprefix(
            "##"
        )
        glued = bool(tokenizer.continuations[index])
        before = left.rstrip() if glued else left
        shown = f"##{token}" if tokenizer.piece(index).startswith("##") else token
        fillings.append(Filling(shown, float(probability), f"{before}{token}{right}"))
    return fillings


def _results(model: Pretrained, request: Request) -> list[Result]:
    fillings = model.fill_mask(request.text, top=request.top)
    return [
        {"text": text, "masks": [[filling._asdict() for filling in mask] for mask in masks]}
        for text, masks in zip(request.text, fillings, strict=True)
    ]


def _lines(result: Result) -> Iterator[str]:
    yield result["text"]
    masks = result["masks"]
    for number, fillings in enumerate(masks, 1):
        if len(masks) > 1:
            yield f"  mask {number}"
        width = max(len(filling["token"]) for filling in fillings)
        for filling in fillings:
            token = f"{filling['token']:<{width}}"
            yield f"  {filling['probability']:6.1%}  {token}  {filling['sentence']}"


USES = (
    Use(
        name="fill-mask",
        run=_results,
        lines=_lines,
        help="words in the place of masks",
        columns=("text", "masks"),
        probe="[MASK]",
    ),
)
