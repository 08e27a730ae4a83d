"""LD-Net: densely connected bidirectional recurrent language models, and selection of their layers.

Liu et al. 2018, arXiv 1804.07827, "Efficient Contextualized Representation: Language Model Pruning
for Sequence Labeling".
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from ptm_jax.core.errors import UserError
from ptm_jax.core.precision import Precision
from ptm_jax.core.streams import keep_mask
from ptm_jax.core.types import Batch, Encoded, Params
from ptm_jax.encoders.context import Embedded, context_of
from ptm_jax.nn.initializers import FanIn
from ptm_jax.nn.layers import Dense, Dropout, activate
from ptm_jax.nn.recurrent.recurrence import Recurrent
from ptm_jax.objectives.tasks.layer_choice import cut
from ptm_jax.objectives.text.text_traits import TwoDirections

WAYS = ("right", "left")


class DenseBiLSTM(Embedded, TwoDirections):
    """Two stacks of recurrent layers, with dense connections between the layers.

    A layer reads the embeddings and all layers below it (section 3.1):

        h_l = RNN([x; z_1 h_1; ..; z_(l-1) h_(l-1)]),   s = relu(W [x; z_1 h_1; ..; z_N h_N])

    `hidden` is both directions' s, [B, L, 2 F]; `extra` has each, "forward" and "backward" [B, L,
    F].

    features    F
    layer_drop  probability that training leaves a layer out of the inputs of the layers above it,
                for the whole batch; s still reads it (section 3.2)
    selects     whether z is the `cut` of a parameter `mask` [2, N], for the layers of both
                directions; else z = 1
    dropout     dropout of the inputs of every layer, and of s
    """

    logical_axes = {"mask": (None, None)}

    embed: nn.Module
    right: tuple[Recurrent, ...]
    left: tuple[Recurrent, ...]
    features: int
    layer_drop: float = 0.0
    dropout: float = 0.0
    selects: bool = False
    initializer: Any = FanIn()
    precision: Precision = Precision()

    direction = "bidirectional"

    def level_of(self, path: str) -> int:
        way, _, layer = path.split("/")[1].partition("_")
        return 1 + int(layer) if way in WAYS and layer.isdigit() else 0

    @nn.compact
    def __call__(self, batch: Batch, train: bool = False) -> Encoded:
        context = context_of(batch, "bidirectional", train)
        x, directions, shape = (
            self.embed(batch, context),
            [],
            (2, max(len(self.right), len(self.left))),
        )
        mask = (
            cut(self.param("mask", nn.initializers.ones, shape))
            if self.selects
            else jnp.ones(shape)
        )
        for number, (way, stack) in enumerate(zip(WAYS, (self.right, self.left), strict=True)):
            below, every = [x], [x]
            for layer, z in zip(stack, mask[number], strict=False):
                inputs = Dropout(self.dropout)(jnp.concatenate(below, -1), context)
                h = layer(inputs, context.visibility.k_segments, None, context)[0] * z.astype(
                    x.dtype
                )
                every.append(h)
                below.append(h * self._kept(train).astype(h.dtype))
            dense = Dense(
                self.features,
                initializer=self.initializer,
                precision=self.precision,
                name=f"{way}_features",
            )
            directions.append(
                Dropout(self.dropout)(activate("relu", dense(jnp.concatenate(every, -1))), context)
            )
        ahead, behind = directions
        hidden = jnp.concatenate(directions, -1)
        return Encoded(
            hidden, hidden[None], extra={"forward": ahead, "backward": behind, "words": ahead}
        )

    def _kept(self, train: bool) -> Any:
        if not train or self.layer_drop == 0.0:
            return jnp.ones(())
        return keep_mask(
            self.make_rng("dropout"), jnp.zeros((1,), jnp.int32), (1,), self.layer_drop
        )[0, 0]


def pruned(
    encoder: DenseBiLSTM, params: Params, chosen: Mapping[str, tuple[int, ...]]
) -> tuple[DenseBiLSTM, Params]:
    """Returns the encoder and its parameters with only the layers in `chosen`.

    `chosen` is {"right": layer numbers from 0, "left": layer numbers}. The mask z is multiplied
    into the kernels. The states equal the states of the full encoder with a mask that is 0 at the
    removed layers. Raises UserError.
    """
    layers, new = (
        len(encoder.right),
        {name: tree for name, tree in params.items() if not name.startswith((*WAYS, "mask"))},
    )
    z = (
        np.clip(np.asarray(params["mask"]), 0.0, 1.0)
        if "mask" in params
        else np.ones((2, layers), np.float32)
    )
    if {*chosen} != {*WAYS} or any(
        not 0 <= n < layers for numbers in chosen.values() for n in numbers
    ):
        raise UserError(
            f"chosen is {dict(chosen)}; expected layers 0 to {layers - 1} of right and left"
        )
    stacks = {"right": encoder.right, "left": encoder.left}
    for row, way in enumerate(WAYS):
        width, remaining_layers = stacks[way][0].width, sorted({*chosen[way]})
        for at, layer in enumerate(remaining_layers):
            old = params[f"{way}_{layer}"]
            kernel = _rows(
                old["inputs"]["kernel"],
                [n for n in remaining_layers if n < layer],
                z[row],
                width,
                layer,
            )
            new[f"{way}_{at}"] = {**old, "inputs": {**old["inputs"], "kernel": kernel}}
        old = params[f"{way}_features"]
        new[f"{way}_features"] = {
            **old,
            "kernel": _rows(old["kernel"], remaining_layers, z[row], width, layers),
        }
    smaller = {way: tuple(stacks[way][n] for n in sorted({*chosen[way]})) for way in WAYS}
    return dataclasses.replace(encoder, **smaller, selects=False), jax.tree.map(np.asarray, new)


def _rows(
    kernel: np.ndarray, numbers: list[int], z: np.ndarray, width: int, below: int
) -> np.ndarray:
    """Returns the rows of a kernel [E + below * width, G] that read the embeddings and the layers
    `kept`, times their z."""
    kernel = np.asarray(kernel)
    start = len(kernel) - below * width
    parts = [
        kernel[:start],
        *(kernel[start + n * width : start + (n + 1) * width] * z[n] for n in numbers),
    ]
    return np.concatenate(parts)
