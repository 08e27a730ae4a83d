"""Basic layers: dense, normalisation, dropout, activations by name.

Every layer is a frozen value. Parameters are float32; products follow the layer's `Precision`.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.errors import ScopeParamShapeError

from ptm_jax.core.batch import rows_of
from ptm_jax.core.constraint import current
from ptm_jax.core.precision import Precision, add_bias
from ptm_jax.core.recipe import Remat
from ptm_jax.core.streams import keep_mask
from ptm_jax.core.types import Array, Batch, Visibility, record, static
from ptm_jax.kernels import integers, one_pass
from ptm_jax.kernels.choice import platform
from ptm_jax.kernels.scores import Scores
from ptm_jax.nn.initializers import TruncatedNormal, Zeros
from ptm_jax.nn.stored_kernels import SCALED, Integers, StoredKernel

Activation = Literal[
    "gelu", "gelu_tanh", "gelu_quick", "gelu_clipped", "relu", "relu6", "relu_squared",
    "leaky_relu", "silu", "mish",
    "hardswish", "hardtanh", "laplace", "sigmoid", "sqrt_softplus", "tanh", "identity",
]  # fmt: skip
"""gelu is exact, gelu_tanh its tanh form, gelu_quick x sigmoid(1.702 x), gelu_clipped lies in [-10,
10]; leaky_relu has slope 0.01; laplace is the Gaussian's distribution function of mean 0.707107 and
deviation 0.282095 (MEGA); sqrt_softplus is sqrt(softplus(x))."""

_ACTIVATIONS = {
    "gelu": functools.partial(jax.nn.gelu, approximate=False),
    "gelu_tanh": functools.partial(jax.nn.gelu, approximate=True),
    "gelu_quick": lambda x: x * jax.nn.sigmoid(1.702 * x),
    "gelu_clipped": lambda x: jnp.clip(jax.nn.gelu(x, approximate=False), -10, 10),
    "relu": jax.nn.relu,
    "relu6": jax.nn.relu6,
    "relu_squared": lambda x: jnp.square(jax.nn.relu(x)),
    "leaky_relu": lambda x: jax.nn.leaky_relu(x, 0.01),
    "silu": jax.nn.silu,
    "mish": jax.nn.mish,
    "hardswish": jax.nn.hard_swish,
    "hardtanh": jax.nn.hard_tanh,
    "laplace": lambda x: 0.5 * (1 + jax.lax.erf((x - 0.707107) / (0.282095 * math.sqrt(2.0)))),
    "sigmoid": jax.nn.sigmoid,
    "sqrt_softplus": lambda x: jnp.sqrt(jax.nn.softplus(x)),
    "tanh": jnp.tanh,
    "identity": lambda x: x,
}


class Module(nn.Module):
    """A Linen module that reads a stored parameter without tracing its initialiser.

    `flax.linen.Module.param` traces the initialiser in every trace of a network, which takes half
    of the time, to compare the shape of its result with that of the stored array. The initialisers
    of this package are given the shape, and this one is compared.
    """

    @nn.nowrap
    def param(self, name: str, init_fn: Callable[..., Any], *init_args, **options) -> Any:
        """Returns a parameter, initialised by `init_fn(key, *init_args)` where there is none.

        Raises `flax.errors.ScopeParamShapeError` if the stored one has another shape.
        """
        shaped = init_args and isinstance(init_args[0], tuple) and not options
        if not shaped or self.is_initializing() or not self.has_variable("params", name):
            return super().param(name, init_fn, *init_args, **options)
        stored, shape = self.get_variable("params", name), init_args[0]
        if jnp.shape(stored) != shape:
            raise ScopeParamShapeError(name, self.scope.path_text, jnp.shape(stored), shape)
        return stored


def recomputed(layer: Callable[..., Any], remat: Remat, transform: Callable[..., Any]):
    """Returns a layer whose backward pass computes again what `remat` does not keep.
    `transform` is `flax.linen.remat` of a module's method, or `jax.checkpoint`."""
    policy = jax.checkpoint_policies.dots_with_no_batch_dims_saveable if remat == "dots" else None
    return layer if remat == "none" else transform(layer, policy=policy, prevent_cse=False)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def activate(name: Activation, x: jax.Array) -> jax.Array:
    """Applies the named activation in float32 and returns x's type.

    The backward pass stores only x. On a GPU a barrier holds XLA to this: in layers without a loop
    it would keep a float32 intermediate of the forward pass instead of computing it again, and
    write the gradient in float32 for the sum of the bias.
    """
    return one_pass.activation(name, functools.partial(_activated, name), x)


