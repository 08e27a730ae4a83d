"""The compiled programs of a loaded model."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

from ptm_jax.core.towers import Tower
from ptm_jax.kernels import choice


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
@choice.forward_only()
def forward(module, head, wanted: tuple[str, ...], params, batch) -> dict[str, Any]:
    """Returns the `wanted` arrays of a batch: fields of `Output`, or "scores/NAME" of a head.
    `head` gives the logits."""
    tower = Tower(module, params)
    encoded = tower(batch)

    def whole(layers, last):
        return jnp.concatenate([layers[:-1], last[None]])

    makers = {
        "hidden": lambda: encoded.hidden,
        "layers": lambda: whole(encoded.layers, encoded.hidden),
        "source_layers": lambda: whole(encoded.extra["source_layers"], encoded.extra["source"]),
        **{
            name: lambda name=name: encoded.extra[name]
            for name in ("source", "source_attention", "cross_attention")
        },
        "attention": lambda: encoded.attention,
        "pooled": lambda: tower.head("pool", encoded.hidden),
        "vectors": lambda: encoded.extra["vectors"][:, 0],
        "logits": lambda: tower.read(head, encoded, batch).logits(),
    }

    def read(name):
        return tower.read(name.removeprefix("scores/"), encoded, batch)

    return {name: makers[name]() if name in makers else read(name) for name in wanted}


@functools.partial(jax.jit, static_argnums=(0, 1))
@choice.forward_only()
def token_nll(module, head, params, batch):
    """Returns the mean -log p of the tokens after the first [B], in nats."""
    tower = Tower(module, params)
    nll = tower.head(head, tower(batch).hidden[:, :-1]).nll(batch["input_ids"][:, 1:])
    real = batch["segment_ids"][:, 1:]
    return (nll * real).sum(1) / jnp.maximum(real.sum(1), 1)
