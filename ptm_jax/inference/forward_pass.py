"""The compiled programs of a loaded model."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

from ptm_jax.core.errors import UserError
from ptm_jax.core.towers import Tower

MEANINGS = {"layers": "states of its layers", "attention": "maps of attention"}
"""{option of a call: what it asks of an encoder}."""


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def forward(module, head, wanted: tuple[str, ...], params, batch) -> dict[str, Any]:
    """Returns the `wanted` arrays of a batch: fields of `Output`, or "scores/NAME" of a head.
    `head` gives the logits. Raises UserError for layers or attention that the encoder has not."""
    tower = Tower(module, params)
    encoded = tower(batch)
    extra = encoded.extra or {}

    def part(value, option):
        if value is None:
            raise UserError(
                f"{type(module.encoder).__name__} gives no {MEANINGS[option]}; leave out "
                f"{option}=True"
            )
        return value

    def layers_of(layers, last):
        return jnp.concatenate([part(layers, "layers")[:-1], last[None]])

    makers = {
        "hidden": lambda: encoded.hidden,
        "layers": lambda: layers_of(encoded.layers, encoded.hidden),
        "source_layers": lambda: layers_of(extra.get("source_layers"), extra["source"]),
        "source": lambda: extra["source"],
        "source_attention": lambda: part(extra.get("source_attention"), "attention"),
        "cross_attention": lambda: part(extra.get("cross_attention"), "attention"),
        "attention": lambda: part(encoded.attention, "attention"),
        "pooled": lambda: tower.head("pool", encoded.hidden),
        "vectors": lambda: encoded.extra["vectors"][:, 0],
        "logits": lambda: tower.read(head, encoded, batch).logits(),
    }

    def read(name):
        return tower.read(name.removeprefix("scores/"), encoded, batch)

    return {name: makers[name]() if name in makers else read(name) for name in wanted}


@functools.partial(jax.jit, static_argnums=(0, 1))
def token_nll(module, head, params, batch):
    """Returns the mean -log p of the tokens after the first [B], in nats."""
    tower = Tower(module, params)
    nll = tower.head(head, tower(batch).hidden[:, :-1]).nll(batch["input_ids"][:, 1:])
    real = batch["segment_ids"][:, 1:]
    return (nll * real).sum(1) / jnp.maximum(real.sum(1), 1)
