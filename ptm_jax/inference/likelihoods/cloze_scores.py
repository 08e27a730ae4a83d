"""Scores of words at a mask, and of whole sentences, under a masked or a causal model. A detector
of replaced tokens (ELECTRA) scores sentences."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ptm_jax.core.errors import UserError
from ptm_jax.core.networks import Network
from ptm_jax.core.towers import Tower
from ptm_jax.core.types import Array, Batch, Params
from ptm_jax.inference import inputs
from ptm_jax.inference.decoding.settings import bucket
from ptm_jax.inference.text import filling
from ptm_jax.nn.embeddings.moved import movable
from ptm_jax.objectives.text import detection

if TYPE_CHECKING:
    from ptm_jax.inference.pretrained import Pretrained

BATCH = 64
"""Rows of a batch."""

By = Literal["piece", "word"]
DETECTOR = "rtd"


class _Reading(NamedTuple):
    """A network, and the head that predicts the tokens."""

    module: Network
    head: str


def at_masks(model: Pretrained, texts: Sequence[str], batch: int = BATCH) -> Iterator[np.ndarray]:
    """Yields the log-probabilities [V] of the tokens at the only mask of each text, in order.

    Raises UserError for a model that fills no masks, and a text without or with several masks.
    """
    _reading(model)
    parts, rows = filling.masked_rows(model, texts)
    for number, pieces in enumerate(parts, 1):
        if len(pieces) > 2:
            raise UserError(f"text {number} has {len(pieces) - 1} masks; give one")
    yield from at_places(model, rows, [masks_of(model, row)[0] for row in rows], batch)


def at_places(
    model: Pretrained, rows: Sequence[np.ndarray], places: Sequence[int], batch: int = BATCH,
    moves: Sequence[tuple[int, np.ndarray]] | None = None,
) -> Iterator[np.ndarray]:  # fmt: skip
    """Yields the log-probabilities [V] of the tokens at one place of each row of ids, in order.

    moves  (place, vector [D]) of each row: the vector is added to the word vector at the place
    """
    reading = _reading(model)
    if moves is not None:
        reading = reading._replace(module=movable(reading.module))
    for start in range(0, len(rows), 16 * batch):  # bounds the scores that wait for their turn
        block = rows[start : start + 16 * batch]
        scores = [np.zeros(0)] * len(block)
        for chosen in inputs.batches(block, batch):
            fields = filling.batch_of_rows(model, [block[i] for i in chosen])
            if moves is not None:
                size = (*fields["input_ids"].shape, len(moves[0][1]))
                fields["perturbation"] = np.zeros(size, np.float32)
                for row, (place, vector) in enumerate(moves[start + i] for i in chosen):
                    fields["perturbation"][row, place] = vector
            where = _rows([places[start + i] for i in chosen], len(fields["input_ids"]))
            table = _log_probabilities(reading, model.weights, fields, where[:, None])
            for place, row in zip(chosen, np.asarray(table), strict=False):
                scores[place] = row[0]
        yield from scores


def masks_of(model: Pretrained, row: np.ndarray) -> list[int]:
    """Returns the places of the masks of a row of ids."""
    return np.flatnonzero(row == model.vocab.mask).tolist()


def span_scores(
    model: Pretrained, rows: Sequence[np.ndarray], spans: Sequence[Sequence[int]],
    batch: int = BATCH, *, greedy: bool = False,
) -> np.ndarray:  # fmt: skip
    """Returns the log-probability [n] float64 of the tokens at the places `spans` of each row of
    ids, all of which are masked. `greedy` puts the likeliest of these tokens in its place first,
    and reads the others anew (Davison et al. 2019, section 3.2)."""
    reading, scores = _reading(model), np.zeros(len(rows))
    rows, spans = list(map(np.array, rows)), [list(places) for places in spans]
    tokens = [row.copy() for row in rows]
    for row, places in zip(rows, spans, strict=True):
        row[places] = model.vocab.mask
    while active := [i for i, places in enumerate(spans) if places]:
        for chosen in inputs.batches([rows[i] for i in active], batch):
            part = [active[i] for i in chosen]
            fields = filling.batch_of_rows(model, [rows[i] for i in part])
            size = len(fields["input_ids"]), bucket(max(len(spans[i]) for i in part), 4)
            places, targets = np.zeros((2, *size), np.int32)
            for n, i in enumerate(part):
                places[n, : len(spans[i])] = spans[i]
                targets[n, : len(spans[i])] = tokens[i][spans[i]]
            table = _of_tokens(reading, model.weights, fields, places, targets)
            for i, values in zip(part, np.asarray(table, np.float64), strict=False):
                best = int(np.argmax(values[: len(spans[i])]))
                scores[i] += values[best] if greedy else values[: len(spans[i])].sum()
                rows[i][spans[i][best]] = tokens[i][spans[i][best]]
                spans[i] = spans[i][:best] + spans[i][best + 1 :] if greedy else []
    return scores


def token_of(model: Pretrained, word: str, text: str = "a [MASK]") -> int | None:
    """Returns the id of the token that a word is at the mask of a text, or None for a word of
    several pieces or none, and for the unknown token."""
    before = text.partition("[MASK]")[0].rstrip()
    tokenizer = model._tokenizer()
    plain, full = tokenizer.encode_batch([before, f"{before} {word}".lstrip()])
    ids = list(full[len(plain) :]) if list(full[: len(plain)]) == list(plain) else []
    return int(ids[0]) if len(ids) == 1 and ids[0] != model.vocab.unk else None


def sentence_scores(
    model: Pretrained, texts: Sequence[str], by: By = "piece", batch: int = BATCH,
    step: Callable[[int], None] | None = None,
) -> np.ndarray:  # fmt: skip
    """Returns the score [n] float64 of each sentence, in nats.

    Of a causal model its log-probability. Of a masked model its pseudo-log-likelihood: the sum over
    the tokens of the log-probability of each, where it is masked (Salazar et al. 2020, Eq. 1). `by`
    "word" masks also the later pieces of the token's word (Kauf and Ivanova 2023, "within-word
    left-to-right"). Of a detector of replaced tokens the sum over the tokens of the log-probability
    that each is unchanged. `step` is called with the number of sentences that a block has scored.

    Raises UserError for a model of another kind.
    """
    if model.causal and model.head is not None:
        perplexity = model.perplexity(texts, batch)
        begins = model.vocab.bos is not None
        counts = [len(row) - (not begins) for row in model._tokenizer().encode_batch(list(texts))]
        return -np.log(perplexity) * counts
    if detects(model):
        return _unchanged_scores(model, texts, batch)
    reading, scores = _reading(model), np.zeros(len(texts))
    if model.pair:
        raise UserError(f"{model.system.name} reads and writes; sentences are scored by encoders")
    rows = model.ids_of(texts)
    for start in range(0, len(rows), batch):
        block = rows[start : start + batch]
        copies, owners, places, targets = _masked_copies(model, block, by)
        for chosen in inputs.batches(copies, batch):
            fields = filling.batch_of_rows(model, [copies[i] for i in chosen])
            count = len(fields["input_ids"])
            values = _of_tokens(
                reading, model.weights, fields,
                _rows(places[chosen], count)[:, None], _rows(targets[chosen], count)[:, None],
            )  # fmt: skip
            np.add.at(scores, start + owners[chosen], np.asarray(values)[: len(chosen), 0])
        if step is not None:
            step(len(block))
    return scores


def detects(model: Pretrained) -> bool:
    """Whether the model detects replaced tokens, and fills no masks."""
    return DETECTOR in model.module.heads and filling.mask_head(model) is None


def _unchanged_scores(model: Pretrained, texts: Sequence[str], batch: int) -> np.ndarray:
    rows, scores = model.ids_of(texts), np.zeros(len(texts))
    specials = [id for id in model.vocab.specials if id != model.vocab.unk]
    sign = detection.changed_sign(model.system.objective)
    for chosen in inputs.batches(rows, batch):
        fields = filling.batch_of_rows(model, [rows[i] for i in chosen])
        values = sign * _detected(_Reading(model.module, DETECTOR), model.weights, fields)
        values = -np.logaddexp(0, np.asarray(values, np.float64)) * (fields["segment_ids"] > 0)
        values = values * ~np.isin(fields["input_ids"], specials)
        scores[chosen] = values.sum(1)[: len(chosen)]
    return scores


def _masked_copies(
    model: Pretrained, rows: Sequence[np.ndarray], by: By
) -> tuple[list[np.ndarray], np.ndarray, np.ndarray, np.ndarray]:
    """Returns a copy of its row for each token, with the token masked; its row, place and id."""
    specials = {id for id in model.vocab.specials if id != model.vocab.unk}
    later = model._tokenizer().continuations if by == "word" else None
    copies, facts = [], []
    for owner, row in enumerate(rows):
        for place in np.flatnonzero(~np.isin(row, list(specials))):
            end = place + 1
            while later is not None and end < len(row) and later[row[end]]:
                end += 1
            copy = np.array(row)
            copy[place:end] = model.vocab.mask
            copies.append(copy)
            facts.append((owner, place, row[place]))
    owners, places, targets = np.array(facts, np.int32).reshape(-1, 3).T
    return copies, owners, places, targets


def _reading(model: Pretrained) -> _Reading:
    filling.check_fills(model)
    head = filling.mask_head(model)
    if model.module.heads[head].gives_rows:
        raise UserError(
            f"{model.system.name} compares vectors of words and contexts, and gives no "
            "probabilities; take a masked language model"
        )
    return _Reading(model.module, head)


def _rows(values: np.ndarray, count: int) -> np.ndarray:
    """Returns the values with zeros for the rows that pad a batch."""
    return np.pad(np.asarray(values, np.int32), (0, count - len(values)))


@functools.partial(jax.jit, static_argnums=0)
def _log_probabilities(reading: _Reading, params: Params, batch: Batch, places: Array) -> Array:
    """Returns log-probabilities [B, P, V] at the places [B, P] of each row."""
    tower = Tower(reading.module, params)
    hidden = jnp.take_along_axis(tower(batch).hidden, places[..., None], 1)
    scores = tower.head(reading.head, hidden).logits()
    return jax.nn.log_softmax(scores.astype(jnp.float32), -1)


@functools.partial(jax.jit, static_argnums=0)
def _detected(reading: _Reading, params: Params, batch: Batch) -> Array:
    """Returns the detector's scores [B, L], of one sign for replaced tokens."""
    tower = Tower(reading.module, params)
    encoded = tower(batch)
    return tower.head(reading.head, encoded.hidden).reshape(encoded.hidden.shape[:2])


@functools.partial(jax.jit, static_argnums=0)
def _of_tokens(
    reading: _Reading, params: Params, batch: Batch, places: Array, targets: Array
) -> Array:
    """Returns the log-probabilities [B, P] of tokens at the places [B, P] of each row."""
    scores = _log_probabilities(reading, params, batch, places)
    return jnp.take_along_axis(scores, targets[..., None], -1)[..., 0]
