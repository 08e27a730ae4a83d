"""A Transformer block with slots, and the stack that scans it.

A block is a value: wrap a part by `dataclasses.replace` of its slot. An empty slot (`Identity`)
keeps the parameter paths of the checkpoint. The stack scans a function over the block in its slot;
passing the bound block to `nn.scan(type(block))` would share its parameters (a test guards this).
"""

from __future__ import annotations

import dataclasses
import functools
import re
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from ptm_jax.core import slots
from ptm_jax.core.constraint import constrain
from ptm_jax.core.paths import flatten, unflatten
from ptm_jax.core.precision import Precision
from ptm_jax.core.recipe import Remat
from ptm_jax.core.towers import below
from ptm_jax.core.types import Encoded
from ptm_jax.kernels.choice import platform
from ptm_jax.nn.attention.caches import ByLayer
from ptm_jax.nn.attention.multihead import Attention
from ptm_jax.nn.initializers import TruncatedNormal
from ptm_jax.nn.layers import (
    Activation,
    Context,
    Dense,
    Dropout,
    Identity,
    LayerNorm,
    Module,
    activate,
    recomputed,
)
from ptm_jax.nn.parallel import gathered, joined, stream


class FeedForward(Module):
    """Two dense layers with an activation between: [.., D] -> [.., F] -> [.., D].

    `gated` multiplies the activation by a second projection of x (Shazeer 2020, arXiv 2002.05202:
    T5 1.1's GEGLU). `bias` "last" is the second layer's alone (GTE). `dropout` applies to the
    hidden features (BART, T5, Transformer-XL).
    """

    logical_axes = {
        "up/kernel": ("width", "hidden"),
        "up/bias": ("hidden",),
        "gate/kernel": ("width", "hidden"),
        "gate/bias": ("hidden",),
        "down/kernel": ("hidden", "width"),
        "down/bias": ("width",),
    }

    hidden: int
    activation: Activation = "gelu"
    gated: bool = False
    bias: bool | Literal["last"] = True
    dropout: float = 0.0
    initializer: Any = TruncatedNormal()
    out_init: Any = None
    precision: Precision = Precision()

    @nn.compact
    def __call__(self, x, context: Context):
        dense = functools.partial(Dense, bias=self.bias is True, precision=self.precision)
        names = ("up", "gate") if self.gated else ("up",)
        x = gathered(x)
        up, *gate = joined(
            x, *(dense(self.hidden, initializer=self.initializer, name=name) for name in names)
        )
        h = activate(self.activation, up)
        h = h * gate[0] if gate else h
        h = constrain(h, "rows", *["length"] * (h.ndim - 2), "hidden")
        h = Dropout(self.dropout)(h, context)
        init = self.out_init or self.initializer
        down = dense(x.shape[-1], initializer=init, bias=bool(self.bias), name="down")
        return stream(down(h))