def _activated(name, x):
    return _ACTIVATIONS[name](x.astype(jnp.float32)).astype(x.dtype)


def _activated_gradient(name, x, g):
    alone = jax.lax.optimization_barrier if platform() == "gpu" else (lambda array: array)
    _, pull = jax.vjp(_ACTIVATIONS[name], alone(x).astype(jnp.float32))
    return alone(pull(g.astype(jnp.float32))[0].astype(x.dtype))


def _activate_backward(name, x, g):
    return (one_pass.activation_gradient(name, functools.partial(_activated_gradient, name), x, g),)


activate.defvjp(lambda name, x: (activate(name, x), x), _activate_backward)


@record
class Context:
    """Values that the layers of a stack share.

    visibility  which tokens attend to which
    rows        [B] global row indices, for dropout
    positions   [B, L] positions of the queries
    scores      scores that all layers add to q k^T (T5's distances)
    places      [1 or B, Lq] and k_places [1 or B, Lk]: places of the tokens, for relative
                positions. None: consecutive, with the last query at the last key
    types       [B, Lk] sentence types of the keys, the last Lq for the queries (XLNet); or None
    languages   [B, Lq] numbers of the languages of the tokens, or None
    step        scalar training step, or None
    train       whether dropout and other noise are on
    source      [B, Ls, D] input of a decoder's cross-attention, with source_visibility; or None
    beside      [B, Lb, Db] states of another network, with beside_visibility; or None
    layer       scalar number of the layer in a `NumberedStack`, from 0; else None
    distances   [2 S, D] vectors of the distances between tokens (`nn.attention.disentangled`)
    """

    visibility: Visibility | None
    rows: Any
    positions: Any = None
    scores: Scores = Scores()
    places: Any = None
    k_places: Any = None
    types: Any = None
    languages: Any = None
    step: Any = None
    source: Any = None
    source_visibility: Visibility | None = None
    beside: Any = None
    beside_visibility: Visibility | None = None
    layer: Any = None
    distances: Any = None
    train: bool = static(False)

    def placed(self, **parts: Any) -> Scores:
        """Returns `Scores` of these parts with the places of the tokens."""
        return Scores(**parts, q_places=self.places, k_places=self.k_places)

    def by_source(self, count: int) -> Context:
        """Returns the context in which the queries of each of `count` sources are one row, for
        attention to what stands outside of the rows."""
        names = ("source_visibility", "beside_visibility")
        seen = {name: getattr(self, name) for name in names}
        joined = {
            name: dataclasses.replace(one, q_segments=one.q_segments.reshape(count, -1))
            for name, one in seen.items()
            if one is not None
        }
        return dataclasses.replace(self, **joined)


def outside(batch: Batch, states: Array, train: bool) -> Context:
    """Returns the context for layers outside of a stack, which need it only for dropout."""
    return Context(visibility=None, rows=rows_of(batch, states), train=train)


class Dense(Module):
    """x @ kernel + bias over the last `axes` dimensions of x; kernel [..in, ..features].

    A kernel that is a `stored_kernels.StoredKernel` computes its own product.

    With an int8 kernel and the parameter `kernel_scale` it computes an integer product
    (`kernels.integers`). With the parameter `kernel_seen` it rounds x as such a product would, and
    returns its observation of x as this parameter's gradient.
    """

    logical_axes = {"kernel": ("width", None), "bias": (None,)}

    features: int | tuple[int, ...]
    axes: int = 1
    bias: bool = True
    initializer: Any = TruncatedNormal()
    precision: Precision = Precision()

    @nn.compact
    def __call__(self, x, product: bool = True):
        """`product=False` returns the kernel and the bias (or None) for x instead of the result."""
        features = (self.features,) if isinstance(self.features, int) else tuple(self.features)
        stored = self.get_variable("params", "kernel")
        if isinstance(stored, StoredKernel):
            bias = self.param("bias", Zeros(), features) if self.bias else None
            return stored.product(x, bias, self.axes, self.precision)
        kernel = self.param("kernel", self.initializer, (*x.shape[x.ndim - self.axes :], *features))
        bias = self.param("bias", Zeros(), features) if self.bias else None
        if self.has_variable("params", "kernel_seen"):
            observations = (
                self.get_variable("params", f"kernel_{name}") for name in ("inputs", "seen")
            )
            x = integers.observed(x, *observations)
        if self.has_variable("params", "kernel_scale"):
            scale, inputs, offset = (self.get_variable("params", name) for name in SCALED[1:])
            if product:
                flat = kernel.reshape(math.prod(kernel.shape[: self.axes]), -1)
                columns = (None if one is None else one.reshape(-1) for one in (scale, offset))
                scale, offset = columns
                stored = Integers(flat, scale, inputs, offset, features)
                return stored.product(x, bias, self.axes, self.precision)
            kernel = kernel.astype(jnp.float32) * scale + (0.0 if offset is None else offset)
        if not product:
            return kernel, bias
        y = self.precision.dense(x, kernel, self.axes)
        return y if bias is None else add_bias(y, bias)


