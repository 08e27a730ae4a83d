"""Pages of the attention of a text: every head of every layer, and the neurons of a head.

The grid of heads is the model view of Vig (2019), the lines from a token to the tokens that it
reads are the head view, and products of queries and keys are the neuron view.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import jax
import numpy as np

from ptm_jax.core.errors import UserError
from ptm_jax.core.spec import with_field
from ptm_jax.core.towers import Tower
from ptm_jax.core.types import Encoded
from ptm_jax.inference.forward_pass import forward
from ptm_jax.inference.saliency.html_pages import Page, packed
from ptm_jax.nn.attention.multihead import Attention, Projected

if TYPE_CHECKING:
    from ptm_jax.core.networks import Network
    from ptm_jax.inference.pretrained import Pretrained

GREATEST = 32
"""Weights of a token, at most."""
NEAR = 0.01
"""Two probabilities that differ by less are those of the same attention."""


def attention_page(model: Pretrained, text: str) -> Page:
    """Returns the page of the maps of all heads. Raises UserError for a model without attention."""
    ids, pieces, maps = _attended(model, text)
    places = np.arange(len(pieces))
    distance = (maps * np.abs(places[:, None] - places)).sum(-1).mean(-1)
    bits = -(maps * np.log2(np.maximum(maps, 1e-12))).sum(-1).mean(-1)
    document = {
        "tokens": pieces, "distance": distance.round(4).tolist(), "bits": bits.round(4).tolist()
    }  # fmt: skip
    special = np.flatnonzero(np.isin(ids, list(model.vocab.specials))).tolist()
    return page(f"{model.system.name}: attention", pieces, maps, special, document)


def page(
    title: str, pieces: Sequence[str], maps: np.ndarray, special: Collection[int] = (),
    document: dict[str, object] | None = None,
) -> Page:  # fmt: skip
    """Returns the page of the attention maps [N, H, L, L] of a text with `pieces` [L].

    A token keeps its `GREATEST` weights, so that long texts stay quick. The page states the share
    of the attention that they hold. `special` has the places of special tokens.
    """
    layers, heads, length, _ = maps.shape
    count = min(GREATEST, length)
    places = np.argpartition(-maps, count - 1, axis=-1)[..., :count]
    weights = np.take_along_axis(maps, places, -1)
    about = (
        f"{layers} layers with {heads} heads each, a layer in a row. A cell is a head: the token "
        "that reads goes down, the token that is read goes right."
    )
    if count < length:
        share = float(weights.sum(-1).mean())
        about += f" A token keeps its {count} greatest weights, {share:.1%} of its attention."
    rounded = np.round(255 * np.clip(weights, 0, 1)).astype(np.uint8)
    data = {
        "pieces": list(pieces),
        "special": list(special),
        "shape": [layers, heads, length, count],
        "places": [packed(layer.astype("<u2")) for layer in places],
        "weights": [packed(layer) for layer in rounded],
    }
    return Page(title, "attention", data, about, document or {})


def neuron_page(model: Pretrained, text: str) -> Page:
    """Returns the page of the queries and keys of all heads, and of their products.

    Raises UserError for an encoder whose attention does not expose queries and keys.
    """
    ids, pieces, maps = _attended(model, text)
    module = exposed(model, "heads")
    if module is None:
        raise UserError(
            f"{model.system.name} has no heads with queries and keys; take --by attention"
        )
    batch = model._batch(ids[None])
    heads = forward(module, None, ("attention",), model.weights, batch)["attention"]
    length = len(ids)
    queries, keys = (
        np.asarray(part, np.float32)[:, 0, :length].transpose(0, 2, 1, 3)
        for part in (heads.query, heads.key)
    )
    scale = float(np.ravel(heads.scale)[0])
    products = queries @ keys.swapaxes(-1, -2) * scale
    products = np.exp(products - products.max(-1, keepdims=True))
    error = np.abs(products / products.sum(-1, keepdims=True) - maps).max((1, 2, 3))
    about = (
        "A token's query is multiplied with the key of each token, neuron by neuron. The sum of "
        f"the products, times {scale:.4g}, is the score, and the softmax of the scores the weight."
    )
    if error.max() > NEAR:
        about += (
            " This model's weights have other terms too (distances, windows, or masks): up to "
            f"{error.max():.2f} lies between its weights and those of the products alone."
        )
    layers, count, _, width = queries.shape
    data = {"pieces": pieces, "shape": [layers, count, length, width], "scale": scale}
    for name, array in (("queries", queries), ("keys", keys)):
        largest = np.maximum(np.abs(array).max(-1), 1e-12)
        numbers = np.rint(array / largest[..., None] * 127).astype(np.int8)
        data[name] = [packed(layer) for layer in numbers]
        data[f"most_{name}"] = [packed(layer.astype("<f4")) for layer in largest]
    document = {"tokens": pieces, "scale": scale, "difference": error.round(4).tolist()}
    return Page(f"{model.system.name}: neurons", "neurons", data, about, document)


def exposed(model: Pretrained, what: str) -> Network | None:
    """Returns the network whose attention gives "heads" (queries, keys and values) or "contexts" in
    the place of its maps, or None where it cannot."""
    heads = shapes(model, with_field(model.module, "expose", "heads", Attention)).attention
    if len(jax.tree.leaves(heads)) != len(Projected.__dataclass_fields__):
        return None
    return with_field(model.module, "expose", what, Attention)


def shapes(model: Pretrained, module: Network) -> Encoded:
    """Returns the shapes of what a network makes of a row of four tokens."""
    batch = model._batch(np.zeros((1, 4), np.int32))
    return jax.eval_shape(lambda params: Tower(module, params)(batch), model.weights)


def rollout(maps: np.ndarray) -> np.ndarray:
    """Returns how much of each input token is in each output token [L, L] (Abnar and Zuidema 2020,
    Eq. 1): the product over the layers of half the mean of the heads and half the identity."""
    length = maps.shape[-1]
    flow = np.eye(length)
    for layer in maps.mean(1):
        flow = (0.5 * layer + 0.5 * np.eye(length)) @ flow
    return flow


def _attended(model: Pretrained, text: str) -> tuple[np.ndarray, list[str], np.ndarray]:
    """Returns the ids and pieces [L] of a text, and its maps [N, H, L, L]."""
    (ids,) = model.ids_of([text])
    maps = model(ids[None], attention=True, logits=False).attention
    if maps is None or not maps.shape[2]:
        raise UserError(f"{model.system.name} has no attention; give an encoder with attention")
    tokenizer = model._tokenizer()
    return ids, [tokenizer.piece(int(i)) for i in ids], maps[:, 0]
