"""Scores of triples (head, relation, tail) from vectors of entities and relations.

    Translation    -|h + r - t|                          TransE: Bordes et al. 2013, section 2
    Hyperplanes    -|h_ + d - t_|, x_ = x - (w . x) w    TransH: Wang et al. 2014, AAAI, Eq. 1
    Product        sum of h * r * t                      DistMult: Yang et al. 2015, Eq. 2
                                                         (arXiv 1412.6575)
    Convolution    relu(vec(conv([h; r])) W) . t + b_t   ConvE: Dettmers et al. 2018, Eq. 1
                                                         (arXiv 1707.01476)

A head is called with a `Query` (`objectives.vectors.vector_traits`). Leading axes are rows;
candidates are [..., T, D] if `paired`, else [..., K, D], shared by the triples of a row, or [K, D].

It returns the scores [..., T] or [..., T, K], higher for better triples, and a penalty of each
relation [..., T] (TransH's; 0 for the others). If a batch has a query as its field `scored`, the
head also applies its dropout (`Tower.read`).
"""

from __future__ import annotations

import functools
from typing import Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from ptm_jax.core.types import Array, Vocab
from ptm_jax.nn.embeddings.summed import table_of
from ptm_jax.nn.initializers import FanIn, Initializer, Normal, Zeros
from ptm_jax.nn.layers import Dropout, LayerNorm, Module, normalise
from ptm_jax.objectives.vectors.vector_traits import Query, TripleHead

TINY = 1e-12
"""Least squared length and distance, whose root has a gradient.

Squared distances of shared candidates are products in training. They lose distances below about
0.01, so that candidates are ranked by the difference of the vectors (without a context)."""


def unit(x: Array) -> Array:
    """Returns vectors of length 1."""
    return x * jax.lax.rsqrt(jnp.maximum(jnp.square(x).sum(-1, keepdims=True), TINY))


def dots(q: Array, c: Array, paired: bool) -> Array:
    """Returns the products of q [..., T, D] and candidates."""
    if paired:
        return (q * c).sum(-1)
    return jnp.einsum("...td,...kd->...tk", q, c, preferred_element_type=jnp.float32)


def _apart(q: Array, c: Array, paired: bool) -> Array:
    return q - c if paired else q[..., :, None, :] - c[..., None, :, :]


def _squares(q: Array, c: Array, paired: bool) -> Array:
    """Returns squared distances; for shared candidates by a product, since [..., T, K, D] may not
    fit."""
    if paired:
        return jnp.square(q - c).sum(-1)
    return (
        jnp.square(q).sum(-1)[..., None]
        + jnp.square(c).sum(-1)[..., None, :]
        - 2 * dots(q, c, False)
    )


def _root(x: Array) -> Array:
    return jnp.sqrt(jnp.maximum(x, TINY))


class TripleScore(TripleHead, Module):
    """Base of the scores."""

    logical_axes = {"table": ("vocab", "width")}

    vocab: Vocab
    width: int

    def reads(self, encoded, batch):
        return (batch["scored"],) if "scored" in batch else self.example(encoded)

    def example(self, encoded):
        x, ids = jnp.zeros((1, 1, self.width)), jnp.zeros((1, 1), jnp.int32)
        return (Query(x, x, ids, ids > 0, x, ids, paired=True),)

    def _rows(self, links: Array, initializer: Initializer) -> Array:
        return table_of(self, "table", initializer, (self.vocab.size, self.width))[links]


class Translation(TripleScore):
    """TransE with the norm 1 or 2."""

    norm: Literal[1, 2] = 1

    @property
    def native_score(self):
        return "l1" if self.norm == 1 else "l2"

    @nn.compact
    def __call__(self, query: Query, *, table=None, context=None):
        x, r, links, sides, c, _, paired = query
        q = x + jnp.where(sides[..., None], -r, r)
        if self.norm == 1:
            distance = jnp.abs(_apart(q, c, paired)).sum(-1)
        elif context is None:
            distance = _root(jnp.square(_apart(q, c, paired)).sum(-1))
        else:
            distance = _root(_squares(q, c, paired))
        return -distance, jnp.zeros(links.shape)


class Hyperplanes(TripleScore):
    """TransH. The penalty is max(0, cos(w, d)^2 - epsilon^2), the orthogonality constraint (Eq. 5).

    The normals w of the hyperplanes are rows of a table of the head. They are scaled to length 1
    when they are read (the paper projects them).
    """

    norm: Literal[1, 2] = 2
    epsilon: float = 1e-3
    relations = "own"

    @property
    def native_score(self):
        return "planes" if self.norm == 2 else None

    @property
    def tolerance(self):
        return self.epsilon

    @nn.compact
    def __call__(self, query: Query, *, table=None, context=None):
        x, r, links, sides, c, _, paired = query
        w = unit(self._rows(links, Normal(self.width**-0.5)))
        q = x - dots(x, w, True)[..., None] * w + jnp.where(sides[..., None], -r, r)
        along = dots(w, c, paired)  # of a candidate, along the normal
        if paired or self.norm == 1 or context is None:
            normal = w if paired else w[..., :, None, :]
            difference = _apart(q, c, paired) + along[..., None] * normal
            distance = (
                jnp.abs(difference).sum(-1)
                if self.norm == 1
                else _root(jnp.square(difference).sum(-1))
            )
        else:  # |q - c + (w . c) w|^2 with |w| = 1
            squares = (
                _squares(q, c, False) + 2 * along * dots(q, w, True)[..., None] - jnp.square(along)
            )
            distance = _root(squares)
        return -distance, jax.nn.relu(jnp.square(dots(w, unit(r), True)) - self.epsilon**2)