class Block(Module):
    """Attention and feed-forward, each in a residual branch.

    norm="post": LayerNorm(x + branch(x)), BERT and GPT; "pre": x + branch(LayerNorm(x)), GPT-2;
    "none": x + branch(x). `after_attention` and `after_ffn` transform the branch before it is added
    (adapters). `cross` is a separate residual layer between the two, for a decoder's attention over
    `context.source`. The block then returns a pair of probabilities, and a pair as `cache` if it
    was given a pair. Keys and values are computed from `source` [B, Lk, D] if given, otherwise from
    x; norm="pre" also normalises `source` (XLNet's memory, ViLBERT's other stream).
    """

    attention: nn.Module
    ffn: nn.Module
    norm: Literal["post", "pre", "none"] = "post"
    dropout: float = 0.0
    attention_norm: nn.Module = LayerNorm()
    ffn_norm: nn.Module = LayerNorm()
    after_attention: nn.Module = Identity()
    cross: nn.Module = Identity()
    after_ffn: nn.Module = Identity()

    @nn.compact
    def __call__(self, x, context: Context, cache=None, source=None):
        pre = self.norm == "pre"
        inputs = self._normed(x, context) if pre else x
        cache, *across = cache if isinstance(cache, tuple) else (cache,)
        source = self.attention_norm(source) if pre and source is not None else source
        branch, probabilities, cache = self.attention(inputs, context, source=source, cache=cache)
        branch = self.after_attention(Dropout(self.dropout)(branch, context), context)
        x = stream(self.attention_norm(x + branch) if self.norm == "post" else x + branch)
        x = self.cross(x, context, *across)
        if isinstance(x, tuple):
            x, between, cross_cache = x
            probabilities = probabilities, between
            cache = (cache, cross_cache) if across else cache
        total = x + self._fed(x, inputs, context)
        return stream(self._joined(total, context)), probabilities, cache

    def _normed(self, x, context: Context):
        """Returns the inputs of the attention of norm="pre"."""
        return self.attention_norm(x)

    def _fed(self, x, inputs, context: Context):
        """Returns the feed-forward branch for x. `inputs` are the inputs of the attention."""
        x = self.ffn(self.ffn_norm(x) if self.norm == "pre" else x, context)
        return self.after_ffn(Dropout(self.dropout)(x, context), context)

    def _joined(self, x, context: Context):
        """Returns the block's result for x, the sum with the feed-forward branch."""
        return self.ffn_norm(x) if self.norm == "post" else x


class Recurrence(Module):
    """A block that reads [memory; x] and returns its input as the next memory.

    Dai et al. 2019, section 3.2.

    x may be a pair (content h, query g), [B, L, D] each. Both streams go through the same block and
    read the content of memory and row. The query stream does not see its own position (Yang et al.
    2019, Eq. 6).
    """

    block: Block

    @nn.compact
    def __call__(self, x, context: Context, cache=None):
        h, *queries = x if isinstance(x, tuple) else (x,)
        source = h if cache is None else jnp.concatenate([cache.astype(h.dtype), h], 1)
        new, probabilities, _ = self.block(h, context, source=source)
        if not queries:
            return new, probabilities, h
        strict = dataclasses.replace(
            context, visibility=dataclasses.replace(context.visibility, strict=True)
        )
        return (new, self.block(queries[0], strict, source=source)[0]), probabilities, h


UNROLLED, ON_GPU = 12, 24
"""Depths of the largest stacks that a CPU and a GPU run without a loop over their layers."""


