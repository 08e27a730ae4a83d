"""Pages of the attention of a text: every head of every layer, and the neurons of a head.

The grid of heads is the model view of Vig (2019), the lines from a token to the tokens that it
reads are the head view, and products of queries and keys are the neuron view.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np

from ptm_jax.core.errors import UserError
from ptm_jax.core.spec import with_field
from ptm_jax.core.towers import Tower
from ptm_jax.core.types import Array, Batch, Encoded, Params, record
from ptm_jax.encoders.transformer.seq2seq import is_pair
from ptm_jax.inference.forward_pass import forward
from ptm_jax.inference.saliency.html_pages import Page, packed
from ptm_jax.inference.saliency.predicted import shown
from ptm_jax.inference.text import filling
from ptm_jax.nn.attention.multihead import Attention, Projected, with_maps
from ptm_jax.nn.attention.reduced_maps import reduced

if TYPE_CHECKING:
    from ptm_jax.core.networks import Network
    from ptm_jax.inference.pretrained import Pretrained

GREATEST = 32
"""Weights of a token, at most."""
NEAR = 0.01
"""Two probabilities that differ by less are those of the same attention."""


@record
class Greatest:
    """The greatest weights of each token, and means over all of them.

    weights   [N, H, L, K]
    places    [N, H, L, K] of the tokens that are read
    bits      [N, H, L] entropy of the weights
    distance  [N, H, L] mean distance of the tokens that are read
    """

    weights: Array
    places: Array
    bits: Array
    distance: Array


def greatest(maps: Array, count: int) -> Greatest:
    """Returns the `count` greatest weights of each token, of maps [..., L, L]."""
    maps = jnp.asarray(maps, jnp.float32)
    weights, places = jax.lax.top_k(maps, count)
    rows, columns = maps.shape[-2:]
    distance = jnp.abs(jnp.arange(rows)[:, None] - jnp.arange(columns))
    bits = -(maps * jnp.log2(jnp.maximum(maps, 1e-12))).sum(-1)
    return Greatest(weights, places, bits, (maps * distance).sum(-1))


def attention_page(model: Pretrained, text: str) -> Page:
    """Returns the page of the maps of all heads; of an encoder with a decoder, those of the
    encoder. Raises UserError for a model without attention."""
    ids, pieces, parts = _attended(model, text)
    document = {
        "tokens": pieces,
        "distance": parts.distance.mean(-1).round(4).tolist(),
        "bits": parts.bits.mean(-1).round(4).tolist(),
    }
    special = np.flatnonzero(np.isin(ids, list(model.vocab.specials))).tolist()
    return page(f"{model.system.name}: attention", pieces, parts, special, document)


def page(
    title: str, pieces: Sequence[str], parts: Greatest, special: Collection[int] = (),
    document: dict[str, object] | None = None,
) -> Page:  # fmt: skip
    """Returns the page of the attention of a text with `pieces` [L].

    The page states the share of the attention that the greatest weights hold. `special` has the
    places of special tokens.
    """
    layers, heads, length, count = parts.weights.shape
    about = (
        f"{layers} layers with {heads} heads each, a layer in a row. A cell is a head: the token "
        "that reads goes down, the token that is read goes right."
    )
    if count < length:
        share = float(np.mean(parts.weights.sum(-1)))
        about += f" A token keeps its {count} greatest weights, {share:.1%} of its attention."
    rounded = np.round(255 * np.clip(parts.weights, 0, 1)).astype(np.uint8)
    data = {
        "pieces": list(pieces),
        "special": list(special),
        "shape": [layers, heads, length, count],
        "places": [packed(layer.astype("<u2")) for layer in np.asarray(parts.places)],
        "weights": [packed(layer) for layer in rounded],
    }
    return Page(title, "attention", data, about, document or {})


def neuron_page(model: Pretrained, text: str) -> Page:
    """Returns the page of the queries and keys of all heads, and of their products.

    Raises UserError for an encoder whose attention does not expose queries and keys.
    """
    ids, pieces, parts = _attended(model, text)
    module = exposed(model, "heads")
    if module is None:
        raise UserError(
            f"{model.system.name} has no heads with queries and keys; take --by attention"
        )
    name = "source_attention" if model.pair else "attention"
    heads = forward(module, None, (name,), model.weights, model._batch(ids[None]))[name]
    length = len(ids)
    queries, keys = (
        np.asarray(part, np.float32)[:, 0, :length].transpose(0, 2, 1, 3)
        for part in (heads.query, heads.key)
    )
    scale = float(np.ravel(heads.scale)[0])
    layers, count, _, width = queries.shape
    hidden = np.triu(np.full((length, length), np.inf), 1) if model.causal else 0.0
    error = np.zeros(layers)
    for n in range(layers):
        products = queries[n] @ keys[n].swapaxes(-1, -2) * scale - hidden
        products = np.exp(products - products.max(-1, keepdims=True))
        products = products / products.sum(-1, keepdims=True)
        products = np.take_along_axis(products, parts.places[n], -1)
        error[n] = np.abs(products - parts.weights[n]).max()
    about = (
        "A token's query is multiplied with the key of each token, neuron by neuron. The sum of "
        f"the products, times {scale:.4g}, is the score, and the softmax of the scores the weight."
    )
    if error.max() > NEAR:
        about += (
            " This model's weights have other terms too (distances, windows, or masks): up to "
            f"{error.max():.2f} lies between its weights and those of the products alone."
        )
    data = {"pieces": pieces, "shape": [layers, count, length, width], "scale": scale}
    data["causal"] = model.causal
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


def _attended(model: Pretrained, text: str) -> tuple[np.ndarray, list[str], Greatest]:
    """Returns the ids and pieces [L] of a text, and the greatest weights of its tokens. The maps of
    a layer are reduced in the layer: those of all layers are never held at once."""
    ids = filling.ids_of(model, text)
    length, module = len(ids), with_maps(model.module)
    parts = _greatest(module, min(GREATEST, length), model.weights, model._batch(ids[None]))
    if parts is None:
        raise UserError(f"{model.system.name} has no attention; give an encoder with attention")
    tokenizer = model._tokenizer()
    parts = jax.tree.map(lambda part: np.asarray(part)[:, 0, :, :length], parts)
    return ids, [shown(tokenizer, int(i)) for i in ids], parts


@functools.partial(jax.jit, static_argnums=(0, 1))
def _greatest(module: Network, count: int, params: Params, batch: Batch) -> Greatest | None:
    """Returns the greatest weights of a batch, with an axis B after N; None without attention."""
    with reduced(functools.partial(greatest, count=count)):
        encoded = Tower(module, params)(batch)
    extra = encoded.extra or {}
    maps = extra.get("source_attention") if is_pair(module.encoder) else encoded.attention
    if not isinstance(maps, jax.Array):
        return maps
    return greatest(maps, count) if maps.size else None