class Product(TripleScore):
    """DistMult. It scores a triple and its reverse alike."""

    native_score = "product"

    @nn.compact
    def __call__(self, query: Query, *, table=None, context=None):
        known = query.x * query.relations
        scores = dots(known, query.candidates, query.paired)
        return scores, jnp.zeros(query.links.shape)


class ImageFilters(Module):
    """`nn.Conv` of 3 x 3 without padding, of images [..., H, W, 1]: a product of neighbourhoods
    [9], whose gradients are products. On a CPU it takes half of the time of XLA's convolution."""

    filters: int

    @nn.compact
    def __call__(self, images):
        kernel = self.param("kernel", FanIn(2.0), (3, 3, 1, self.filters))
        bias = self.param("bias", nn.initializers.zeros, (self.filters,))
        height, width = images.shape[-3] - 2, images.shape[-2] - 2
        places = [
            images[..., row : row + height, column : column + width, 0]
            for row in range(3)
            for column in range(3)
        ]
        rows = jax.lax.optimization_barrier(jnp.stack(places, -1).reshape(-1, 9))  # made once
        maps = rows @ kernel.reshape(9, self.filters) + bias
        return maps.reshape(*images.shape[:-3], height, width, self.filters)


class ImageNorm(Module):
    """Layer normalisation of images [..., H, W, C] over all three axes, with a scale and a bias of
    each of the C channels."""

    @nn.compact
    def __call__(self, images):
        scale = self.param("scale", nn.initializers.ones, images.shape[-1:])
        bias = self.param("bias", nn.initializers.zeros, images.shape[-1:])
        shape = images.shape[-3:]
        spread = [jnp.broadcast_to(one, shape).reshape(-1) for one in (scale, bias)]
        return normalise(images.reshape(*images.shape[:-3], -1), *spread, 1e-6).reshape(
            images.shape
        )


class Convolution(TripleScore):
    """ConvE: an image of x above one of the relation, `filters` of 3 x 3, a product to width D.
    Candidates for heads are scored with other vectors of the relations, the rows of its own table
    (reciprocal relations: Dettmers et al. 2018, section 4). Every entity has a bias.

    height          rows of the image of a vector; D / height columns
    image, maps, output   dropout of the image, of whole feature maps, and of the product
    normalise       layer normalisation of image, feature maps and product, in place of the
                    published batch normalisation, which makes the scores of a row depend on the
                    other rows of its batch
    """

    logical_axes = {
        "convolution/kernel": (None, None, None, None),
        "product/kernel": ("width", None),
        "scaled_*/scale": (None,),
        "*/bias": (None,),
        "bias": ("vocab",),
    }

    height: int = 10
    filters: int = 32
    image: float = 0.2
    maps: float = 0.2
    output: float = 0.3
    normalise: bool = True
    relations = "own"
    biased = True

    @nn.compact
    def __call__(self, query: Query, *, table=None, context=None):
        x, r, links, sides, c, ids, paired = query
        r = jnp.where(sides[..., None], self._rows(links, Normal(self.width**-0.5)), r)
        shape, size = x.shape[:-1], (self.height, self.width // self.height, 1)
        stacked = jnp.concatenate([x.reshape(*shape, *size), r.reshape(*shape, *size)], -3)

        def normal(name, y, layer=ImageNorm):
            return layer(name=name)(y) if self.normalise else y

        def drop(rate, y):
            return y if context is None else Dropout(rate)(y, context)

        y = drop(self.image, normal("scaled_image", stacked))
        y = ImageFilters(self.filters, name="convolution")(y)
        y = nn.relu(normal("scaled_maps", y))
        y = y * drop(self.maps, jnp.ones_like(y[..., :1, :1, :]))  # whole maps
        y = drop(
            self.output,
            nn.Dense(self.width, kernel_init=FanIn(), name="product")(y.reshape(*shape, -1)),
        )
        y = nn.relu(normal("scaled_product", y, functools.partial(LayerNorm, eps=1e-6)))
        bias = table_of(self, "bias", Zeros(), (self.vocab.size,))[ids]
        return dots(y, c, paired) + (bias if paired else bias[..., None, :]), jnp.zeros(links.shape)