class Stack(slots.Layered, Module):
    """N layers of one block, scanned. `share=True` gives all layers one set of parameters (ALBERT).

    remat   "none" keeps every activation for the backward pass, "full" recomputes each layer from
            its input, "dots" keeps the results of products with weights and recomputes the rest.
    groups  number of parameter sets if layers share them, each for N / groups consecutive layers
            (ALBERT's hidden groups).
    cycle   number of parameter sets in each group; the layers of the group use them in turn (1: all
            use the same set).
    shared  regular expression for the paths of block parameters that all layers share; each layer
            has its own of the others (ALBERT's Table 4: "^attention/" or "^ffn/"; Transformer-XL's
            u and v: "relative/[uv]$").
    unroll  number of layers in one iteration of the loop. None: `at_once`, all N on a CPU if they
            are few, else 1.

    Returns `Encoded` with layers [N, B, L, D] (without the input); `cache` holds the last value
    that each block returned.
    """

    block: nn.Module
    layers: int
    share: bool = False
    groups: int = 1
    cycle: int = 1
    shared: str | None = None
    remat: Remat = "none"
    unroll: int | None = None
    final_norm: nn.Module = Identity()

    def at_once(self) -> int:
        """Returns the number of layers in one iteration: `unroll`; None: the device's fastest.

        On a CPU one iteration of all layers saves a fifth of a training step, because the backward
        pass needs no copies into arrays of N layers. On a GPU these copies are 54 of the 221 GB
        that a step of BERT-large at 512 reads and writes (`benchmarks.device.ahead`). Compiling
        then takes longer with each layer, so this holds for at most so many layers. With `remat`
        memory matters more: the compiler would merge recomputed values with the original ones.
        """
        if self.unroll is not None:
            return self.unroll
        depth = {"cpu": UNROLLED, "gpu": ON_GPU}.get(platform(), 0)
        unrolled = self.remat == "none" and self.layers <= depth
        return self.layers if unrolled else 1

    @property
    def levels(self) -> int:
        if not self.share:
            return self.layers
        return self.groups if self.groups > 1 else self.cycle

    def level_of(self, path: str) -> int | range:
        if not path.startswith("block/"):
            return self.levels
        alone = self.share and self.groups * self.cycle == 1
        common = self.shared is not None and re.search(self.shared, path.removeprefix("block/"))
        return 1 if alone or common else range(1, self.levels + 1)

    @nn.compact
    def __call__(self, x, context: Context, cache=None):
        def layer(block, x, cache, context):
            x, probabilities, cache = block(x, context, cache)
            return x, (x, probabilities, cache)

        layer = recomputed(layer, self.remat, nn.remat)

        def scanned(function, length, share):
            return nn.scan(
                function,
                variable_axes={} if share else {"params": 0},
                variable_broadcast="params" if share else False,
                split_rngs={"params": not share, "dropout": True},
                in_axes=(0, nn.broadcast),
                length=length,
                unroll=min(self.at_once(), length),
            )

        if isinstance(cache[0] if isinstance(cache, tuple) else cache, ByLayer):
            x, results = self._one_by_one(x, cache, context)
        elif self.shared is not None:
            x, results = self._partly_shared(x, cache, context)
        elif self.share and self.groups * self.cycle > 1:
            x, results = self._grouped(scanned, layer, x, cache, context)
        else:
            x, results = self._layers(scanned, layer, x, cache, context)
        layers, attention, cache = results
        hidden = jax.tree.map(gathered, self.final_norm(x))
        return Encoded(hidden, layers, attention, cache=cache)

    def _layers(self, scanned, layer, x, cache, context):
        if not self.is_initializing() and "0" in self.get_variable("params", "block"):
            return self._each(x, cache, context)
        return scanned(layer, self.layers, self.share)(self.block, x, cache, context)

    @property
    def attends(self) -> bool:
        """Whether the layers are blocks of attention and a feed-forward layer."""
        return isinstance(self.block, Block)

    @property
    def separable(self) -> bool:
        """Whether each layer has parameters of its own in a plain loop, so that `apart` suits
        them."""
        return type(self) is Stack and not self.share and self.shared is None

    @property
    def alike(self) -> bool:
        """Whether the layers are blocks that differ in nothing but their parameters: `apart` and
        `ByLayer` suit them."""
        return self.separable and self.attends and type(self.block.attention) is Attention

    def apart(self, params, view=lambda leaf: leaf):
        """Splits the block's parameters [N, ...] by layer: {"0": ..., "1": ...}.

        `view` is applied to each array of a layer.
        """
        return {
            str(i): jax.tree.map(lambda leaf, i=i: view(leaf[i]), params)
            for i in range(self.layers)
        }

    def _each(self, x, cache, context):
        """The layers one after another, with parameters that are `apart`."""
        block, params, results = (
            self.block.clone(parent=None, name=None),
            self.get_variable("params", "block"),
            [],
        )

        @functools.partial(jax.jit, inline=True)  # layers of the same shapes are traced once
        def layer(params, x, context, cache):
            return block.apply({"params": params}, x, context, cache)

        for number in range(self.layers):
            layer_cache = jax.tree.map(lambda leaf, i=number: leaf[i], cache)
            x, probabilities, layer_cache = layer(params[str(number)], x, context, layer_cache)
            results.append((x, probabilities, layer_cache))
        return x, jax.tree.map(lambda *parts: jnp.stack(parts), *results)

    def _one_by_one(self, x, cache, context):
        """The layers with parameters that are `apart` and a cache each, without arrays of N
        layers."""
        block, params = (
            self.block.clone(parent=None, name=None),
            self.get_variable("params", "block"),
        )
        parts = (
            zip(*(one.parts for one in cache), strict=True)
            if isinstance(cache, tuple)
            else cache.parts
        )
        caches = []
        for number, part in enumerate(parts):
            x, _, new = block.apply({"params": params[str(number)]}, x, context, part)
            caches.append(new)
        if isinstance(cache, tuple):
            return x, (None, None, tuple(ByLayer(one) for one in zip(*caches, strict=True)))
        return x, (None, None, ByLayer(tuple(caches)))

    def _grouped(self, scanned, layer, x, cache, context):
        """Nested scans: over the groups, over the repetitions of a cycle, over the layers of a
        cycle."""
        times, left_over = divmod(self.layers, self.groups * self.cycle)
        if left_over:
            sets = (
                f"{self.groups} groups"
                if self.cycle == 1
                else f"{self.groups} groups of {self.cycle} in turn"
            )
            raise ValueError(f"{self.layers} layers cannot be {sets} of one size; choose a divisor")
        levels = ((self.groups, False), (times, True), (self.cycle, False))
        levels = [(length, share) for length, share in levels if share or length > 1]
        for length, share in levels[::-1]:
            layer = scanned(layer, length, share)
        lengths = [length for length, _ in levels]
        split = jax.tree.map(lambda leaf: leaf.reshape(*lengths, *leaf.shape[1:]), cache)
        x, results = layer(self.block, x, split, context)
        return x, jax.tree.map(
            lambda leaf: leaf.reshape(self.layers, *leaf.shape[len(lengths) :]), results
        )

    def _partly_shared(self, x, cache, context):
        """A scan written by hand, because `nn.scan` shares a whole block or nothing.

        The parameters have the paths of the block.
        """
        if self.share or self.groups * self.cycle > 1:
            raise ValueError(
                "shared names the parameters that layers share; leave share, groups and "
                "cycle as they are"
            )
        block = self.block.clone(parent=None, name=None)
        if not self.has_variable("params", "block"):
            first = jax.tree.map(lambda leaf: leaf[0], cache)
            keys = jax.random.split(self.make_rng("params"), self.layers)
            with below(*self.path, "block"):
                drawn = flatten(
                    jax.vmap(lambda key: block.init(key, x, context, first)["params"])(keys)
                )
            one = {
                path: leaf[0] if re.search(self.shared, path) else leaf
                for path, leaf in drawn.items()
            }
            self.put_variable("params", "block", unflatten(one))
        params = flatten(self.get_variable("params", "block"))
        common = {path: leaf for path, leaf in params.items() if re.search(self.shared, path)}
        if not common:
            raise ValueError(f"shared={self.shared!r} finds none of {', '.join(sorted(params))}")
        apart = {path: leaf for path, leaf in params.items() if path not in common}
        keys = (
            jax.random.split(self.make_rng("dropout"), self.layers)
            if self.has_rng("dropout")
            else None
        )

        def layer(x, inputs):
            apart, cache, key = inputs
            rngs = None if key is None else {"dropout": key}
            params = unflatten({**common, **apart})
            x, probabilities, cache = block.apply({"params": params}, x, context, cache, rngs=rngs)
            return x, (x, probabilities, cache)

        return jax.lax.scan(
            recomputed(layer, self.remat, jax.checkpoint),
            x,
            (apart, cache, keys),
            length=self.layers,
            unroll=min(self.at_once(), self.layers),
        )


def with_input(x, layers):
    """Returns [N+1, B, L, D]: the input of the stack, then the outputs of its layers."""
    return jnp.concatenate([x[None], layers])