class LayerNorm(Module):
    """Layer normalisation (Ba et al. 2016), statistics in float32. `center=False` has no bias."""

    logical_axes = {"scale": ("width",), "bias": ("width",)}

    eps: float = 1e-12
    center: bool = True

    @nn.compact
    def __call__(self, x):
        scale = self.param("scale", nn.initializers.ones, x.shape[-1:])
        bias = self.param("bias", nn.initializers.zeros, x.shape[-1:]) if self.center else None
        return normalise(x, scale, bias, self.eps)


class RMSNorm(Module):
    """x / sqrt(mean(x^2) + eps) * scale, statistics in float32 (Zhang & Sennrich 2019, Eq. 4):
    T5."""

    logical_axes = {"scale": ("width",)}

    eps: float = 1e-6

    @nn.compact
    def __call__(self, x):
        scale = self.param("scale", nn.initializers.ones, x.shape[-1:])
        f = x.astype(jnp.float32)
        return (f * jax.lax.rsqrt(jnp.square(f).mean(-1, keepdims=True) + self.eps) * scale).astype(
            x.dtype
        )


def _statistics(x, eps):
    f = x.astype(jnp.float32)
    mean = f.mean(-1, keepdims=True)
    rate = jax.lax.rsqrt(jnp.square(f - mean).mean(-1, keepdims=True) + eps)
    return mean, rate


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def normalise(x: jax.Array, scale: jax.Array, bias: jax.Array | None, eps: float) -> jax.Array:
    """LayerNorm over the last axis of x, statistics in float32.

    The backward pass stores only x and recomputes them.
    """
    return one_pass.norm(functools.partial(_normalised, eps), eps, (x, scale, bias))


def _normalised(eps, x, scale, bias):
    mean, rate = _statistics(x, eps)
    f = (x.astype(jnp.float32) - mean) * rate * scale
    return (f if bias is None else f + bias).astype(x.dtype)


def _normalise_backward(eps, residuals, g):
    plain = functools.partial(_normalised_gradients, eps)
    return one_pass.norm_gradient(plain, eps, residuals, g)


def _normalised_gradients(eps, x, scale, bias, g):
    mean, rate = _statistics(x, eps)
    unit = (x.astype(jnp.float32) - mean) * rate
    g = g.astype(jnp.float32)

    def rows(f):
        return f.reshape(-1, f.shape[-1]).sum(0) if current() is None else f.sum(range(f.ndim - 1))

    inner = g * scale
    dx = rate * (
        inner - inner.mean(-1, keepdims=True) - unit * (inner * unit).mean(-1, keepdims=True)
    )
    return dx.astype(x.dtype), rows(g * unit), None if bias is None else rows(g)


normalise.defvjp(
    lambda x, scale, bias, eps: (normalise(x, scale, bias, eps), (x, scale, bias)),
    _normalise_backward,
)


class Identity(Module):
    """An empty slot. It keeps the parameter paths of the checkpoint."""

    width = None
    reads_neighbours = False

    def __call__(self, x, *_):
        return x


class Dropout(Module):
    """Inverted dropout with a counter-based generator.

    The mask is the same on every sharding and micro-batch split.

    locked    all tokens of a row lose the same units (Gal and Ghahramani 2016, arXiv 1512.05287)
    """

    rate: float
    locked: bool = False

    @nn.compact
    def __call__(self, x, context: Context):
        if not context.train or self.rate == 0.0:
            return x
        if self.locked:
            return x * drop(
                jnp.ones_like(x[:, :1]), self.make_rng("dropout"), context.rows, self.rate
            )
        return drop(x, self.make_rng("dropout"), context.rows, self.rate)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def drop(x: jax.Array, key: jax.Array, rows: jax.Array, rate: float) -> jax.Array:
    """Zeroes elements of x [B, ...] with probability `rate` and scales the rest.

    The backward pass draws the mask again.
    """
    keep = keep_mask(key, rows, x.shape[1:], rate)
    return jnp.where(keep, x * jnp.asarray(1.0 / (1.0 - rate), x.dtype), jnp.zeros((), x.dtype))


def _drop_backward(rate, residuals, g):
    return drop(g, *residuals, rate), None, None


drop.defvjp(lambda x, key, rows, rate: (drop(x, key, rows, rate), (key, rows)), _drop_backward)
