"""Modules by themselves: context, drawn parameters, one program, what they depend on, and common
layers in numpy."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from ptm_jax.core.paths import flatten, unflatten
from ptm_jax.core.types import Visibility
from ptm_jax.nn.layers import Context


def context_of(rows=2, length=5, train=False, **fields) -> Context:
    """Of rows in which every token attends to all."""
    ones = jnp.ones((rows, length), jnp.int32)
    return Context(Visibility(ones, ones), jnp.arange(rows), train=train, **fields)


def drawn(module, *inputs, scale=0.5, **options):
    """Normal parameters of a module, in numpy; nothing is compiled."""
    draw = np.random.default_rng(0)
    shapes = jax.eval_shape(functools.partial(module.init, **options), jax.random.key(0), *inputs)[
        "params"
    ]
    return jax.tree.map(lambda leaf: draw.normal(0, scale, leaf.shape).astype(np.float32), shapes)


def begun(module, *inputs, **options):
    """The initial parameters of a module."""
    return jax.jit(lambda: module.init(jax.random.key(1), *inputs, **options)["params"])()


def run(module, params, *inputs, rngs=None, **options):
    """The module's result by one program."""
    return jax.jit(lambda params: module.apply({"params": params}, *inputs, rngs=rngs, **options))(
        params
    )


def norm(x, p=None):
    """Layer normalisation over the last axis."""
    unit = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-12)
    return unit if p is None else unit * p["scale"] + p["bias"]


def dense(p, x):
    return x @ p["kernel"] + p.get("bias", 0)


def sees(outputs, params, path) -> np.ndarray:
    """[.., n] booleans: whether `outputs(params)` [.., D] depend on entry n of the parameter `path`
    [n, ..], by gradients that are exactly zero where they do not."""
    flat = jax.tree.map(jnp.asarray, flatten(params))

    def mixed(leaf):
        found = outputs(unflatten({**flat, path: leaf}))
        return found @ jnp.linspace(1.0, 2.0, found.shape[-1])

    return np.asarray((jax.jit(jax.jacrev(mixed))(flat[path]) != 0).any(-1))
