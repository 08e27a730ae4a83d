"""The tokens of a corpus that are nearest to the tokens of a text (Hoover et al. 2020, exBERT).

Tokens are compared by the cosine of the states of a layer, and of its context: the outputs of its
heads, weighted means of values, each of unit length. The comparison is exact: the corpus is read
once, and the best are kept.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ptm_jax.core.errors import UserError
from ptm_jax.core.towers import Tower
from ptm_jax.core.types import Array, Batch, Params
from ptm_jax.data.tokenizers import pieces
from ptm_jax.inference import bars, inputs
from ptm_jax.inference.saliency.attention_pages import exposed, shapes
from ptm_jax.inference.saliency.html_pages import Page, packed
from ptm_jax.inference.saliency.predicted import shown
from ptm_jax.inference.streams.nearest_lines import Best
from ptm_jax.inference.text import filling, tags

if TYPE_CHECKING:
    from ptm_jax.core.networks import Network
    from ptm_jax.inference.pretrained import Pretrained

SENTENCES = 1024
"""Sentences that are read at once."""
ROOM = 512
"""Tokens of a part of a sentence, for a model of rows of any length."""


class Sentence(NamedTuple):
    """Words, and their tags or none."""

    words: Sequence[str]
    tags: Sequence[str] | None = None


class Neighbours(NamedTuple):
    """The nearest tokens of a corpus, best first.

    scores  [S, T, top] cosines, by space and token of the text
    places  [S, T, top, 2] number of the sentence, and of the word in it
    """

    scores: np.ndarray
    places: np.ndarray


def context_page(
    model: Pretrained, text: str, sentences: Sequence[Sentence | Sequence[str]], *,
    layer: int | None = None, top: int = 20, batch: int = 32,
) -> Page:  # fmt: skip
    """Returns the page of the nearest tokens in the sentences. Raises UserError.

    sentences  their words, with or without tags
    layer      the layer whose state, context and single heads are compared; None: the states and
               contexts of all layers
    """
    sentences = [x if isinstance(x, Sentence) else Sentence(x) for x in sentences]
    if top < 1:
        raise UserError(f"--top is {top}; it must be at least 1")
    spaces = spaces_of(model, layer)
    near, tokens = neighbours(model, text, sentences, spaces=spaces, top=top, batch=batch)
    used, places = np.unique(near.places.reshape(-1, 2), axis=0, return_inverse=True)
    numbers, sentence_places = np.unique(used[:, 0], return_inverse=True)
    chosen = [sentences[number] for number in numbers]
    shape = near.scores.shape
    data = {
        "pieces": tokens,
        "spaces": list(spaces.names),
        "shape": list(shape),
        "words": [list(one.words) for one in chosen],
        "tags": None if any(one.tags is None for one in chosen) else [list(x.tags) for x in chosen],
        "tokens": np.stack([sentence_places, used[:, 1]], 1).tolist(),
        "scores": packed(near.scores.astype("<f4")),
        "places": packed(places.reshape(shape).astype("<u4")),
    }
    document = {
        "tokens": tokens,
        "spaces": {
            name: [
                [
                    {"word": sentences[s].words[w], "score": round(float(x), 4),
                     "sentence": int(s), "place": int(w)}
                    for x, (s, w) in zip(row, where, strict=True)
                ]
                for row, where in zip(scores, several, strict=True)
            ]
            for name, scores, several in zip(spaces.names, near.scores, near.places, strict=True)
        },
    }  # fmt: skip
    about = (
        f"The {shape[2]} nearest tokens of {len(sentences):,} sentences to each token of the text, "
        "by the cosine of a layer's states, or of its context: the outputs of its heads."
    )
    return Page(f"{model.system.name}: nearest contexts", "contexts", data, about, document)


class Spaces(NamedTuple):
    """The network whose attention gives the outputs of its heads (None: it cannot), the layer whose
    heads are apart (None: all layers together), and the names [S] of the vectors of a token."""

    contexts: Network | None
    layer: int | None
    names: tuple[str, ...]


def neighbours(
    model: Pretrained, text: str, sentences: Sequence[Sentence], *,
    spaces: Spaces, top: int, batch: int,
) -> tuple[Neighbours, list[str]]:  # fmt: skip
    """Returns the nearest tokens of the sentences, and the tokens [T] of the text."""
    asked = list(_vectors(model, _records(model, text), spaces, batch))
    if len(asked) != 1:
        raise UserError("the text is empty, or longer than a row of the model; give a shorter one")
    queries, _, ids = asked[0]
    best = [Best.of(len(ids), top) for _ in spaces.names]
    several, count = [np.zeros((0, 2), np.int64)], 0
    with bars.bar(len(sentences), "sentence") as bar:
        for start in range(0, len(sentences), SENTENCES):
            part = sentences[start : start + SENTENCES]
            records = tags.records_of(model._tokenizer(), [one.words for one in part])
            for vectors, places, _ in _vectors(model, records, spaces, batch):
                for one, mine, theirs in zip(best, queries, vectors, strict=True):
                    one.add(mine @ theirs.T, count)
                count += len(places)
                several.append(places + [start, 0])
            bar.update(len(part))
    if count < top:
        raise UserError(f"the sentences have {count} tokens; --top {top} needs as many")
    scores, indices = (
        np.stack([one.scores for one in best]),
        np.stack([one.indices for one in best]),
    )
    tokenizer = model._tokenizer()
    tokens = [shown(tokenizer, int(i)) for i in ids]
    return Neighbours(scores, np.concatenate(several)[indices]), tokens


def spaces_of(model: Pretrained, layer: int | None) -> Spaces:
    """Returns the vectors of a token that are compared. Raises UserError."""
    encoder, name = model.module.encoder, model.system.name
    if encoder is None or encoder.gives_vectors or model.pair:
        raise UserError(f"{name} has no layers of states for tokens; take an encoder")
    contexts = exposed(model, "contexts")
    encoded = shapes(model, model.module if contexts is None else contexts)
    if encoded.layers is None:
        raise UserError(f"{name} gives no states of layers of one width; take another encoder")
    count = len(encoded.layers) - 1
    if layer is None:
        names = [f"state of layer {n}" for n in range(count + 1)]
        if contexts is not None:
            names += [f"context of layer {n + 1}" for n in range(len(encoded.attention))]
        return Spaces(contexts, layer, tuple(names))
    if not 0 <= layer <= count:
        raise UserError(f"--layer is {layer}; {name} has layers 0 to {count}")
    names = [f"state of layer {layer}"]
    if layer and contexts is not None:
        heads = range(encoded.attention.shape[-2])
        names += [f"context of layer {layer}", *(f"head {h + 1} of layer {layer}" for h in heads)]
    return Spaces(contexts, layer, tuple(names))


def _records(model: Pretrained, text: str) -> list[dict[str, np.ndarray]]:
    """Returns the record of the words of a text, with the masks that a model fills."""
    parts = [part.split() for part in filling.parts_of(model, text)]
    words: list[np.ndarray] = []
    for number, part in enumerate(pieces.words_of(model._tokenizer(), parts)):
        words += [*[np.array([model.vocab.mask], np.int32)][: number > 0], *part]
    sizes = np.array([len(ids) for ids in words], np.int32)
    return [{"ids": np.concatenate(words), "sizes": sizes}] if words else []


def _vectors(
    model: Pretrained, records: Sequence[Mapping[str, np.ndarray]], spaces: Spaces, batch: int
) -> Iterator[tuple[list[np.ndarray], np.ndarray, np.ndarray]]:
    """Yields the unit vectors [n, D] of each space, the places [n, 2] of the words, and the ids [n]
    of the tokens of batches of sentences. Longer sentences than a row are read in parts."""
    frame = inputs.framed(model, np.array([-1], np.int32))
    before, after = int(np.flatnonzero(frame == -1)[0]), len(frame)
    room = ROOM if model.limit is None else model.limit - after + 1
    rows, places = [], []
    for number, record in enumerate(records):
        words = np.repeat(np.arange(len(record["sizes"])), record["sizes"])
        for first in range(0, len(words), room):
            rows.append(record["ids"][first : first + room])
            places.append(
                np.stack([np.full(len(rows[-1]), number), words[first : first + room]], 1)
            )
    framed = [inputs.framed(model, row) for row in rows]
    for chosen in inputs.batches(framed, batch):
        fields = model._batch(*inputs.rectangle([framed[i] for i in chosen], model.vocab.pad))
        module = model.module if spaces.contexts is None else spaces.contexts
        several = _forward(
            module, (spaces.contexts is not None, spaces.layer), model.weights, fields
        )
        parts = [(n, np.s_[before : before + len(rows[i])]) for n, i in enumerate(chosen)]
        yield (
            [np.concatenate([x[n, part] for n, part in parts]) for x in map(np.asarray, several)],
            np.concatenate([places[i] for i in chosen]),
            np.concatenate([rows[i] for i in chosen]),
        )


@functools.partial(jax.jit, static_argnums=(0, 1))
def _forward(
    module: Network, asked: tuple[bool, int | None], params: Params, batch: Batch
) -> list[Array]:
    """Returns the unit vectors [B, L, D] of each space. See `Spaces`."""
    encoded = Tower(module, params)(batch)
    has_contexts, layer = asked
    states = encoded.layers.at[-1].set(encoded.hidden)
    vectors = [*_unit(states)] if layer is None else [_unit(states[layer])]
    if not has_contexts or layer == 0:
        return vectors
    heads = _unit(encoded.attention)  # [N, B, L, H, K]
    contexts = _unit(heads.reshape(*heads.shape[:3], -1))
    if layer is None:
        return [*vectors, *contexts]
    return [*vectors, contexts[layer - 1], *jnp.moveaxis(heads[layer - 1], -2, 0)]


def _unit(vectors: Array) -> Array:
    vectors = vectors.astype(jnp.float32)
    return vectors / jnp.maximum(jnp.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)
